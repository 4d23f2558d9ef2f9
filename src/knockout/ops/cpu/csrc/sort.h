// Sorting entries, best first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "buckets.h"
#include "radix_sort.h"
#include "score_range.h"
#include "threads.h"

namespace knockout {

// --- few entries ---

template <class T>
KNOCKOUT_INLINE void insertion_sort(Entry<T>* entry, int64_t count, const Leaders& leaders) {
  for (int64_t i = 1; i < count; ++i) {
    const Entry<T> moving = entry[i];
    int64_t to = i;
    for (; to > 0 && is_better(moving, entry[to - 1], leaders); --to) entry[to] = entry[to - 1];
    entry[to] = moving;
  }
}

// Compute the rank of every entry by comparing it with all others: without a branch that depends on scores, which a
// processor could not predict.
template <int64_t width>
KNOCKOUT_INLINE void rank_sort(Entry<float>* entry, int64_t count, const Leaders& leaders) {
  float score[width];
  int32_t rank[width], ref[width];
  for (int64_t i = 0; i < width; ++i) {
    const Entry<float>& each = entry[i < count ? i : 0];
    score[i] = each.score, ref[i] = each.ref, rank[i] = 0;
  }
  for (int64_t other = 0; other < count; ++other) {
    const float other_score = score[other];
    for (int64_t i = 0; i < width; ++i) rank[i] += other_score > score[i];
  }
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += rank[i];
  if (total != count * (count - 1) / 2) return insertion_sort(entry, count, leaders);  // equal scores
  for (int64_t i = 0; i < count; ++i) entry[rank[i]] = {score[i], ref[i]};
}

// Up to kFewEntries.
KNOCKOUT_VECTORIZED void sort_few(Entry<float>* entry, int64_t count, const Leaders& leaders) {
  if (count <= 2) return insertion_sort(entry, count, leaders);
  if (count <= 8) return rank_sort<8>(entry, count, leaders);
  if (count <= 16) return rank_sort<16>(entry, count, leaders);
  if (count <= 24) return rank_sort<24>(entry, count, leaders);
  if (count <= 32) return rank_sort<32>(entry, count, leaders);
  if (count <= 48) return rank_sort<48>(entry, count, leaders);
  rank_sort<kFewEntries>(entry, count, leaders);
}
KNOCKOUT_VECTORIZED void sort_few(Entry<double>* entry, int64_t count, const Leaders& leaders) {
  insertion_sort(entry, count, leaders);
}

// --- as many as fit into a cache ---

// Sort entries with the same score by their leaders.
template <class T>
void sort_run(Entry<T>* entry, int64_t count, const Leaders& leaders) {
  // Leaders are looked up once: a blend's leader is as far away as it has rounds behind it.
  const Buffer<std::pair<int32_t, Entry<T>>> tied(count);
  bool sorted = true;
  for (int64_t i = 0; i < count; ++i) {
    tied[i] = {leaders(entry[i].ref), entry[i]};
    sorted = sorted && (i == 0 || tied[i - 1].first < tied[i].first);
  }
  if (sorted) return;
  std::sort(tied.get(), tied.get() + count, [](const auto& one, const auto& other) { return one.first < other.first; });
  for (int64_t i = 0; i < count; ++i) entry[i] = tied[i].second;
}

// Sort entries with equal scores by their leaders, among entries that are sorted by score.
template <class T>
void sort_ties(Entry<T>* entry, int64_t count, const Leaders& leaders) {
  constexpr int64_t block = 64;
  for (int64_t at = 1; at < count;) {
    const int64_t size = std::min(block, count - at);
    if (falls(entry + at, size)) {
      at += size;
      continue;
    }
    while (entry[at - 1].score > entry[at].score) ++at;
    const int64_t begin = at - 1;
    while (at < count && entry[at].score == entry[begin].score) ++at;
    sort_run(entry + begin, at - begin, leaders);
    ++at;
  }
}

// By one thread.
template <class T>
void sort_in_cache(Entry<T>* entry, int64_t count, const Leaders& leaders) {
  if (count <= kFewEntries) return sort_few(entry, count, leaders);
  const ScoreRange<T> range = score_range(entry, count);
  const bool ties = range.low == range.high || radix_sort(EntrySource<T>{entry}, entry, count, range.low, range.high);
  if (ties) sort_ties(entry, count, leaders);
}

// --- entries that are in buckets ---

constexpr int64_t kMaxDistance = 32;

// Sort entries that are at most `distance` ranks away from where they belong, from `copy` to `entry`: the comparisons
// of an entry with its neighbors add up to how far it has to move. Equal scores keep their order.
template <class T>
KNOCKOUT_INLINE void sort_nearby_of(Entry<T>* entry, int64_t count, int64_t distance, const Entry<T>* copy) {
  constexpr int64_t block = 64;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  T score[block + 2 * kMaxDistance];
  for (int64_t at = 0; at < count; at += block) {
    for (int64_t i = -distance; i < block + distance; ++i) {
      score[i + distance] = at + i < 0 ? infinity : at + i < count ? copy[at + i].score : -infinity;
    }
    int32_t shift[block] = {};
    const T* const own = score + distance;
    for (int64_t step = 1; step <= distance; ++step) {
      const T *const before = own - step, *const behind = own + step;
      for (int64_t i = 0; i < block; ++i) {
        shift[i] += static_cast<int32_t>(behind[i] > own[i]) - static_cast<int32_t>(before[i] < own[i]);
      }
    }
    for (int64_t i = 0; i < std::min(block, count - at); ++i) entry[at + i + shift[i]] = copy[at + i];
  }
}
KNOCKOUT_VECTORIZED void sort_nearby(Entry<float>* entry, int64_t count, int64_t distance, const Entry<float>* copy) {
  sort_nearby_of(entry, count, distance, copy);
}
KNOCKOUT_VECTORIZED void sort_nearby(Entry<double>* entry, int64_t count, int64_t distance, const Entry<double>* copy) {
  sort_nearby_of(entry, count, distance, copy);
}

// Sort within buckets: bucket b is from start[b] to start[b + 1], the largest has `largest` entries. Equal scores keep
// their order, or, if the largest bucket is too large for sort_nearby, are ordered by their leaders.
template <class T, class Threads>
void sort_buckets(Entry<T>* entry, const int32_t* start, int64_t buckets, int64_t largest, const Leaders& leaders,
                  const Threads& threads) {
  if (largest < 2) return;
  const int64_t grain = buckets * 16384 / (start[buckets] - start[0] + 1);
  threads.parallel_for(buckets, std::max<int64_t>(1, grain), [&](int64_t from, int64_t to) {
    if (largest <= kMaxDistance + 1) {
      const int64_t count = start[to] - start[from];
      const Buffer<Entry<T>> copy(count);
      std::copy_n(entry + start[from], count, copy.get());
      return sort_nearby(entry + start[from], count, largest - 1, copy.get());
    }
    for (int64_t b = from; b < to; ++b) {
      sort_in_cache(entry + start[b], start[b + 1] - start[b], leaders);
    }
  });
}

// --- any number of entries ---

constexpr int64_t kCachedEntries = 1 << 16;

template <class T, class Threads>
void sort_entries(Entry<T>* entry, int64_t count, const Leaders& leaders, const Threads& threads) {
  if (count <= kCachedEntries) return sort_in_cache(entry, count, leaders);
  const ScoreRange<T> range = score_range(entry, count);
  if (range.low < range.high) {
    const Buffer<Entry<T>> copy(count);
    std::copy_n(entry, count, copy.get());
    const Buffer<int32_t> start(bucket_count_for(count) + 1);
    BucketSort<T, EntrySource<T>> buckets({copy.get()}, count, range.low, range.high, threads.count());
    const int64_t largest = buckets.count(start.get(), threads);
    buckets.place(entry, nullptr, threads);
    sort_buckets(entry, start.get(), bucket_count_for(count), largest, leaders, threads);
  }
  sort_ties(entry, count, leaders);
}

}  // namespace knockout
