// Bucket sort by score: entries are in order from bucket to bucket, and in any order within one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "buffer.h"
#include "compiler.h"
#include "entry.h"

namespace knockout {

constexpr int64_t kFewEntries = 64;       // up to this many are sorted without buckets
constexpr int64_t kEntriesPerBucket = 4;  // on average, below the maximum number of buckets
constexpr int64_t kMaxBuckets = 8192;     // their counters fit into the first-level cache

inline int64_t bucket_count_for(int64_t entries) {
  return entries <= kFewEntries ? 1 : std::min(entries / kEntriesPerBucket, kMaxBuckets);
}

// The bucket of a score: 0 holds the best. Monotone in the score, despite rounding.
template <class T>
struct BucketOfScore {
  T half_high = 0, factor = 0;
  int32_t last = 0;

  BucketOfScore() = default;
  BucketOfScore(T low, T high, int32_t buckets) : half_high(high / 2), last(buckets - 1) {
    const T half_range = half_high - low / 2;
    factor = std::min(T(buckets) / half_range, std::numeric_limits<T>::max());
  }

  KNOCKOUT_INLINE int32_t operator()(T score) const {
    const int32_t bucket = static_cast<int32_t>((half_high - score / 2) * factor);
    return bucket < last ? bucket : last;
  }
};

template <class T>
KNOCKOUT_INLINE void find_buckets_of(const T* score, int64_t count, const BucketOfScore<T>& shared_bucket_of,
                                     int32_t* bucket) {
  const BucketOfScore<T> bucket_of = shared_bucket_of;  // a local copy can stay in registers
  for (int64_t i = 0; i < count; ++i) bucket[i] = bucket_of(score[i]);
}
KNOCKOUT_VECTORIZED void find_buckets(const float* score, int64_t count, const BucketOfScore<float>& bucket_of,
                                      int32_t* bucket) {
  find_buckets_of(score, count, bucket_of, bucket);
}
KNOCKOUT_VECTORIZED void find_buckets(const double* score, int64_t count, const BucketOfScore<double>& bucket_of,
                                      int32_t* bucket) {
  find_buckets_of(score, count, bucket_of, bucket);
}

// A `Source` of entries for BucketSort has
//   scores(at, size, block)   the scores of entries [at, at + size), copied to `block` if they are not contiguous
//   operator[]                one entry

// Candidates, by their scores and indices; `index` is null if the indices are 0, 1, 2, ...
template <class T>
struct CandidateSource {
  const T* score;
  const int32_t* index;
  const T* scores(int64_t at, int64_t, T*) const { return score + at; }
  Entry<T> operator[](int64_t i) const { return {score[i], index ? index[i] : static_cast<int32_t>(i)}; }
};

// An array of entries.
template <class T>
struct EntrySource {
  const Entry<T>* entry;
  const T* scores(int64_t at, int64_t size, T* block) const {
    for (int64_t i = 0; i < size; ++i) block[i] = entry[at + i].score;
    return block;
  }
  Entry<T> operator[](int64_t i) const { return entry[i]; }
};

// Works in two passes: count the entries of each bucket, then place them. The source is cut into one part per thread;
// the order of the result does not depend on the number of parts.
template <class T, class Source>
class BucketSort {
 public:
  BucketSort(const Source& source, int64_t count, T low, T high, int64_t threads)
      : source_(source),
        count_(count),
        buckets_(bucket_count_for(count)),
        parts_(threads == 1 ? 1 : std::min<int64_t>(threads, count / 65536 + 1)),
        bucket_of_(low, high, static_cast<int32_t>(buckets_)) {}

  // The first pass: write the rank at which each bucket starts to `start` (number of buckets + 1). Returns the size of
  // the largest bucket.
  template <class Threads>
  int64_t count(int32_t* start, const Threads& threads) {
    position_ = Buffer<int32_t>(parts_ * buckets_);
    std::fill_n(position_.get(), parts_ * buckets_, 0);
    threads.parallel_for(parts_, 1, [&](int64_t from, int64_t to) {
      for (int64_t part = from; part < to; ++part) {
        int32_t* const sizes = position_.get() + part * buckets_;
        for_each_block(part, [sizes](const int32_t* bucket, int64_t, int64_t size) {
          for (int64_t i = 0; i < size; ++i) ++sizes[bucket[i]];
        });
      }
    });
    int32_t total = 0, largest = 0;
    for (int64_t b = 0; b < buckets_; ++b) {
      start[b] = total;
      for (int64_t part = 0; part < parts_; ++part) {
        const int32_t size = position_[part * buckets_ + b];
        position_[part * buckets_ + b] = total;
        total += size;
      }
      largest = std::max(largest, total - start[b]);
    }
    start[buckets_] = total;
    return largest;
  }

  // The second pass: write the entries of the buckets with wanted[bucket] = 1 to their positions in `entries`; of all
  // buckets if `wanted` is null.
  template <class Threads>
  void place(Entry<T>* entries, const uint8_t* wanted, const Threads& threads) const {
    threads.parallel_for(parts_, 1, [&](int64_t from, int64_t to) {
      for (int64_t part = from; part < to; ++part) {
        const Buffer<int32_t> next_positions(buckets_);
        std::copy_n(position_.get() + part * buckets_, buckets_, next_positions.get());
        int32_t* const next = next_positions.get();
        for_each_block(part, [&](const int32_t* bucket, int64_t at, int64_t size) {
          if (!wanted) {
            for (int64_t i = 0; i < size; ++i) entries[next[bucket[i]]++] = source_[at + i];
            return;
          }
          // Few are wanted, at unpredictable indices: collect these without a branch, then place the entries.
          uint16_t index[kBlock];
          int64_t found = 0;
          for (int64_t i = 0; i < size; ++i) {
            index[found] = static_cast<uint16_t>(i);
            found += wanted[bucket[i]];
          }
          for (int64_t i = 0; i < found; ++i) entries[next[bucket[index[i]]]++] = source_[at + index[i]];
        });
      }
    });
  }

 private:
  static constexpr int64_t kBlock = 256;

  // use(bucket, at, size) for blocks of a part: `bucket` has those of the entries [at, at + size).
  template <class Use>
  KNOCKOUT_INLINE void for_each_block(int64_t part, const Use& use) const {
    T scores[kBlock];
    int32_t bucket[kBlock];
    for (int64_t at = count_ * part / parts_, end = count_ * (part + 1) / parts_; at < end; at += kBlock) {
      const int64_t size = std::min<int64_t>(kBlock, end - at);
      find_buckets(source_.scores(at, size, scores), size, bucket_of_, bucket);
      use(bucket, at, size);
    }
  }

  Source source_;
  int64_t count_, buckets_, parts_;
  BucketOfScore<T> bucket_of_;
  Buffer<int32_t> position_;  // per part and bucket: first the number of entries, then where to put the first of them
};

}  // namespace knockout
