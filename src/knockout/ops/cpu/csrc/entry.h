// Entries of the tournament and their order.
#pragma once

#include <cstdint>

#include "compiler.h"

namespace knockout {

constexpr int64_t kLanes = 16;  // independent accumulators of a reduction, so that the compiler can vectorize it

// A candidate, or the blend of a pair. Each blend is a node, see rounds.h.
template <class T>
struct Entry {
  T score;
  int32_t ref;  // the index of a candidate, or n + the index of a node
};

// The leader of every entry: the candidate itself, or that of a blend's better entry.
struct Leaders {
  int32_t n;
  const int32_t* of_node;
  KNOCKOUT_INLINE int32_t operator()(int32_t ref) const { return ref < n ? ref : of_node[ref - n]; }
};

// The order of entries: the higher score is better; of equal scores, the one whose leader has the lower index.
template <class T>
KNOCKOUT_INLINE bool is_better(const Entry<T>& one, const Entry<T>& other, const Leaders& leaders) {
  return one.score > other.score || (one.score == other.score && leaders(one.ref) < leaders(other.ref));
}

}  // namespace knockout
