// The derivative of the rounds of one row.
//
// A node has the entries a (better) and b (worse), the share w, the score s, and W, its weight in its slot. With a bar
// for the derivative of the loss with respect to a number, and G(x) for the sum, over the members of an entry x, of the
// member's weight in x times the derivative with respect to the member's weight in the slot:
//
//   s = a - (1 - w) gap      gap = a - b      w = share(t)      t = logit(a, gap, scale)
//   weights of a and b in the slot: W w and W (1 - w)
//
//   wbar   = W (G(a) - G(b)) + sbar gap
//   gapbar = wbar w'(t) t'(gap) - (1 - w) sbar
//   abar  += sbar + gapbar + wbar w'(t) t'(a)
//   bbar  -= gapbar
//   scalebar -= wbar w'(t) t / scale      for a relative boost: t = c gap / scale
//
// The scale is the mean gap, whose derivative is 1/pairs for the better entry of each pair and -1/pairs for the worse
// one, or half the scale of the round before. For an adaptive boost it is width(g) / g times the mean gap, where g is
// the spread, which is a mean gap too (both without the widest pairs); and the scale before the first round is 2
// width(g).
//
// Two passes over the nodes, of which each visits a round at a time. The first goes up, from the candidates to the
// slots: scores, shares and G, all computed as in the forward pass. The second goes down: W and the derivatives.
// Between a node and its pair numbers are gathered and scattered; all arithmetic is on contiguous arrays.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "boost.h"
#include "buffer.h"
#include "checked_rounds.h"
#include "pair_block.h"

namespace knockout {

// Of a candidate or a node. On the way up, its score and G; on the way down, sbar and W.
template <class T>
struct EntryNumbers {
  T score, weight;
};

// Of all nodes.
template <class T>
struct NodeNumbers {
  Buffer<T> share;
  Buffer<T> gap;         // on the way down it becomes bbar
  Buffer<T> difference;  // G(a) - G(b); on the way down it becomes abar
  Buffer<T> top;         // the score of the better entry: only for a power boost

  NodeNumbers(int64_t nodes, const Boost<T>& boost) : share(nodes), gap(nodes), difference(nodes) {
    if (boost.kind == BoostKind::power) top = Buffer<T>(nodes);
  }
};

// G of the nodes of a block, and the differences that their derivatives need.
template <class T>
KNOCKOUT_INLINE void combine_block_of(const T* better, const T* worse, const T* share, const T* blend, int64_t count,
                                      T* difference, EntryNumbers<T>* node) {
  for (int64_t i = 0; i < count; ++i) {
    const T rest = T(1) - share[i];
    difference[i] = better[i] - worse[i];
    node[i] = {blend[i], share[i] * better[i] + (rest != T(0) ? rest * worse[i] : T(0))};
  }
}
KNOCKOUT_VECTORIZED void combine_block(const float* better, const float* worse, const float* share, const float* blend,
                                       int64_t count, float* difference, EntryNumbers<float>* node) {
  combine_block_of(better, worse, share, blend, count, difference, node);
}
KNOCKOUT_VECTORIZED void combine_block(const double* better, const double* worse, const double* share,
                                       const double* blend, int64_t count, double* difference,
                                       EntryNumbers<double>* node) {
  combine_block_of(better, worse, share, blend, count, difference, node);
}

// The way up for the nodes [begin, end) of a round.
template <class T>
void nodes_upward(int64_t begin, int64_t end, int64_t n, const Pair* pair, const Boost<T>& boost, T scale,
                  EntryNumbers<T>* entry, const NodeNumbers<T>& nodes) {
  PairBlock<T> pairs;
  T better[kPairBlock], worse[kPairBlock];
  for (int64_t at = begin; at < end; at += kPairBlock) {
    const int64_t count = std::min(kPairBlock, end - at);
    for (int64_t i = 0; i < count; ++i) {
      const EntryNumbers<T> a = entry[pair[at + i].better], b = entry[pair[at + i].worse];
      pairs.better[i] = a.score, better[i] = a.weight;
      pairs.worse[i] = b.score, worse[i] = b.weight;
    }
    blend_block(pairs, count, boost, scale);
    combine_block(better, worse, pairs.share, pairs.blend, count, nodes.difference.get() + at, entry + n + at);
    std::copy_n(pairs.share, count, nodes.share.get() + at);
    std::copy_n(pairs.gap, count, nodes.gap.get() + at);
    if (nodes.top.get()) std::copy_n(pairs.better, count, nodes.top.get() + at);
  }
}

// The sum of an array, by eight lanes.
KNOCKOUT_INLINE double sum_of(const double* number, int64_t count) {
  typedef double Four __attribute__((vector_size(32), aligned(8), may_alias));
  Four low = {}, high = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    low += *reinterpret_cast<const Four*>(number + i);
    high += *reinterpret_cast<const Four*>(number + i + 4);
  }
  low += high;
  double sum = (low[0] + low[2]) + (low[1] + low[3]);
  for (; i < count; ++i) sum += number[i];
  return sum;
}

