// Reading memory of the caller that other threads may change meanwhile.
#pragma once

namespace knockout {

// The number, loaded exactly once: the compiler must not load it again after it has been checked.
template <class T>
inline T read_once(const T& number) {
  return *static_cast<const volatile T*>(&number);
}

// What was copied from the caller's memory before is from here on read from the copy.
inline void finish_reading() { asm volatile("" ::: "memory"); }

}  // namespace knockout
