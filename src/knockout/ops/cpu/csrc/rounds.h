// The record of the rounds of a row.
//
// A round reduces the field, sorted best first, to `half` entries, which are k times a power of two. The best `byes`
// entries advance without a pair; the others form pairs, the best with the worst. A pair is decided if the share of its
// better entry is 1: this entry then advances unchanged. The other pairs are blended, each to a new entry, a node.
// After all rounds the entry of a slot is the root of a binary tree: nodes inside, candidates, its members, as leaves.
#pragma once

#include <cstdint>

#include "entry.h"

namespace knockout {

constexpr int kMaxRounds = 31;           // rows have less than 2^30 candidates: 30 rounds at most
constexpr int kSpread = kMaxRounds - 1;  // where the spread is kept, in Rounds::scale

// The least r with k * 2^r >= n.
inline int round_count(int64_t n, int64_t k) {
  int rounds = 0;
  while ((k << rounds) < n) ++rounds;
  return rounds;
}

// What the scale of a round of a relative boost is: the mean gap (times how much softer an adaptive boost is), or the
// floor (half the scale of the round before), or equal to both, or the largest finite number, which depends on neither.
// Determines its derivative.
enum class ScaleSource : int32_t { floor = 0, mean = 1, both = 2, none = 3 };

struct Round {
  int32_t size;     // of the field
  int32_t byes;     // ranks [0, byes)
  int32_t pairs;    // pair i has the ranks byes + i and size - 1 - i
  int32_t decided;  // the first `decided` pairs are not blended; 0 for a partial round
  int32_t node;     // the first node of this round
  ScaleSource source;
};

// Where to record a number of pairs as nodes.
template <class T>
struct NodeRange {
  int32_t first_ref;  // of the first node
  Pair* pair;
  T* share;
};

// The arrays that describe all rounds of a row.
template <class T>
struct Rounds {
  Round* round;
  T* scale;    // per round; the last one, which no round needs, is the spread of the scores: an adaptive boost
  Pair* pair;  // per node
  T* share;    // per node: of the better entry

  NodeRange<T> nodes(int64_t first, int32_t n) const {
    return {static_cast<int32_t>(n + first), pair + first, share + first};
  }
};

// How many rounds of a row have been played, and what is left.
struct Progress {
  int32_t rounds;       // in all
  int32_t played = 0;   // of these
  int32_t partial = 0;  // of those played: partial rounds, see partial_rounds.h
  int64_t size;         // of the field
  int64_t nodes = 0;
  Progress(int64_t active, int64_t k) : rounds(round_count(active, k)), size(active) {}
};

}  // namespace knockout
