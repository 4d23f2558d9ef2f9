// Uninitialized working memory, reused from one call to the next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

// GCC defines a macro under AddressSanitizer, Clang has a feature.
#if defined(__SANITIZE_ADDRESS__)
#define KNOCKOUT_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KNOCKOUT_ADDRESS_SANITIZER
#endif
#endif
#if defined(KNOCKOUT_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#endif

namespace knockout {

// Under AddressSanitizer a block can be accessed only while a buffer has it, and only as many bytes as the buffer asked
// for. They hold garbage at first, which shows in results if it is read.
inline void allow_access([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(KNOCKOUT_ADDRESS_SANITIZER)
  __asan_unpoison_memory_region(memory, bytes);
  std::memset(memory, 0xbe, bytes);
#endif
}
inline void forbid_access([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(KNOCKOUT_ADDRESS_SANITIZER)
  __asan_poison_memory_region(memory, bytes);
#endif
}

// Memory blocks that a thread has released, kept for its next buffers: the system hands out fresh memory page by page,
// which takes as long as a selection.
class BufferCache {
 public:
  // A block of at least `bytes`, or null. Sets `bytes` to its size.
  void* take(std::size_t& bytes) {
    for (Block& block : blocks_) {
      if (block.bytes >= bytes && block.bytes <= 8 * bytes) {
        void* found = block.memory;
        total_ -= block.bytes;
        bytes = block.bytes;
        block = {};
        return found;
      }
    }
    return nullptr;
  }

  // Keep a block for later; returns false if it is too large or the cache is full.
  bool keep(void* memory, std::size_t bytes) {
    if (bytes > kMaxBytes || total_ + bytes > kMaxTotal) return false;
    for (Block& block : blocks_) {
      if (block.memory) continue;
      block = {memory, bytes};
      total_ += bytes;
      return true;
    }
    return false;
  }

  ~BufferCache() {
    for (Block& block : blocks_) std::free(block.memory);
  }

  static BufferCache& of_this_thread() {
    static thread_local BufferCache cache;
    return cache;
  }

 private:
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 22, kMaxTotal = std::size_t{1} << 24;
  struct Block {
    void* memory = nullptr;
    std::size_t bytes = 0;
  };
  Block blocks_[16];
  std::size_t total_ = 0;  // bytes
};

// An array that is not initialized: every kernel writes before it reads.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size) : bytes_(static_cast<std::size_t>(size) * sizeof(T) + 64) {
    constexpr std::size_t huge_page = std::size_t{1} << 21;
    data_ = static_cast<T*>(BufferCache::of_this_thread().take(bytes_));
    if (!data_ && bytes_ < 4 * huge_page) data_ = static_cast<T*>(std::malloc(bytes_));
    if (!data_) {
      // Long rows are written in scattered order: huge pages save page faults and address translations.
      bytes_ = (bytes_ + huge_page) / huge_page * huge_page;
      data_ = static_cast<T*>(std::aligned_alloc(huge_page, bytes_));
#if defined(__linux__)
      if (data_) madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
    }
    if (!data_) throw std::bad_alloc();
    forbid_access(data_, bytes_);
    allow_access(data_, static_cast<std::size_t>(size) * sizeof(T));
  }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer() {
    if (!data_) return;
    forbid_access(data_, bytes_);
    if (BufferCache::of_this_thread().keep(data_, bytes_)) return;
    std::free(data_);
  }

  T* get() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// An array that grows; what is added to it is not initialized.
template <class T>
class Array {
 public:
  // Add `count` elements, and return a pointer to them.
  T* extend(int64_t count) {
    reserve(size_ + count);
    size_ += count;
    return buffer_.get() + size_ - count;
  }
  // Make room for `size` elements in all, if there is none yet.
  void reserve(int64_t size) {
    if (size <= capacity_) return;
    capacity_ = std::max(size, 2 * size_);
    Buffer<T> larger(capacity_);
    if (size_) std::memcpy(larger.get(), buffer_.get(), static_cast<std::size_t>(size_) * sizeof(T));
    buffer_ = std::move(larger);
  }
  void clear() { size_ = 0; }
  int64_t size() const { return size_; }
  T* data() const { return buffer_.get(); }
  T& operator[](int64_t i) const { return buffer_[i]; }

 private:
  Buffer<T> buffer_;
  int64_t size_ = 0, capacity_ = 0;
};

}  // namespace knockout
