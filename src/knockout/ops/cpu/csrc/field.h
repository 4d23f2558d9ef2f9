// The field: the entries still in play before a round.
#pragma once

#include <algorithm>
#include <cstdint>

#include "entry.h"
#include "sort.h"

namespace knockout {

// Best first. The first `sorted` entries are in order; the others are worse than these, in any order. Most of the
// others lose a decided pair, and then their order among themselves does not matter.
template <class T>
struct Field {
  Entry<T>* entry;
  int64_t size, sorted;
  Leaders leaders;

  template <class Threads>
  void sort(const Threads& threads) {
    sort_entries(entry + sorted, size - sorted, leaders, threads);
    sorted = size;
  }

  // Reduce the field to its first `new_size` entries, where those from `first_blend` on are new blends, never better
  // than the entries before them. Blends of distant pairs come nearly in order, so the first of them are sorted here,
  // by moving each a few ranks, as far as that suffices.
  void reduce(int64_t first_blend, int64_t new_size) {
    constexpr int64_t max_moves = 8;
    size = new_size;
    if (first_blend == new_size) {
      sorted = new_size;
      return;
    }
    int64_t at = first_blend + 1;
    for (; at < new_size; ++at) {
      const Entry<T> moving = entry[at];
      if (entry[at - 1].score > moving.score) continue;
      int64_t to = at;
      while (to > first_blend && at - to <= max_moves && is_better(moving, entry[to - 1], leaders)) --to;
      if (at - to > max_moves) break;
      std::copy_backward(entry + to, entry + at, entry + at + 1);
      entry[to] = moving;
    }
    if (at < new_size) {
      const T best = score_range(entry + at, new_size - at).high;
      while (at > first_blend && entry[at - 1].score <= best) --at;
    }
    sorted = at;
  }

  T worst_score() const {
    return sorted < size ? score_range(entry + sorted, size - sorted).low : entry[size - 1].score;
  }
};

}  // namespace knockout
