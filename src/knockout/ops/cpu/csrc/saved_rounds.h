// The saved rounds of a row: what its backward pass needs, in one flat array of int32.
//
//   SavedHeader                                   6
//   Round, per round                              6 * kMaxRounds
//   root: the ref of the entry of each slot       slots
//   order                                         ordered
//   better, worse: per node                       2 * nodes
//   padding to an even length
//   scale: per round, of type T                   kMaxRounds * sizeof(T) / 4
//   share, score, gap: per node, of type T        3 * nodes * sizeof(T) / 4
//
// For the fields of Rounds see rounds.h. An array must start at a multiple of sizeof(T).
#pragma once

#include <algorithm>
#include <cstdint>

#include "rounds.h"

namespace knockout {

struct SavedHeader {
  int32_t call;      // RowCall::hash
  int32_t n, slots;  // of the row: candidates; slots of the result, filled or not
  int32_t active;    // candidates; -1 for an invalid row, of which nothing else is saved
  int32_t partial;   // rounds
  int32_t nodes;
};

template <class T>
constexpr int64_t integers_per() {
  return sizeof(T) / sizeof(int32_t);
}

struct SavedLayout {
  int64_t slots;
  int64_t ordered;  // entries in `order`: the size of the field before the first round that is not partial
  int64_t nodes;

  // What a row of n candidates needs at most: every node eliminates a candidate, and k remain.
  static constexpr SavedLayout largest(int64_t n, int64_t k) { return {k, n, n - k}; }

  static constexpr int64_t kConstant = integers_per<SavedHeader>() + kMaxRounds * integers_per<Round>();

  // int32s before the first number of type T.
  constexpr int64_t integers() const { return (kConstant + slots + ordered + 2 * nodes + 1) / 2 * 2; }

  template <class T>
  constexpr int64_t length() const {
    return integers() + (kMaxRounds + 3 * nodes) * integers_per<T>();
  }
};

// A length that suffices for every row of n candidates and k slots, known without running the tournament and linear in
// k and n, so that Python can compute it for symbolic sizes.
struct SavedLength {
  int64_t base, per_slot, per_candidate;
  constexpr int64_t of(int64_t n, int64_t k) const { return base + per_slot * k + per_candidate * n; }
};

// SavedLayout::largest(n, k).length<T>(), written as base + 2 n + per_node (n - k), with every factor rounded up to a
// multiple of sizeof(T), so that the rows of a batch are aligned. (slots + ordered = k + n = 2 n - (n - k).)
template <class T>
constexpr SavedLength saved_length() {
  constexpr int64_t unit = integers_per<T>();
  const auto round_up = [](int64_t x) { return (x + unit - 1) / unit * unit; };
  const int64_t base = round_up(SavedLayout::kConstant + 1 + kMaxRounds * unit);  // 1 for the padding
  const int64_t per_node = round_up(2 + 3 * unit - 1);
  return {base, -per_node, 2 + per_node};
}

template <class T>
constexpr bool saved_length_suffices(int64_t up_to) {
  for (int64_t n = 1; n <= up_to; ++n) {
    for (int64_t k = 1; k <= n; ++k) {
      const int64_t length = saved_length<T>().of(n, k);
      if (length < SavedLayout::largest(n, k).length<T>() || length % integers_per<T>() != 0) return false;
    }
  }
  return true;
}
static_assert(saved_length_suffices<float>(64) && saved_length_suffices<double>(64));

// Pointers into such an array.
template <class T>
struct SavedRounds {
  SavedHeader* header;
  int32_t* root;
  Rounds<T> rounds;  // without leaders

  SavedRounds(int32_t* data, const SavedLayout& layout)
      : SavedRounds(data, reinterpret_cast<T*>(data + layout.integers()), layout) {}

  // The same, with the numbers of type T in another array.
  SavedRounds(int32_t* data, T* numbers, const SavedLayout& layout) : header(reinterpret_cast<SavedHeader*>(data)) {
    rounds.round = reinterpret_cast<Round*>(data + integers_per<SavedHeader>());
    root = data + SavedLayout::kConstant;
    rounds.order = root + layout.slots;
    rounds.better = rounds.order + layout.ordered;
    rounds.worse = rounds.better + layout.nodes;
    rounds.leader = nullptr;
    rounds.scale = numbers;
    rounds.share = rounds.scale + kMaxRounds;
    rounds.score = rounds.share + layout.nodes;
    rounds.gap = rounds.score + layout.nodes;
  }

  // Copy what is used of this array to one with another layout.
  void copy_to(const SavedRounds& target, const SavedLayout& layout) const {
    *target.header = *header;
    std::copy_n(rounds.round, kMaxRounds, target.rounds.round);
    std::copy_n(root, layout.slots, target.root);
    std::copy_n(rounds.order, layout.ordered, target.rounds.order);
    std::copy_n(rounds.better, layout.nodes, target.rounds.better);
    std::copy_n(rounds.worse, layout.nodes, target.rounds.worse);
    std::copy_n(rounds.scale, kMaxRounds, target.rounds.scale);
    std::copy_n(rounds.share, layout.nodes, target.rounds.share);
    std::copy_n(rounds.score, layout.nodes, target.rounds.score);
    std::copy_n(rounds.gap, layout.nodes, target.rounds.gap);
  }
};

}  // namespace knockout
