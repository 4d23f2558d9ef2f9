// Arithmetic of the pairs of a round, in blocks that the compiler vectorizes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "boost.h"
#include "entry.h"
#include "rounds.h"

namespace knockout {

constexpr int64_t kPairBlock = 256;

template <class T>
struct PairBlock {
  T better[kPairBlock], worse[kPairBlock];                  // scores: the input
  T gap[kPairBlock], share[kPairBlock], blend[kPairBlock];  // the output
};

template <BoostKind kind, Alpha alpha, class T>
KNOCKOUT_INLINE void blend_block_as(PairBlock<T>& pairs, int64_t count, T c, T scale) {
  for (int64_t i = 0; i < count; ++i) {
    const T gap = pairs.better[i] - pairs.worse[i];
    const T clamped = clamp_gap(gap);
    const T share = share_of<alpha>(logit<kind>(pairs.better[i], clamped, c, scale));
    pairs.gap[i] = gap;
    pairs.share[i] = share;
    pairs.blend[i] = pairs.better[i] - (T(1) - share) * clamped;
  }
}

template <BoostKind kind, class T>
KNOCKOUT_INLINE void blend_block_by_alpha(PairBlock<T>& pairs, int64_t count, const Boost<T>& boost, T scale) {
  if (boost.alpha == Alpha::softmax) return blend_block_as<kind, Alpha::softmax>(pairs, count, boost.c, scale);
  if (boost.alpha == Alpha::entmax) return blend_block_as<kind, Alpha::entmax>(pairs, count, boost.c, scale);
  blend_block_as<kind, Alpha::sparsemax>(pairs, count, boost.c, scale);
}

template <class T>
KNOCKOUT_INLINE void blend_block_by_kind(PairBlock<T>& pairs, int64_t count, const Boost<T>& boost, T scale) {
  if (boost.kind == BoostKind::relative) return blend_block_by_alpha<BoostKind::relative>(pairs, count, boost, scale);
  if (boost.kind == BoostKind::fixed) return blend_block_by_alpha<BoostKind::fixed>(pairs, count, boost, scale);
  blend_block_by_alpha<BoostKind::power>(pairs, count, boost, scale);
}

// Compute gap, share and blended score of the first `count` pairs of a block.
KNOCKOUT_VECTORIZED void blend_block(PairBlock<float>& pairs, int64_t count, const Boost<float>& boost, float scale) {
  blend_block_by_kind(pairs, count, boost, scale);
}
KNOCKOUT_VECTORIZED void blend_block(PairBlock<double>& pairs, int64_t count, const Boost<double>& boost,
                                     double scale) {
  blend_block_by_kind(pairs, count, boost, scale);
}

// Record the first `count` pairs of a block as nodes from `node` on; better(i) and worse(i) are the refs of pair i.
template <class T, class Better, class Worse>
void record_nodes(const PairBlock<T>& pairs, int64_t count, const Better& better, const Worse& worse,
                  const Leaders& leaders, const Rounds<T>& rounds, int64_t node) {
  for (int64_t i = 0; i < count; ++i) {
    const int32_t ref = better(i);
    rounds.better[node + i] = ref;
    rounds.worse[node + i] = worse(i);
    rounds.leader[node + i] = leaders(ref);
  }
  std::copy(pairs.share, pairs.share + count, rounds.share + node);
  if (rounds.score) {
    std::copy(pairs.better, pairs.better + count, rounds.score + node);
    std::copy(pairs.gap, pairs.gap + count, rounds.gap + node);
  }
}

}  // namespace knockout
