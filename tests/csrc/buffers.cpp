// Whether AddressSanitizer finds an access outside of a buffer, also if its memory was used by a buffer before:
// `make sanitize` builds and runs this. Prints what was not found.
#include <sanitizer/asan_interface.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

#include "../../src/knockout/ops/cpu/csrc/buffer.h"

namespace {

int failures = 0;

void check(bool passed, const char* what) {
  if (passed) return;
  ++failures;
  std::printf("FAILED: %s\n", what);
}

bool forbidden(const void* address) { return __asan_address_is_poisoned(address) != 0; }

// Every size must be guarded to the byte, in new and in used memory.
void accesses_outside_are_found(const char* what) {
  for (const int64_t size : {1, 2, 7, 8, 100, 1000}) {
    const char* released;
    {
      const knockout::Buffer<char> buffer(size);
      released = buffer.get();
      for (int64_t i = 0; i < size; ++i) check(!forbidden(released + i), "a buffer can be used");
      for (int64_t i = size; i < size + 64; ++i) check(forbidden(released + i), what);
    }
    check(forbidden(released), "a released buffer cannot be used");
  }
}

// A process of its own writes behind a buffer, in memory that a larger one has used, and must not survive.
void overrun_ends_the_process() {
  const char* const larger = knockout::Buffer<char>(4000).get();
  const knockout::Buffer<char> buffer(1000);
  check(buffer.get() == larger, "memory is used again");
  check(static_cast<unsigned char>(buffer[0]) == 0xbe, "used memory holds garbage");
  const pid_t child = fork();
  if (child == 0) {
    close(STDERR_FILENO);  // the report
    volatile char* const behind = buffer.get() + 1000;
    *behind = 1;
    _exit(0);
  }
  int status = 0;
  check(child > 0 && waitpid(child, &status, 0) == child && status != 0, "an overrun that ends the process");
}

}  // namespace

int main() {
  overrun_ends_the_process();
  accesses_outside_are_found("an overrun of new memory");
  accesses_outside_are_found("an overrun of used memory");
  std::printf("buffers: %d failed\n", failures);
  return failures ? 1 : 0;
}