// The derivatives of a block of pairs: abar replaces the differences, and bbar the gaps. Adds to scalebar.
template <BoostKind kind, Alpha alpha, class T>
KNOCKOUT_INLINE void differentiate_block_as(const EntryNumbers<T>* node, const T* share, T* gap, T* difference,
                                            const T* top, int64_t count, T c, T scale, double& d_scale) {
  double to_scale[kPairBlock];
  for (int64_t i = 0; i < count; ++i) {
    const T d_score = node[i].score, weight = node[i].weight, w = share[i];
    const T clamped = clamp_gap(gap[i]);
    const T score = kind == BoostKind::power ? top[i] : T(0);
    const T t = logit<kind>(score, clamped, c, scale);
    const T d_share = d_score * clamped + (weight != T(0) ? weight * difference[i] : T(0));
    const T d_t = d_share * share_slope<alpha>(t, w);
    T d_gap = -(T(1) - w) * d_score, d_top = d_score;
    if constexpr (kind == BoostKind::relative) d_gap += d_t * c / scale;
    if constexpr (kind == BoostKind::fixed) d_gap += d_t * c;
    if constexpr (kind == BoostKind::power) {
      d_gap += d_t * exact_exp(std::min(c * score, T(40))) * c * exact_exp(-c * clamped);
      d_top += c * score <= T(40) ? d_t * c * t : T(0);
    }
    d_gap = gap[i] <= std::numeric_limits<T>::max() ? d_gap : T(0);  // otherwise the gap was clamped
    const bool decided = w >= T(1);
    difference[i] = decided ? d_score : d_top + d_gap;
    gap[i] = decided ? T(0) : -d_gap;
    if constexpr (kind == BoostKind::relative) to_scale[i] = decided ? 0.0 : double(d_t) * double(t);
  }
  if constexpr (kind == BoostKind::relative) d_scale -= sum_of(to_scale, count) / double(scale);
}

template <BoostKind kind, class T>
KNOCKOUT_INLINE void differentiate_block_by_alpha(const EntryNumbers<T>* node, const T* share, T* gap, T* difference,
                                                  const T* top, int64_t count, const Boost<T>& boost, T scale,
                                                  double& d_scale) {
  if (boost.alpha == Alpha::softmax)
    return differentiate_block_as<kind, Alpha::softmax>(node, share, gap, difference, top, count, boost.c, scale,
                                                        d_scale);
  if (boost.alpha == Alpha::entmax)
    return differentiate_block_as<kind, Alpha::entmax>(node, share, gap, difference, top, count, boost.c, scale,
                                                       d_scale);
  return differentiate_block_as<kind, Alpha::sparsemax>(node, share, gap, difference, top, count, boost.c, scale,
                                                        d_scale);
}

template <class T>
KNOCKOUT_INLINE void differentiate_block_by_kind(const EntryNumbers<T>* node, const T* share, T* gap, T* difference,
                                                 const T* top, int64_t count, const Boost<T>& boost, T scale,
                                                 double& d_scale) {
  constexpr auto relative = BoostKind::relative, fixed = BoostKind::fixed, power = BoostKind::power;
  if (boost.kind == relative)
    return differentiate_block_by_alpha<relative>(node, share, gap, difference, top, count, boost, scale, d_scale);
  if (boost.kind == fixed)
    return differentiate_block_by_alpha<fixed>(node, share, gap, difference, top, count, boost, scale, d_scale);
  return differentiate_block_by_alpha<power>(node, share, gap, difference, top, count, boost, scale, d_scale);
}
KNOCKOUT_VECTORIZED void differentiate_block(const EntryNumbers<float>* node, const float* share, float* gap,
                                             float* difference, const float* top, int64_t count,
                                             const Boost<float>& boost, float scale, double& d_scale) {
  return differentiate_block_by_kind(node, share, gap, difference, top, count, boost, scale, d_scale);
}
KNOCKOUT_VECTORIZED void differentiate_block(const EntryNumbers<double>* node, const double* share, double* gap,
                                             double* difference, const double* top, int64_t count,
                                             const Boost<double>& boost, double scale, double& d_scale) {
  return differentiate_block_by_kind(node, share, gap, difference, top, count, boost, scale, d_scale);
}

