// The rounds of the tournament over the scores of one row.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "exact_sum.h"
#include "field.h"
#include "pair_block.h"
#include "rounds.h"

namespace knockout {

// The mean gap of a sorted field, paired: the sum of the distances of all entries from the middle, divided by the
// number of pairs. `middle` is the score in the middle, `best` and `worst` are those of the ends.
template <class T, class Threads>
T mean_gap(const Entry<T>* entries, int64_t count, T best, T middle, T worst, const Threads& threads) {
  constexpr int64_t part = 1 << 16;
  const double center = double(middle) * kScaleDown;
  const double farthest = std::max(double(best) * kScaleDown - center, center - double(worst) * kScaleDown);
  const DistanceGrid grid(center, farthest, count);
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
  return mean_of<T>(sum, count / 2);
}

// The spread of the scores of a row: the mean gap if all entries of its sorted field were paired, the best with the
// worst, without the widest pairs. If their number is odd, the one in the middle adds nothing.
template <class T, class Threads>
T spread_of(const Field<T>& field, const Boost<T>& boost, const Threads& threads) {
  if (field.size < 2) return T(0);
  const int64_t first = widest_pairs(boost, field.size / 2), last = field.size - 1 - first;
  const Entry<T>* entries = field.entry;
  return mean_gap(entries + first, last - first + 1, entries[first].score, entries[(field.size - 1) / 2].score,
                  entries[last].score, threads);
}

// The mean gap of a round; for an adaptive boost, as a part of the spread, of which the scale would be `width`. A
// spread that is not a normal number counts as 0.
template <class T>
T softened(T mean, const Boost<T>& boost, T spread, T width) {
  if (!boost.adaptive) return mean;
  if (spread < std::numeric_limits<T>::min()) return T(0);
  return std::min(width * (mean / spread), std::numeric_limits<T>::max());
}

// The scale of a round of a relative boost: the mean gap of its pairs, softened, but at least `floor`.
template <class T, class Threads>
T scale_of_round(Field<T>& field, const Round& round, const Boost<T>& boost, T spread, T width, T floor,
                 ScaleSource& source, const Threads& threads) {
  const int64_t widest = widest_pairs(boost, round.pairs), first = round.byes + widest;
  if (widest && field.sorted < field.size) field.sort(threads);
  const T best = field.entry[first].score;
  const T worst = widest ? field.entry[round.size - 1 - widest].score : field.worst_score();
  source = ScaleSource::floor;
  if (softened(best - worst, boost, spread, width) < floor) return floor;
  const T mean = mean_gap(field.entry + first, 2 * (round.pairs - widest), best,
                          field.entry[round.byes + round.pairs - 1].score, worst, threads);
  const T scale = softened(mean, boost, spread, width);
  if (scale < floor) return floor;
  source = scale > floor ? ScaleSource::mean : ScaleSource::both;
  if (scale == std::numeric_limits<T>::max()) source = ScaleSource::none;
  return scale;
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
  threads.parallel_for(round.pairs - round.decided, 16 * kPairBlock, [&](int64_t begin, int64_t end) {
    Entry<T>* const better = field.entry + round.byes + round.decided + begin;
    const Entry<T>* const worse = field.entry + round.size - 1 - round.decided - begin;
    blend_pairs(better, worse, end - begin, boost, scale, rounds.nodes(round.node + begin, field.leaders.n));
  });
}

// Play all rounds that are left, starting from a sorted field. Afterwards the first k entries are the slots, in order.
template <class T, class Threads>
void play_rounds(Entry<T>* entries, Progress& progress, int64_t k, const Boost<T>& boost, const Leaders& leaders,
                 const Rounds<T>& rounds, const Threads& threads) {
  Field<T> field{entries, progress.size, progress.size, leaders};
  T scale = progress.played ? rounds.scale[progress.played - 1] : boost.initial_scale;
  T spread = T(0), width = T(0);
  if (boost.adaptive) {
    spread = spread_of(field, boost, threads);
    width = width_of(boost, spread, progress.rounds);
    scale = 2 * width;
  }
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
      scale = scale_of_round(field, round, boost, spread, width, floor, round.source, threads);
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
  rounds.scale[kSpread] = spread;
  progress.played = progress.rounds;
  progress.size = field.size;
}

// Whether a number that is not negative is 0: quicker than a comparison, which has to think of NaN.
KNOCKOUT_INLINE bool is_zero(float x) { return std::bit_cast<uint32_t>(x) == 0; }
KNOCKOUT_INLINE bool is_zero(double x) { return std::bit_cast<uint64_t>(x) == 0; }

// A member of a slot, or an entry on the way to its members: its ref, and its weight in the slot.
template <class T>
struct Branch {
  int32_t ref;
  T weight;
};

// The members of slots [begin, end) that have a weight other than 0, the leader first; ends[slot] is where those of a
// slot end. `branches` starts with the entries of the slots; both arrays have room for all members and one more.
// Returns the array that has the result.
//
// Every round, from the last to the first, replaces its nodes by their pairs, in order: no step waits for another.
template <class T>
Branch<T>* find_members(const Entry<T>* slots, int64_t begin, int64_t end, const Progress& progress, int32_t n,
                        const Rounds<T>& rounds, Branch<T>* branches, Branch<T>* others, int64_t* ends) {
  for (int64_t slot = begin; slot < end; ++slot) {
    branches[slot - begin] = {slots[slot].ref, T(1)};
    ends[slot] = slot - begin + 1;
  }
  int64_t node_end = progress.nodes;
  for (int r = progress.rounds - 1; r >= 0; --r) {
    const int32_t first_node = n + rounds.round[r].node;
    if (rounds.round[r].node == node_end) continue;
    node_end = rounds.round[r].node;
    int64_t from = 0, to = 0;
    for (int64_t slot = begin; slot < end; ++slot) {
      for (; from < ends[slot]; ++from) {
        const Branch<T> branch = branches[from];
        if (branch.ref < first_node) {
          others[to++] = branch;
          continue;
        }
        const Pair pair = rounds.pair[branch.ref - n];
        const T share = rounds.share[branch.ref - n];
        const T better = branch.weight * share, worse = branch.weight * (T(1) - share);
        others[to] = {pair.better, better};
        to += !is_zero(better);
        others[to] = {pair.worse, worse};
        to += !is_zero(worse);
      }
      ends[slot] = to;
    }
    std::swap(branches, others);
  }
  return branches;
}

}  // namespace knockout
