// The rounds of the tournament over the scores of one row.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "exact_sum.h"
#include "field.h"
#include "pair_block.h"
#include "rounds.h"

namespace knockout {

// The scale of a round of a relative boost: the mean gap of its pairs, but at least `floor`. The mean gap is the sum of
// the distances of all entries in pairs from the middle of the field, divided by the number of pairs.
template <class T, class Threads>
T scale_of_round(const Field<T>& field, const Round& round, T floor, ScaleSource& source, const Threads& threads) {
  const T best = field.entry[round.byes].score, worst = field.worst_score();
  const T middle = field.entry[round.byes + round.pairs - 1].score;
  source = ScaleSource::floor;
  if (best - worst < floor) return floor;
  const int64_t count = 2 * int64_t{round.pairs}, part = 1 << 16;
  const double center = double(middle) * kScaleDown;
  const double farthest = std::max(double(best) * kScaleDown - center, center - double(worst) * kScaleDown);
  const DistanceGrid grid(center, farthest, count);
  const Entry<T>* entries = field.entry + round.byes;
  ExactSum sum;
  if (count <= part) {
    sum = sum_distances(entries, count, grid);
  } else {
    std::vector<ExactSum> sums((count + part - 1) / part);
    threads.parallel_for(static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        sums[i] = sum_distances(entries + i * part, std::min(part, count - i * part), grid);
    });
    for (const ExactSum& each : sums) sum += each;
  }
  const T mean = mean_of<T>(sum, round.pairs);
  if (mean < floor) return floor;
  source = mean > floor ? ScaleSource::mean : ScaleSource::both;
  if (mean == std::numeric_limits<T>::max()) source = ScaleSource::none;
  return mean;
}

// The first pair of a round that may be undecided. Logits fall from the first pair, the best against the worst, to the
// last, so this is a binary search.
template <class T>
int32_t first_undecided(const Field<T>& field, const Round& round, const Boost<T>& boost, T scale) {
  constexpr int32_t few = 48;
  if (round.pairs <= few) return 0;  // blending them all is faster than a search
  int32_t low = 0, high = round.pairs;
  while (low < high) {
    const int32_t pair = low + (high - low) / 2;
    // An entry that is not in the sorted part cannot be better than the last of that part.
    const int64_t other = std::min<int64_t>(round.size - 1 - pair, field.sorted - 1);
    const T better = field.entry[round.byes + pair].score, worse = field.entry[other].score;
    if (logit(boost, better, clamp_gap(better - worse), scale) >= boost.decisive_logit()) {
      low = pair + 1;
    } else {
      high = pair;
    }
  }
  return low;
}

// Blend all pairs of a round from round.decided on. A blend replaces the better entry of its pair.
template <class T, class Threads>
void blend_undecided(const Field<T>& field, const Round& round, const Boost<T>& boost, T scale, const Rounds<T>& rounds,
                     const Threads& threads) {
  const int32_t n = field.leaders.n;
  threads.parallel_for(round.pairs - round.decided, 16 * kPairBlock, [&](int64_t begin, int64_t end) {
    PairBlock<T> pairs;
    for (int64_t at = begin; at < end; at += kPairBlock) {
      const int64_t count = std::min(kPairBlock, end - at), node = round.node + at;
      Entry<T>* const better = field.entry + round.byes + round.decided + at;
      const Entry<T>* const worse = field.entry + round.size - 1 - round.decided - at;
      for (int64_t i = 0; i < count; ++i) pairs.better[i] = better[i].score;
      for (int64_t i = 0; i < count; ++i) pairs.worse[i] = worse[-i].score;
      blend_block(pairs, count, boost, scale);
      record_nodes(
          pairs, count, [=](int64_t i) { return better[i].ref; }, [=](int64_t i) { return worse[-i].ref; },
          field.leaders, rounds, node);
      for (int64_t i = 0; i < count; ++i) better[i] = {pairs.blend[i], static_cast<int32_t>(n + node + i)};
    }
  });
}

// Play all rounds that are left, starting from a sorted field. Afterwards the first k entries are the slots, in order.
template <class T, class Threads>
void play_rounds(Entry<T>* entries, Progress& progress, int64_t k, const Boost<T>& boost, const Leaders& leaders,
                 const Rounds<T>& rounds, const Threads& threads) {
  Field<T> field{entries, progress.size, progress.size, leaders};
  T scale = progress.played ? rounds.scale[progress.played - 1] : boost.initial_scale;
  for (int r = progress.played; r < progress.rounds; ++r) {
    const int64_t half = k << (progress.rounds - r - 1);
    Round round{};
    round.size = static_cast<int32_t>(field.size);
    round.pairs = static_cast<int32_t>(field.size - half);
    round.byes = static_cast<int32_t>(half - round.pairs);
    round.node = static_cast<int32_t>(progress.nodes);
    if (field.sorted < half) field.sort(threads);
    if (boost.kind == BoostKind::relative) {
      const T floor = std::max(scale / 2, std::numeric_limits<T>::min());
      scale = scale_of_round(field, round, floor, round.source, threads);
    }
    round.decided = first_undecided(field, round, boost, scale);
    if (field.sorted < field.size - round.decided) {
      field.sort(threads);
      round.decided = first_undecided(field, round, boost, scale);
    }
    blend_undecided(field, round, boost, scale, rounds, threads);
    // After the last round the slots stay in the order of their pairs.
    if (r < progress.rounds - 1) field.reduce(round.byes + round.decided, half);
    field.size = half;
    progress.nodes += round.pairs - round.decided;
    rounds.round[r] = round;
    rounds.scale[r] = scale;
  }
  progress.played = progress.rounds;
  progress.size = field.size;
}

// use(member, weight) for the members of a slot that have a weight other than 0, the leader first.
template <class T, class Use>
void for_each_member(int32_t root, int64_t n, const Rounds<T>& rounds, const Use& use) {
  struct Branch {
    int32_t ref;
    T weight;
  };
  std::array<Branch, kMaxRounds + 1> branches;
  int depth = 0;
  branches[depth++] = {root, T(1)};
  while (depth > 0) {
    auto [ref, weight] = branches[--depth];
    while (ref >= n) {
      const int64_t node = ref - n;
      const T share = rounds.share[node], worse_weight = weight * (T(1) - share);
      if (worse_weight != T(0)) branches[depth++] = {rounds.worse[node], worse_weight};
      ref = rounds.better[node];
      weight *= share;
    }
    if (weight != T(0)) use(ref, weight);
  }
}

}  // namespace knockout