// The derivatives of the nodes [begin, end) of a round. Returns scalebar.
template <class T>
double nodes_derivatives(int64_t begin, int64_t end, int64_t n, const Boost<T>& boost, T scale,
                         const EntryNumbers<T>* entry, const NodeNumbers<T>& nodes) {
  double d_scale = 0;
  for (int64_t at = begin; at < end; at += kPairBlock) {
    differentiate_block(entry + n + at, nodes.share.get() + at, nodes.gap.get() + at, nodes.difference.get() + at,
                        nodes.top.get() ? nodes.top.get() + at : nullptr, std::min(kPairBlock, end - at), boost, scale,
                        d_scale);
  }
  return d_scale;
}

// Hand the derivatives of the nodes [begin, end) down to their pairs, and add `each` to those of the better entries,
// -each to the worse ones.
template <class T>
void hand_down(int64_t begin, int64_t end, int64_t n, const Pair* pair, T each, EntryNumbers<T>* entry,
               const NodeNumbers<T>& nodes) {
  for (int64_t node = begin; node < end; ++node) {
    const T weight = entry[n + node].weight, share = nodes.share[node];
    EntryNumbers<T>& better = entry[pair[node].better];
    better = {better.score + nodes.difference[node] + each, weight * share};
    EntryNumbers<T>& worse = entry[pair[node].worse];
    worse = {worse.score + nodes.gap[node] - each, weight * (T(1) - share)};
  }
}

// The derivative of all rounds of a row.
template <class T, class Threads>
class RoundsBackward {
 public:
  // `entry` has n + nodes entries. The first n have the scores of the candidates and, as weights, the derivatives with
  // respect to the weights of members; 0 for the others.
  RoundsBackward(const CheckedRounds<T>& saved, int64_t n, const Boost<T>& boost, EntryNumbers<T>* entry,
                 const Threads& threads)
      : saved_(saved),
        progress_(saved.progress()),
        n_(n),
        boost_(boost),
        entry_(entry),
        nodes_(progress_.nodes, boost),
        threads_(threads) {}

  void up() {
    for (int r = 0; r < progress_.rounds; ++r) {
      for_each_part(r, [&](int64_t begin, int64_t end) {
        nodes_upward(begin, end, n_, saved_.pair(), boost_, saved_.scale(r), entry_, nodes_);
      });
    }
  }

  // `entry` must now have the derivatives with respect to the scores of the slots and, as their weights, 1; 0
  // elsewhere. Afterwards it has those of the candidates.
  void down() {
    for (int r = progress_.rounds - 1; r >= 0; --r) {
      std::vector<double> sums((node_end(r) - saved_.round(r).node + kPart - 1) / kPart);
      for_each_part(r, [&](int64_t begin, int64_t end) {
        sums[(begin - saved_.round(r).node) / kPart] =
            nodes_derivatives(begin, end, n_, boost_, saved_.scale(r), entry_, nodes_);
      });
      double d_scale = from_next_round_;
      for (const double each : sums) d_scale += each;
      const T each = boost_.kind == BoostKind::relative ? scale_backward(r, d_scale) : T(0);
      // Those of the widest pairs do not count for the scale.
      const int64_t first = saved_.round(r).node + widest_nodes(r);
      for_each_part(r, [&](int64_t begin, int64_t end) {
        const int64_t middle = std::clamp(first, begin, end);
        hand_down(begin, middle, n_, saved_.pair(), T(0), entry_, nodes_);
        hand_down(middle, end, n_, saved_.pair(), each, entry_, nodes_);
      });
      if (boost_.kind == BoostKind::relative && r >= progress_.partial) decided_pairs_backward(r, each);
    }
    if (adaptive_ && progress_.rounds > 0) spread_backward();
  }

 private:
  static constexpr int64_t kPart = 4096;  // constant, so that sums do not depend on the number of threads

  int64_t node_end(int r) const { return r + 1 < progress_.rounds ? saved_.round(r + 1).node : progress_.nodes; }

