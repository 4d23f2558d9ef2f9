// Reading memory before it is needed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "compiler.h"

namespace knockout {

constexpr int64_t kLine = 64;  // bytes that memory gives at once

// A table of value rows that will be read in no order soon. While scores are sorted, memory has little to do: each
// entry that is sorted lets one more line of the table be on its way, in order, which memory does several times as fast
// as here and there.
class ReadAhead {
 public:
  // That of the calling thread: sorting is far away from those who know the table.
  static ReadAhead& of_this_thread() {
    static thread_local ReadAhead ahead;
    return ahead;
  }

  // Rows of `row_bytes`, the first of them at `table`, and each `stride` bytes behind the one before it.
  void start(const void* table, int64_t rows, int64_t row_bytes, int64_t stride) {
    const bool contiguous = stride == row_bytes;
    row_ = static_cast<const char*>(table);
    row_lines_ = ((contiguous ? rows * row_bytes : row_bytes) + kLine - 1) / kLine;
    stride_ = stride;
    rows_ = contiguous ? 1 : rows;
    line_ = 0;
  }

  // work(i) for each i below `count`, and with each of them, as far as there are any left, a line on its way.
  template <class Work>
  KNOCKOUT_INLINE void along(int64_t count, const Work& work) {
    int64_t i = 0;
    if (rows_ > 0) {
      const char* const first = row_ + line_ * kLine;
      const int64_t lines = std::min(count, row_lines_ - line_);
      for (; i < lines; ++i) work(i), __builtin_prefetch(first + i * kLine);
      line_ += lines;
      if (line_ == row_lines_) row_ += stride_, --rows_, line_ = 0;
    }
    for (; i < count; ++i) work(i);
  }

  // Read all lines that are left, and wait for them.
  void finish() {
    uint8_t sum = 0;
    const char* row = row_;
    for (int64_t line = line_; rows_ > 0; row += stride_, --rows_, line = 0) {
      const auto* const bytes = reinterpret_cast<const volatile uint8_t*>(row);
      for (const int64_t end = row_lines_; line < end; ++line) sum += bytes[line * kLine];
    }
    asm volatile("" : : "r"(sum));
  }

  void stop() { rows_ = 0; }

 private:
  const char* row_ = nullptr;  // that of the next line
  int64_t row_lines_ = 0, stride_ = 0, rows_ = 0, line_ = 0;
};

}  // namespace knockout
