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

// Blend `count` pairs, in blocks: pair i has the entries better[i] and worse[-i]. Record them as nodes from `node` on;
// a blend replaces the better entry of its pair.
template <class T>
void blend_pairs(Entry<T>* better, const Entry<T>* worse, int64_t count, const Boost<T>& boost, T scale, int32_t n,
                 const Rounds<T>& rounds, int64_t node) {
  PairBlock<T> pairs;
  for (; count > 0; count -= kPairBlock, better += kPairBlock, worse -= kPairBlock, node += kPairBlock) {
    const int64_t size = std::min(kPairBlock, count);
    for (int64_t i = 0; i < size; ++i) pairs.better[i] = better[i].score;
    for (int64_t i = 0; i < size; ++i) pairs.worse[i] = worse[-i].score;
    blend_block(pairs, size, boost, scale);
    for (int64_t i = 0; i < size; ++i) rounds.pair[node + i] = {better[i].ref, worse[-i].ref};
    std::copy_n(pairs.share, size, rounds.share + node);
    for (int64_t i = 0; i < size; ++i) better[i] = {pairs.blend[i], static_cast<int32_t>(n + node + i)};
  }
}

}  // namespace knockout