  // The widest pairs of a round, as far as they are nodes.
  int64_t widest_nodes(int r) const {
    const Round& round = saved_.round(r);
    return std::max<int64_t>(0, widest_pairs(boost_, round.pairs) - round.decided);
  }

  // work(begin, end) on parts of the nodes of a round.
  template <class Work>
  void for_each_part(int r, const Work& work) const {
    const int64_t first = saved_.round(r).node, end = node_end(r);
    threads_.parallel_for((end - first + kPart - 1) / kPart, 1, [&](int64_t from, int64_t to) {
      for (int64_t part = from; part < to; ++part) {
        work(first + part * kPart, std::min(first + (part + 1) * kPart, end));
      }
    });
  }

  // From the derivative of the scale of a round: returns that of the gap of each pair that counts, and keeps those of
  // the spread and of the scale of the round before.
  T scale_backward(int r, double d_scale) {
    const Round& round = saved_.round(r);
    const ScaleSource source = round.source;
    double to_mean = source == ScaleSource::mean ? 1.0 : source == ScaleSource::both ? 0.5 : 0.0;
    if (adaptive_) {
      d_spread_ += to_mean * d_scale * double(saved_.scale(r)) * (slope_ - 1 / spread_);
      to_mean *= width_ / spread_;
    }
    const double to_floor = source == ScaleSource::floor ? 0.5 : source == ScaleSource::both ? 0.25 : 0.0;
    from_next_round_ = to_floor * d_scale;
    if (r < progress_.partial) return T(0);  // the scales of partial rounds are floors
    return T(to_mean * d_scale / static_cast<double>(round.pairs - widest_pairs(boost_, round.pairs)));
  }

  // The pairs of a round that are no nodes count for its scale, too. Restores the field as it was before the round: the
  // better entries of the blended pairs replace the blends.
  void decided_pairs_backward(int r, T each) {
    if (!saved_.order()) return;
    const Round& round = saved_.round(r);
    int32_t* const better = saved_.order() + round.byes;
    const int32_t* const worse = saved_.order() + round.size - 1;
    std::transform(saved_.pair() + round.node, saved_.pair() + round.node + (round.pairs - round.decided),
                   better + round.decided, [](const Pair& pair) { return pair.better; });
    add_to_gaps(better, worse, widest_pairs(boost_, round.pairs), round.decided, each);
  }

  void spread_backward() {
    const Round& round = saved_.round(0);
    d_spread_ += from_next_round_ * 2 * width_ * slope_;  // the scale before the first round, whose half is its floor
    const int64_t pairs = round.size / 2, widest = widest_pairs(boost_, pairs);
    const T each = T(d_spread_ / static_cast<double>(pairs - widest));
    if (saved_.order()) return add_to_gaps(saved_.order(), saved_.order() + round.size - 1, widest, pairs, each);
    // All candidates have met in nodes of the first round.
    for (int64_t i = widest; i < pairs && each != T(0); ++i) {
      entry_[saved_.pair()[i].better].score += each;
      entry_[saved_.pair()[i].worse].score -= each;
    }
  }

  // Add to the derivatives of the pairs [begin, end) of a field: pair i has the entries better[i] and worse[-i].
  void add_to_gaps(const int32_t* better, const int32_t* worse, int64_t begin, int64_t end, T each) {
    if (each == T(0)) return;
    threads_.parallel_for(std::max<int64_t>(0, end - begin), 1 << 15, [&](int64_t from, int64_t to) {
      for (int64_t i = begin + from; i < begin + to; ++i) entry_[better[i]].score += each;
      for (int64_t i = begin + from; i < begin + to; ++i) entry_[worse[-i]].score -= each;
    });
  }

  const CheckedRounds<T>& saved_;
  const Progress progress_;
  const int64_t n_;
  const Boost<T>& boost_;
  EntryNumbers<T>* const entry_;
  const NodeNumbers<T> nodes_;
  const Threads& threads_;
  const double spread_ = double(saved_.scale(kSpread));
  const bool adaptive_ = boost_.adaptive && spread_ >= double(std::numeric_limits<T>::min());
  const double width_ = adaptive_ ? double(width_of(boost_, saved_.scale(kSpread), progress_.rounds)) : 0;
  const double slope_ = adaptive_ ? width_slope(boost_, saved_.scale(kSpread), progress_.rounds) : 0;
  double d_spread_ = 0;
  double from_next_round_ = 0;  // the derivative of a round's scale through the next round's floor
};

}  // namespace knockout
