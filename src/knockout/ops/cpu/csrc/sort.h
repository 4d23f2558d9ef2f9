// Who is better, and sorting by it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

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

// --- a few entries ---

template <class T>
KNOCKOUT_INLINE void insertion_sort(Entry<T>* entry, int64_t count, const Leaders& leader) {
  for (int64_t i = 1; i < count; ++i) {
    const Entry<T> moving = entry[i];
    int64_t to = i;
    for (; to > 0 && is_better(moving, entry[to - 1], leader); --to) entry[to] = entry[to - 1];
    entry[to] = moving;
  }
}

// Without a branch on the scores, which a processor could not predict: each is put where its rank says.
template <int64_t width>
KNOCKOUT_INLINE void rank_sort(Entry<float>* entry, int64_t count, const Leaders& leader) {
  float score[width];
  int32_t rank[width], ref[width];
  for (int64_t i = 0; i < width; ++i) {
    const Entry<float>& each = entry[i < count ? i : 0];
    score[i] = each.score, ref[i] = each.ref, rank[i] = 0;
  }
  for (int64_t other = 0; other < count; ++other) {
    const float theirs = score[other];
    for (int64_t i = 0; i < width; ++i) rank[i] += theirs > score[i];
  }
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += rank[i];
  if (total != count * (count - 1) / 2) return insertion_sort(entry, count, leader);  // ties
  for (int64_t i = 0; i < count; ++i) entry[rank[i]] = {score[i], ref[i]};
}

KNOCKOUT_WIDE void sort_few(Entry<float>* entry, int64_t count, const Leaders& leader) {
  if (count <= 2) return insertion_sort(entry, count, leader);
  if (count <= 8) return rank_sort<8>(entry, count, leader);
  if (count <= 16) return rank_sort<16>(entry, count, leader);
  if (count <= 24) return rank_sort<24>(entry, count, leader);
  if (count <= 32) return rank_sort<32>(entry, count, leader);
  if (count <= 48) return rank_sort<48>(entry, count, leader);
  rank_sort<kSmall>(entry, count, leader);
}
KNOCKOUT_WIDE void sort_few(Entry<double>* entry, int64_t count, const Leaders& leader) {
  insertion_sort(entry, count, leader);
}

// --- many entries, dealt into buckets before ---

constexpr int64_t kReach = 32;

// Entries that are no farther than `reach` from where they belong: each looks at its neighbours to see how far it has
// to go. Ties stay as they are.
template <class T>
KNOCKOUT_INLINE void mend_of(Entry<T>* entry, int64_t count, int64_t reach, const Entry<T>* copy) {
  constexpr int64_t block = 64;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  T score[block + 2 * kReach];
  for (int64_t at = 0; at < count; at += block) {
    for (int64_t i = -reach; i < block + reach; ++i) {
      score[i + reach] = at + i < 0 ? infinity : at + i < count ? copy[at + i].score : -infinity;
    }
    int32_t shift[block] = {};
    const T* const mine = score + reach;
    for (int64_t far = 1; far <= reach; ++far) {
      const T *const before = mine - far, *const behind = mine + far;
      for (int64_t i = 0; i < block; ++i) {
        shift[i] += static_cast<int32_t>(behind[i] > mine[i]) - static_cast<int32_t>(before[i] < mine[i]);
      }
    }
    for (int64_t i = 0; i < std::min(block, count - at); ++i) entry[at + i + shift[i]] = copy[at + i];
  }
}
KNOCKOUT_WIDE void mend(Entry<float>* entry, int64_t count, int64_t reach, const Entry<float>* copy) {
  mend_of(entry, count, reach, copy);
}
KNOCKOUT_WIDE void mend(Entry<double>* entry, int64_t count, int64_t reach, const Entry<double>* copy) {
  mend_of(entry, count, reach, copy);
}

template <class T, class Team>
void sort_entries(Entry<T>* entry, int64_t count, const Leaders& leader, const Team& team, int deals = 3);

// Sort what was dealt into buckets, of which the largest holds `most`: bucket b is from start[b] to start[b + 1]. Those
// with equal scores stay as they are, or, if the largest is too large, go by their leaders.
template <class T, class Team>
void sort_buckets(Entry<T>* entry, const int32_t* start, int64_t buckets, int64_t most, const Leaders& leader,
                  const Team& team, int deals = 3) {
  if (most < 2) return;
  const int64_t grain = buckets * 16384 / (start[buckets] - start[0] + 1);
  team(buckets, std::max<int64_t>(1, grain), [&](int64_t from, int64_t to) {
    if (most <= kReach + 1) {
      const int64_t count = start[to] - start[from];
      const Buffer<Entry<T>> copy(count);
      std::copy_n(entry + start[from], count, copy.get());
      return mend(entry + start[from], count, most - 1, copy.get());
    }
    for (int64_t b = from; b < to; ++b) {
      sort_entries(entry + start[b], start[b + 1] - start[b], leader, Alone(), deals - 1);
    }
  });
}

// Any number of entries. Dealt at most so many times, then compared: scores over many orders of magnitude.
template <class T, class Team>
void sort_entries(Entry<T>* entry, int64_t count, const Leaders& leader, const Team& team, int deals) {
  if (count <= kSmall) return sort_few(entry, count, leader);
  T low = entry[0].score, high = low;
  bool sorted = true;
  for (int64_t i = 1; i < count; ++i) {
    low = std::min(low, entry[i].score);
    high = std::max(high, entry[i].score);
    sorted = sorted && !is_better(entry[i], entry[i - 1], leader);
  }
  if (sorted) return;  // equal scores, most likely
  const auto better = [&](const Entry<T>& one, const Entry<T>& other) { return is_better(one, other, leader); };
  if (deals == 0 || !(low < high)) return std::sort(entry, entry + count, better);
  const Buffer<Entry<T>> copy(count);
  std::copy_n(entry, count, copy.get());
  const Buffer<int32_t> start(buckets_for(count) + 1);
  Deal<T, Blends<T>> deal({copy.get()}, count, low, high, team.width());
  const int64_t most = deal.count(start.get(), team);
  deal.place(entry, nullptr, team);
  sort_buckets(entry, start.get(), buckets_for(count), most, leader, team, deals);
  for (int64_t begin = 0, end = 1; begin < count; begin = end++) {  // ties
    while (end < count && entry[end].score == entry[begin].score) ++end;
    if (end - begin > 1) std::sort(entry + begin, entry + end, better);
  }
}

}  // namespace knockout
