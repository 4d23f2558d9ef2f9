// Who is better, and sorting by it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "deal.h"

namespace knockout {

// Who leads an entry, for ties: a candidate itself, or the leader of a blend.
struct Leaders {
  int32_t n;
  const int32_t* of_node;
  KNOCKOUT_INLINE int32_t operator()(int32_t ref) const { return ref < n ? ref : of_node[ref - n]; }
};

template <class T>
KNOCKOUT_INLINE bool is_better(const Entry<T>& one, const Entry<T>& other, const Leaders& leader) {
  return one.score > other.score || (one.score == other.score && leader(one.ref) < leader(other.ref));
}

template <class T>
KNOCKOUT_INLINE void insertion_sort(Entry<T>* entry, int64_t count, const Leaders& leader) {
  for (int64_t i = 1; i < count; ++i) {
    const Entry<T> moving = entry[i];
    int64_t to = i;
    for (; to > 0 && is_better(moving, entry[to - 1], leader); --to) entry[to] = entry[to - 1];
    entry[to] = moving;
  }
}

// Score and leader as one integer, least for the best; -0 and 0 are alike.
KNOCKOUT_INLINE int64_t key_of(const Entry<float>& entry, const Leaders& leader) {
  const int32_t bits = std::bit_cast<int32_t>(entry.score + 0.0f);
  const int32_t ascending = bits < 0 ? bits ^ 0x7fffffff : bits;
  return static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(~ascending)) << 32) | leader(entry.ref);
}

// Without a branch on the scores, which a processor could not predict: each is put where its rank says.
template <int64_t width>
KNOCKOUT_INLINE void rank_sort(Entry<float>* entry, int64_t count, const Leaders& leader) {
  int64_t key[width], rank[width];
  Entry<float> copy[width];
  for (int64_t i = 0; i < width; ++i) key[i] = std::numeric_limits<int64_t>::max(), rank[i] = 0;
  for (int64_t i = 0; i < count; ++i) {
    copy[i] = entry[i];
    key[i] = key_of(copy[i], leader);
  }
  for (int64_t other = 0; other < count; ++other) {
    const int64_t theirs = key[other];
    for (int64_t i = 0; i < width; ++i) rank[i] += theirs < key[i];
  }
  for (int64_t i = 0; i < count; ++i) entry[rank[i]] = copy[i];
}

KNOCKOUT_INLINE void small_sort(Entry<float>* entry, int64_t count, const Leaders& leader) {
  if (count <= 2) return insertion_sort(entry, count, leader);
  if (count <= 8) return rank_sort<8>(entry, count, leader);
  if (count <= 16) return rank_sort<16>(entry, count, leader);
  if (count <= 32) return rank_sort<32>(entry, count, leader);
  rank_sort<kSmall>(entry, count, leader);
}
KNOCKOUT_INLINE void small_sort(Entry<double>* entry, int64_t count, const Leaders& leader) {
  insertion_sort(entry, count, leader);
}

// The small ones of some buckets.
template <class T>
KNOCKOUT_INLINE void sort_small_of(Entry<T>* entry, const int32_t* start, uint8_t* settled, int64_t buckets,
                                   const Leaders& leader) {
  for (int64_t b = 0; b < buckets; ++b) {
    const int32_t count = start[b + 1] - start[b];
    if (settled[b] || count > kSmall) continue;
    if (count > 1) small_sort(entry + start[b], count, leader);
    settled[b] = 1;
  }
}
KNOCKOUT_WIDE void sort_few(Entry<float>* entry, int64_t count, const Leaders& leader) {
  small_sort(entry, count, leader);
}
KNOCKOUT_WIDE void sort_few(Entry<double>* entry, int64_t count, const Leaders& leader) {
  small_sort(entry, count, leader);
}
KNOCKOUT_WIDE void sort_small(Entry<float>* entry, const int32_t* start, uint8_t* settled, int64_t buckets,
                              const Leaders& leader) {
  sort_small_of(entry, start, settled, buckets, leader);
}
KNOCKOUT_WIDE void sort_small(Entry<double>* entry, const int32_t* start, uint8_t* settled, int64_t buckets,
                              const Leaders& leader) {
  sort_small_of(entry, start, settled, buckets, leader);
}

// Any number of entries. Dealt at most so many times, then compared: scores over many orders of magnitude.
template <class T>
void sort_entries(Entry<T>* entry, int64_t count, const Leaders& leader, int deals = 3) {
  if (count <= kSmall) return sort_few(entry, count, leader);
  T low = entry[0].score, high = low;
  bool sorted = true;
  for (int64_t i = 1; i < count; ++i) {
    low = std::min(low, entry[i].score);
    high = std::max(high, entry[i].score);
    sorted = sorted && !is_better(entry[i], entry[i - 1], leader);
  }
  if (sorted) return;  // equal scores, most likely
  if (deals == 0 || !(low < high)) {
    std::sort(entry, entry + count,
              [&](const Entry<T>& one, const Entry<T>& other) { return is_better(one, other, leader); });
    return;
  }
  const Buffer<Entry<T>> copy(count);
  std::copy(entry, entry + count, copy.get());
  const int64_t buckets = buckets_for(count);
  std::vector<int32_t> start(buckets + 1);
  Deal<T, Blends<T>> deal({copy.get()}, count, low, high, 1);
  deal.count(0, start.data(), Alone());
  deal.place(entry, nullptr, Alone());
  std::vector<uint8_t> settled(buckets, 0);
  sort_small(entry, start.data(), settled.data(), buckets, leader);
  for (int64_t b = 0; b < buckets; ++b) {
    if (!settled[b]) sort_entries(entry + start[b], start[b + 1] - start[b], leader, deals - 1);
  }
}

}  // namespace knockout
