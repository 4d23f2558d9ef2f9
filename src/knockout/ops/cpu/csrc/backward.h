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
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "boost.h"
#include "rounds.h"

namespace knockout {

template <class T>
struct Gradients {
  T* score;   // abar, bbar, sbar: of candidates and nodes, n + nodes; 0 at first except for the slots' own
  T* member;  // G, of candidates and nodes; given for the members of slots, 0 at first for all others
  T* weight;  // W, of nodes; 0 at first
};

// Compute G and W of the nodes of one slot, whose entry is `root`.
template <class T>
void set_weights_of_slot(int32_t root, int64_t n, const Rounds<T>& rounds, const Gradients<T>& gradients) {
  struct Visit {
    int32_t ref;
    bool children_done;
  };
  std::array<Visit, 2 * kMaxRounds + 2> visits;
  int depth = 0;
  if (root >= n) gradients.weight[root - n] = T(1), visits[depth++] = {root, false};
  while (depth > 0) {
    auto [ref, children_done] = visits[--depth];
    const int64_t node = ref - n;
    const int32_t better = rounds.better[node], worse = rounds.worse[node];
    const T share = rounds.share[node], rest = T(1) - share;
    if (children_done) {
      gradients.member[ref] = share * gradients.member[better] + (rest != T(0) ? rest * gradients.member[worse] : T(0));
      continue;
    }
    visits[depth++] = {ref, true};
    const T weight = gradients.weight[node];
    if (better >= n) gradients.weight[better - n] = weight * share, visits[depth++] = {better, false};
    if (rest != T(0) && worse >= n) gradients.weight[worse - n] = weight * rest, visits[depth++] = {worse, false};
  }
}

// The derivative of the nodes [begin, end) of a round. Adds to the scores of their entries; returns scalebar.
template <class T>
double nodes_backward(int64_t begin, int64_t end, int64_t n, const Boost<T>& boost, T scale, const Rounds<T>& rounds,
                      const Gradients<T>& gradients) {
  double d_scale = 0;
  for (int64_t node = begin; node < end; ++node) {
    const T d_score = gradients.score[n + node], weight = gradients.weight[node];
    if (d_score == T(0) && weight == T(0)) continue;
    const int32_t better = rounds.better[node], worse = rounds.worse[node];
    const T share = rounds.share[node];
    if (share >= T(1)) {
      gradients.score[better] += d_score;
      continue;
    }
    const T gap = clamp_gap(rounds.gap[node]), top = rounds.score[node];
    T d_share = d_score * gap;
    if (weight != T(0)) d_share += weight * (gradients.member[better] - gradients.member[worse]);
    const T t = logit(boost, top, gap, scale);
    const T d_t = d_share * share_slope(boost.alpha, t, share);
    T d_gap = -(T(1) - share) * d_score, d_top = d_score;
    if (boost.kind == BoostKind::relative) {
      d_gap += d_t * boost.c / scale;
      d_scale -= double(d_t) * double(t) / double(scale);
    } else if (boost.kind == BoostKind::fixed) {
      d_gap += d_t * boost.c;
    } else {
      const T height = exact_exp(std::min(boost.c * top, T(40)));
      d_gap += d_t * height * boost.c * exact_exp(-boost.c * gap);
      if (boost.c * top <= T(40)) d_top += d_t * boost.c * t;
    }
    if (!(rounds.gap[node] <= std::numeric_limits<T>::max())) d_gap = T(0);  // the gap was clamped
    gradients.score[better] += d_top + d_gap;
    gradients.score[worse] -= d_gap;
  }
  return d_scale;
}

// The derivative of all rounds, from the last to the first. Changes rounds.order.
template <class T, class Threads>
void rounds_backward(const Progress& progress, int64_t n, const Boost<T>& boost, const Rounds<T>& rounds,
                     const Gradients<T>& gradients, const Threads& threads) {
  constexpr int64_t part = 4096;  // constant, so that the sum does not depend on the number of threads
  std::vector<double> sums;
  double from_next_round = 0;  // derivative of this round's scale through the next round's floor
  double d_spread = 0;
  const double spread = double(rounds.scale[kSpread]);
  const bool adaptive = boost.adaptive && spread >= double(std::numeric_limits<T>::min());
  const double width = adaptive ? double(width_of(boost, rounds.scale[kSpread], progress.rounds)) : 0;
  const double slope = adaptive ? width_slope(boost, rounds.scale[kSpread], progress.rounds) : 0;
  int64_t end = progress.nodes;
  for (int r = progress.rounds - 1; r >= 0; --r) {
    const Round round = rounds.round[r];
    const int64_t count = end - round.node;
    sums.assign((count + part - 1) / part, 0.0);
    threads.parallel_for(static_cast<int64_t>(sums.size()), 1, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        sums[i] = nodes_backward(round.node + i * part, std::min(round.node + (i + 1) * part, end), n, boost,
                                 rounds.scale[r], rounds, gradients);
      }
    });
    end = round.node;
    if (boost.kind != BoostKind::relative) continue;
    double d_scale = from_next_round;
    for (const double each : sums) d_scale += each;
    const ScaleSource source = round.source;
    double to_mean = source == ScaleSource::mean ? 1.0 : source == ScaleSource::both ? 0.5 : 0.0;
    if (adaptive) {
      d_spread += to_mean * d_scale * double(rounds.scale[r]) * (slope - 1 / spread);
      to_mean *= width / spread;
    }
    const double to_floor = source == ScaleSource::floor ? 0.5 : source == ScaleSource::both ? 0.25 : 0.0;
    from_next_round = to_floor * d_scale;
    if (r < progress.partial) continue;  // the scales of partial rounds are floors
    // Restore the field as it was before this round: the better entries of the blended pairs replace the blends.
    int32_t* field = rounds.order + round.byes;
    std::copy(rounds.better + round.node, rounds.better + round.node + count, field + round.decided);
    const int64_t widest = widest_pairs(boost, round.pairs), counted = round.pairs - widest;
    const T each = T(to_mean * d_scale / counted);
    if (each == T(0)) continue;
    threads.parallel_for(counted, 1 << 15, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) gradients.score[field[widest + i]] += each;
      for (int64_t i = from; i < to; ++i) gradients.score[field[round.pairs + i]] -= each;
    });
  }
  if (!adaptive || progress.rounds == 0) return;
  d_spread += from_next_round * 2 * width * slope;  // the scale before the first round, whose half is its floor
  const int64_t size = rounds.round[0].size, pairs = size / 2, widest = widest_pairs(boost, pairs);
  const T each = T(d_spread / static_cast<double>(pairs - widest));
  if (each == T(0)) return;
  threads.parallel_for(pairs - widest, 1 << 15, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) gradients.score[rounds.order[widest + i]] += each;
    for (int64_t i = from; i < to; ++i) gradients.score[rounds.order[size - pairs + i]] -= each;
  });
}

}  // namespace knockout
