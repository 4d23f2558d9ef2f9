// Entries of the tournament and their order.
#pragma once

#include <bit>
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

// Write an entry by one instruction where that is possible.
template <class T>
KNOCKOUT_INLINE void store(Entry<T>* to, const Entry<T>& entry) {
  if constexpr (sizeof(T) == 4) {
    const uint64_t bits = uint64_t{static_cast<uint32_t>(entry.ref)} << 32 | std::bit_cast<uint32_t>(entry.score);
    *to = std::bit_cast<Entry<T>>(std::endian::native == std::endian::little ? bits : std::rotl(bits, 32));
  } else {
    *to = entry;
  }
}

// The two entries of a pair, as refs.
struct Pair {
  int32_t better, worse;
};

// The leader of an entry: the candidate itself, or the leader of a blend's better entry. It is looked up only among
// equal scores and in the end.
struct Leaders {
  int32_t n;
  const Pair* pair;  // per node
  int32_t operator()(int32_t ref) const {
    while (ref >= n) ref = pair[ref - n].better;
    return ref;
  }
};

// The order of entries: the higher score is better; of equal scores, the one whose leader has the lower index.
template <class T>
KNOCKOUT_INLINE bool is_better(const Entry<T>& one, const Entry<T>& other, const Leaders& leaders) {
  return one.score > other.score || (one.score == other.score && leaders(one.ref) < leaders(other.ref));
}

}  // namespace knockout
