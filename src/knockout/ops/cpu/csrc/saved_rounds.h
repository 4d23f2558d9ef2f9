// The saved rounds of a row: what its backward pass needs, in one flat array of int32.
//
//   SavedHeader                                   6
//   Round, per round                              6 * kMaxRounds
//   scale: per round, of type T                   kMaxRounds * sizeof(T) / 4
//   root: the ref of the entry of each slot       slots
//   order                                         ordered
//   Pair, per node                                2 * nodes
//
// `order` has the refs of the field after the last round: the slots, then the entries that the last round eliminated,
// and so on. For Round, scale and Pair see rounds.h. Scores, gaps and shares are not saved: the backward pass computes
// them again from the scores of the candidates.
#pragma once

#include <cstdint>
#include <cstring>

#include "rounds.h"
#include "row_call.h"

namespace knockout {

struct SavedHeader {
  int32_t call;      // RowCall::hash, and that of the numbers below: see sign
  int32_t n, slots;  // of the row: candidates; slots of the result, filled or not
  int32_t active;    // candidates; -1 for an invalid row, of which nothing else is saved
  int32_t partial;   // rounds
  int32_t nodes;

  // The header with its first number, from the hash of the call.
  SavedHeader sign(int32_t hash) const {
    uint32_t signature = static_cast<uint32_t>(hash);
    for (const int32_t number : {n, slots, active, partial, nodes}) {
      signature = (signature ^ static_cast<uint32_t>(number)) * 0x01000193;  // FNV-1a
    }
    SavedHeader signed_header = *this;
    signed_header.call = static_cast<int32_t>(signature);
    return signed_header;
  }
};

template <class T>
constexpr int64_t integers_per() {
  return sizeof(T) / sizeof(int32_t);
}

struct SavedLayout {
  int64_t slots;
  int64_t ordered;  // entries in `order`
  int64_t nodes;

  static constexpr int64_t kScales = integers_per<SavedHeader>() + kMaxRounds * integers_per<Round>();

  // Where the refs of the slots begin.
  template <class T>
  static constexpr int64_t roots() {
    return kScales + kMaxRounds * integers_per<T>();
  }
  // int32s that are refs.
  constexpr int64_t refs() const { return slots + ordered + 2 * nodes; }

  template <class T>
  constexpr int64_t length() const {
    return roots<T>() + refs();
  }
};

// How many entries `order` has. It tells who met in pairs that are not nodes, and who had no opponent: the derivative
// of a scale needs them. `size` is that of the field before the first round that is not partial.
template <class T>
int64_t ordered_entries(const Boost<T>& boost, const Round* round, int32_t rounds, int32_t partial, int64_t size) {
  bool needed = boost.adaptive && rounds > 0 && round[0].byes > 0;
  for (int32_t r = partial; r < rounds; ++r) needed = needed || round[r].decided > 0;
  return needed && boost.kind == BoostKind::relative ? size : 0;
}

// A length that suffices for every row of n candidates and k slots, known without running the tournament and linear in
// k and n, so that Python can compute it for symbolic sizes. Every node eliminates a candidate, and k remain: that is
// k + n + 2 (n - k) refs at most. Where rows may want fewer of the k slots, `least` of them remain.
struct SavedLength {
  int64_t base, per_slot, per_candidate;
  constexpr int64_t of(int64_t n, int64_t k, int64_t least) const {
    return base + per_slot * least + per_candidate * n + (k - least);
  }
};

template <class T>
constexpr SavedLength saved_length() {
  return {SavedLayout::roots<T>(), -1, 3};
}

}  // namespace knockout
