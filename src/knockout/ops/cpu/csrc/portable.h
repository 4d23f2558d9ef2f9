// What differs between compilers and processors, in one place.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#define KNOCKOUT_INLINE inline __attribute__((always_inline))

// A function compiled twice, for any x86-64 and for processors with AVX2 and F16C; the loader picks. Elsewhere, and
// under sanitizers (which are not up yet when the loader picks), it is compiled once.
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && !defined(KNOCKOUT_SANITIZE)
#define KNOCKOUT_WIDE [[maybe_unused]] static __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define KNOCKOUT_WIDE [[maybe_unused]] static
#endif

namespace knockout {

// Blocks that a thread has given back, for the next call: fresh memory has to be fetched from the system page by page,
// which takes as long as a selection.
class Shelf {
 public:
  void* take(std::size_t bytes) {
    for (Block& block : blocks_) {
      if (block.bytes >= bytes && block.bytes <= 8 * bytes) {
        void* found = block.memory;
        block = {};
        return found;
      }
    }
    return nullptr;
  }
  bool put(void* memory, std::size_t bytes) {
    for (Block& block : blocks_) {
      if (!block.memory && bytes <= kMost) {
        block = {memory, bytes};
        return true;
      }
    }
    return false;
  }
  ~Shelf() {
    for (Block& block : blocks_) std::free(block.memory);
  }
  static Shelf& mine() {
    static thread_local Shelf shelf;
    return shelf;
  }

 private:
  static constexpr std::size_t kMost = std::size_t{1} << 20;
  struct Block {
    void* memory = nullptr;
    std::size_t bytes = 0;
  };
  Block blocks_[12];
};

// Memory that is not initialised: every kernel writes before it reads.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size) : bytes_(static_cast<std::size_t>(size) * sizeof(T) + 64) {
    constexpr std::size_t huge = std::size_t{1} << 21;
#if !defined(KNOCKOUT_SANITIZE)
    data_ = static_cast<T*>(Shelf::mine().take(bytes_));
#endif
    if (!data_ && bytes_ < 4 * huge) data_ = static_cast<T*>(std::malloc(bytes_));
    if (!data_) {
      // Long rows: fewer, larger pages, because they are written in scattered order.
      bytes_ = (bytes_ + huge) / huge * huge;
      data_ = static_cast<T*>(std::aligned_alloc(huge, bytes_));
#if defined(__linux__)
      if (data_) madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
    }
    if (!data_) throw std::bad_alloc();
  }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer() {
#if !defined(KNOCKOUT_SANITIZE)
    if (data_ && Shelf::mine().put(data_, bytes_)) return;
#endif
    std::free(data_);
  }

  T* get() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// One thread, or all: `team(count, grain, work)` calls work(begin, end) over parts of [0, count).
struct Alone {
  template <class Work>
  void operator()(int64_t count, int64_t, const Work& work) const {
    if (count > 0) work(int64_t{0}, count);
  }
  int64_t width() const { return 1; }
};

}  // namespace knockout
