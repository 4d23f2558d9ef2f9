// Arithmetic of the pairs of a round, in blocks that the compiler vectorizes.
#pragma once

#include <algorithm>
#include <bit>
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

// An entry of float as one integer, with the bits of the score below those of the ref: loops over these are vectorized.
typedef uint64_t PackedEntry __attribute__((may_alias, aligned(4)));
template <class T>
constexpr bool kPacked = sizeof(T) == 4 && std::endian::native == std::endian::little;

// Read the scores of a block of pairs, and write the refs to `pair`: pair i has the entries better[i] and worse[-i].
template <class T>
KNOCKOUT_INLINE void read_block(const Entry<T>* better, const Entry<T>* worse, int64_t count, PairBlock<T>& pairs,
                                Pair* pair) {
  if constexpr (kPacked<T>) {
    const auto* const a = reinterpret_cast<const PackedEntry*>(better);
    const auto* const b = reinterpret_cast<const PackedEntry*>(worse - (count - 1));
    auto* const both = reinterpret_cast<PackedEntry*>(pair);
    for (int64_t i = 0; i < count; ++i) pairs.better[i] = std::bit_cast<float>(static_cast<uint32_t>(a[i]));
    for (int64_t i = 0; i < count; ++i) {
      pairs.worse[i] = std::bit_cast<float>(static_cast<uint32_t>(b[count - 1 - i]));
    }
    for (int64_t i = 0; i < count; ++i) both[i] = a[i] >> 32 | (b[count - 1 - i] >> 32 << 32);
  } else {
    for (int64_t i = 0; i < count; ++i) pairs.better[i] = better[i].score;
    for (int64_t i = 0; i < count; ++i) pairs.worse[i] = worse[-i].score;
    for (int64_t i = 0; i < count; ++i) pair[i] = {better[i].ref, worse[-i].ref};
  }
}

// Write a block of entries, with consecutive refs.
template <class T>
KNOCKOUT_INLINE void write_block(const T* score, int32_t first_ref, int64_t count, Entry<T>* entry) {
  if constexpr (kPacked<T>) {
    auto* const packed = reinterpret_cast<PackedEntry*>(entry);
    const auto first = static_cast<uint32_t>(first_ref);
    for (int64_t i = 0; i < count; ++i) {
      packed[i] = uint64_t{first + static_cast<uint32_t>(i)} << 32 | std::bit_cast<uint32_t>(score[i]);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) entry[i] = {score[i], first_ref + static_cast<int32_t>(i)};
  }
}

template <class T>
KNOCKOUT_INLINE void blend_pairs_of(Entry<T>* better, const Entry<T>* worse, int64_t count, const Boost<T>& boost,
                                    T scale, const NodeRange<T>& nodes) {
  PairBlock<T> pairs;
  for (int64_t at = 0; at < count; at += kPairBlock) {
    const int64_t size = std::min(kPairBlock, count - at);
    read_block(better + at, worse - at, size, pairs, nodes.pair + at);
    blend_block_by_kind(pairs, size, boost, scale);
    std::copy_n(pairs.share, size, nodes.share + at);
    write_block(pairs.blend, nodes.first_ref + static_cast<int32_t>(at), size, better + at);
  }
}

// Blend `count` pairs, and record them as nodes: pair i has the entries better[i] and worse[-i]. A blend replaces the
// better entry of its pair.
KNOCKOUT_VECTORIZED void blend_pairs(Entry<float>* better, const Entry<float>* worse, int64_t count,
                                     const Boost<float>& boost, float scale, const NodeRange<float>& nodes) {
  blend_pairs_of(better, worse, count, boost, scale, nodes);
}
KNOCKOUT_VECTORIZED void blend_pairs(Entry<double>* better, const Entry<double>* worse, int64_t count,
                                     const Boost<double>& boost, double scale, const NodeRange<double>& nodes) {
  blend_pairs_of(better, worse, count, boost, scale, nodes);
}

}  // namespace knockout
