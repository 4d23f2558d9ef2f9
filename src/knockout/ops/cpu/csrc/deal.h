// Candidates dealt into buckets by score: in order from bucket to bucket, in no order inside one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "exact.h"
#include "portable.h"

namespace knockout {

template <class T>
struct Entry {
  T score;
  int32_t ref;  // a candidate, or n + the node of a blend
};

template <class T>
struct Limits {
  T low, high;
  bool finite;
};

constexpr int64_t kLanes = 16;  // reductions are written lane by lane, or they would not be vectorised

template <class T>
KNOCKOUT_INLINE Limits<T> limits_of(const T* x, int64_t count) {
  T low[kLanes], high[kLanes], nothing[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) low[lane] = high[lane] = x[0], nothing[lane] = 0;
  const auto look = [&](int64_t lane, T value) {
    low[lane] = value < low[lane] ? value : low[lane];
    high[lane] = value > high[lane] ? value : high[lane];
    nothing[lane] += value * T(0);  // NaN as soon as one is NaN or infinite
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) look(lane, x[i + lane]);
  }
  for (; i < count; ++i) look(0, x[i]);
  Limits<T> all{low[0], high[0], true};
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    all.low = std::min(all.low, low[lane]);
    all.high = std::max(all.high, high[lane]);
    all.finite = all.finite && nothing[lane] == T(0);
  }
  return all;
}

// Bucket of each score: 0 for the best. Monotone in the score, whatever is rounded.
template <class T>
struct Dealer {
  T half_high = 0, factor = 0;
  int32_t last = 0;

  Dealer() = default;
  Dealer(T low, T high, int32_t buckets) : half_high(high / 2), last(buckets - 1) {
    const T half_range = half_high - low / 2;
    factor = std::min(T(buckets) / half_range, std::numeric_limits<T>::max());
  }

  KNOCKOUT_INLINE int32_t operator()(T score) const {
    const int32_t bucket = static_cast<int32_t>((half_high - score / 2) * factor);
    return bucket < last ? bucket : last;
  }
};

KNOCKOUT_WIDE Limits<float> limits(const float* x, int64_t count) { return limits_of(x, count); }
KNOCKOUT_WIDE Limits<double> limits(const double* x, int64_t count) { return limits_of(x, count); }

template <class T>
KNOCKOUT_INLINE void deal_block(const T* score, int64_t count, const Dealer<T>& dealer, int32_t* bucket) {
  const Dealer<T> mine = dealer;
  for (int64_t i = 0; i < count; ++i) bucket[i] = mine(score[i]);
}
KNOCKOUT_WIDE void deal(const float* score, int64_t count, const Dealer<float>& dealer, int32_t* bucket) {
  deal_block(score, count, dealer, bucket);
}
KNOCKOUT_WIDE void deal(const double* score, int64_t count, const Dealer<double>& dealer, int32_t* bucket) {
  deal_block(score, count, dealer, bucket);
}

// The candidates of a row; `index` names them, or is null where they are 0, 1, 2, ...
template <class T>
struct Candidates {
  const T* score;
  const int32_t* index;
  const T* scores(int64_t at, int64_t, T*) const { return score + at; }
  Entry<T> operator[](int64_t i) const { return {score[i], index ? index[i] : static_cast<int32_t>(i)}; }
};

// Entries that were made on the way.
template <class T>
struct Blends {
  const Entry<T>* entry;
  const T* scores(int64_t at, int64_t size, T* block) const {
    for (int64_t i = 0; i < size; ++i) block[i] = entry[at + i].score;
    return block;
  }
  Entry<T> operator[](int64_t i) const { return entry[i]; }
};

constexpr int64_t kMostBuckets = 8192;  // their counters fit into the first cache
constexpr int64_t kShare = 4;           // candidates a bucket, as long as there are buckets enough

constexpr int64_t kSmall = 64;  // sorted without being dealt

inline int64_t buckets_for(int64_t count) { return count <= kSmall ? 1 : std::min(count / kShare, kMostBuckets); }

// Two passes: count, then place. A long row is dealt in parts, one a thread, to the same places as one part would be.
template <class T, class Source>
class Deal {
 public:
  Deal(const Source& source, int64_t count, T low, T high, int64_t width)
      : source_(source),
        count_(count),
        buckets_(buckets_for(count)),
        parts_(width == 1 ? 1 : std::min<int64_t>(width, count / 65536 + 1)),
        dealer_(low, high, static_cast<int32_t>(buckets_)) {}

  // Where each bucket starts, buckets + 1 ranks; returns the size of the largest.
  template <class Team>
  int64_t count(int32_t* start, const Team& team) {
    place_ = Buffer<int32_t>(parts_ * buckets_);
    std::fill_n(place_.get(), parts_ * buckets_, 0);
    team(parts_, 1, [&](int64_t from, int64_t to) {
      for (int64_t part = from; part < to; ++part) {
        int32_t* const mine = place_.get() + part * buckets_;
        each_block(part, [mine](const int32_t* bucket, int64_t, int64_t size) {
          for (int64_t i = 0; i < size; ++i) ++mine[bucket[i]];
        });
      }
    });
    int32_t total = 0, most = 0;
    for (int64_t b = 0; b < buckets_; ++b) {
      start[b] = total;
      for (int64_t part = 0; part < parts_; ++part) {
        const int32_t size = place_[part * buckets_ + b];
        place_[part * buckets_ + b] = total;
        total += size;
      }
      most = std::max(most, total - start[b]);
    }
    start[buckets_] = total;
    return most;
  }

  // Those of the buckets that are wanted, or all, to their places.
  template <class Team>
  void place(Entry<T>* entries, const uint8_t* wanted, const Team& team) const {
    team(parts_, 1, [&](int64_t from, int64_t to) {
      for (int64_t part = from; part < to; ++part) {
        const Buffer<int32_t> next(buckets_);
        std::copy_n(place_.get() + part * buckets_, buckets_, next.get());
        int32_t* const mine = next.get();
        each_block(part, [&](const int32_t* bucket, int64_t at, int64_t size) {
          if (!wanted) {
            for (int64_t i = 0; i < size; ++i) entries[mine[bucket[i]]++] = source_[at + i];
            return;
          }
          // Few are wanted, here and there: first who, without a branch, then where to.
          uint16_t who[kBlock];
          int64_t found = 0;
          for (int64_t i = 0; i < size; ++i) {
            who[found] = static_cast<uint16_t>(i);
            found += wanted[bucket[i]];
          }
          for (int64_t i = 0; i < found; ++i) entries[mine[bucket[who[i]]]++] = source_[at + who[i]];
        });
      }
    });
  }

 private:
  static constexpr int64_t kBlock = 256;

  template <class Use>
  KNOCKOUT_INLINE void each_block(int64_t part, const Use& use) const {
    T scores[kBlock];
    int32_t bucket[kBlock];
    for (int64_t at = count_ * part / parts_, end = count_ * (part + 1) / parts_; at < end; at += kBlock) {
      const int64_t size = std::min<int64_t>(kBlock, end - at);
      deal(source_.scores(at, size, scores), size, dealer_, bucket);
      use(bucket, at, size);
    }
  }

  Source source_;
  int64_t count_, buckets_, parts_;
  Dealer<T> dealer_;
  Buffer<int32_t> place_;
};

}  // namespace knockout
