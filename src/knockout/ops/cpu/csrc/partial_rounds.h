// Partial rounds: the first rounds of a long row, in which only the ranks that can matter are sorted and blended.
//
// The members of a slot are a handful of candidates, however large n is. If the scales of the rounds are known in
// advance (a fixed boost; or a relative one whose mean gaps cannot exceed the floor), the sizes of the buckets tell
// which ranks those are. This is planned from the last partial round to the first: a rank needed after a round needs
// the same rank before it, and that of its opponent unless a bound shows the pair to be decided. Then the needed ranks
// are sorted, and blended from the first round to the last.
//
// Why this is exact: a blend is better - loss(gap), where the loss is bounded, rises up to some gap, `peak_gap`, and
// falls from there on. Therefore
//   - the entry at rank i of a field is never above the candidate of rank i, and not below it by more than the bounds
//     of the losses add up to;
//   - pairs with gaps above the peak have blends in the order of the pairs, so that their ranks are known without
//     sorting; for the blends of closer pairs there is an upper bound.
// A few pairs on both sides of the needed ranks are blended and sorted with them. The blends at needed ranks must then
// be clearly separated from all that were not computed. If they are not, mostly because of ties, all rounds are played
// in full: see play_rounds in forward.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "active_candidates.h"
#include "bucket_bounds.h"
#include "bucketed_row.h"
#include "pair_block.h"

namespace knockout {

template <class T>
class PartialRounds {
 public:
  // The number of rounds to play partially: as long as the buckets are small enough for useful bounds.
  static int count(const ActiveCandidates<T>& candidates, const Progress& progress, int64_t k, const Boost<T>& boost) {
    const int64_t min_size = kMinBuckets * progress.size / std::max<int64_t>(1, bucket_count_for(progress.size));
    int rounds = 0;
    // Logits of a power boost do not depend on gaps alone; the scales of an adaptive one depend on blends of all pairs.
    if (progress.size < 2048 || boost.kind == BoostKind::power || boost.adaptive) return 0;
    if (boost.kind == BoostKind::relative && spread_exceeds(candidates, double(boost.initial_scale) / 2)) return 0;
    while (rounds < progress.rounds && (k << (progress.rounds - rounds)) >= min_size) ++rounds;
    return rounds;
  }

  PartialRounds(const BucketedRow<T>& row, const ActiveCandidates<T>& candidates, const Progress& progress, int64_t k,
                const Boost<T>& boost, const Leaders& leaders)
      : row_(row),
        bounds_(row.start(), row.buckets(), double(candidates.low), double(candidates.high),
                double(std::numeric_limits<T>::epsilon())),
        rounding_(4 * double(std::numeric_limits<T>::epsilon()) *
                  std::max(std::abs(double(candidates.low)), std::abs(double(candidates.high)))),
        active_(progress.size),
        k_(k),
        boost_(boost),
        leaders_(leaders),
        all_rounds_(progress.rounds),
        rounds_(count(candidates, progress, k, boost)),
        margin_(margin_for(rounding_ / (double(candidates.high) - double(candidates.low)), double(progress.size))) {}

  // Play the partial rounds, if possible. On success `entries` has the field after them, sorted; or the slots, if these
  // were all rounds. On failure `progress` is unchanged.
  template <class Threads>
  bool play(const Rounds<T>& rounds, Entry<T>* entries, Progress& progress, const Threads& threads) {
    if (!plan(rounds)) return false;
    row_.sort(needed_[0], threads);
    int64_t nodes = 0;
    for (int r = 0; r < rounds_; ++r) {
      rounds.round[r].node = static_cast<int32_t>(nodes);
      for (const RankRange& range : needed_[r + 1]) {
        if (!blend(r, range, rounds, entries, nodes)) return false;
      }
    }
    progress.played = progress.partial = rounds_;
    progress.nodes = nodes;
    progress.size = k_ << (all_rounds_ - rounds_);
    return true;
  }

 private:
  // Whether the mean gap of the first round is probably much larger than the floor: then partial rounds would fail
  // after all candidates were counted. Judged by a sample, on which no result depends.
  static bool spread_exceeds(const ActiveCandidates<T>& candidates, double floor) {
    constexpr int64_t sampled = 64;
    const int64_t step = candidates.count / sampled;
    double mean = 0, distance = 0;
    for (int64_t i = 0; i < sampled; ++i) mean += double(candidates.score[i * step]) / sampled;
    for (int64_t i = 0; i < sampled; ++i) distance += std::abs(double(candidates.score[i * step]) - mean) / sampled;
    return 2 * distance > 1.25 * floor;
  }

  static constexpr int64_t kBoundBlocks = 8;   // blocks of ranks, each with a bound of its own
  static constexpr int64_t kMinBuckets = 128;  // that a field must span to be played partially

  struct RoundPlan {
    int64_t size, half, byes;
    T scale;
    double decided_gap;  // pairs with at least this gap are decided
    double peak_gap;     // blends of pairs with larger gaps are in the order of the pairs
    int64_t undecided;   // the first rank whose pair may be undecided
    double close_bound;  // upper bound on the blends of pairs with smaller gaps than peak_gap
    int64_t opponent(int64_t rank) const { return size - 1 + byes - rank; }
  };

  // Bounds on the score at a rank of the field before round r.
  double upper(int64_t rank) const { return bounds_.upper(row_.bucket_of(rank)); }
  double lower(int r, int64_t rank) const {
    double bound = bounds_.lower(row_.bucket_of(rank));
    for (int q = 0; q < r; ++q) bound -= rank >= plans_[q].undecided ? max_loss_ * plans_[q].decided_gap : 0.0;
    return bound;
  }

  // The first rank whose pair may have a smaller gap than `limit`: gaps fall with the rank.
  int64_t first_below(int r, const RoundPlan& plan, double limit) const {
    int64_t low = plan.byes, high = plan.half;
    while (low < high) {
      const int64_t rank = low + (high - low) / 2;
      if (lower(r, rank) - upper(plan.opponent(rank)) >= limit) {
        low = rank + 1;
      } else {
        high = rank;
      }
    }
    return low;
  }

  // RoundPlan::close_bound: better - loss(gap), where the loss rises with the gap.
  double bound_close_blends(int r, const RoundPlan& plan) const {
    double bound = -std::numeric_limits<double>::infinity();
    const int64_t first = first_below(r, plan, plan.peak_gap), count = plan.half - first;
    for (int64_t block = 0; block < kBoundBlocks && count > 0; ++block) {
      const int64_t begin = first + count * block / kBoundBlocks;
      const int64_t last = std::max(begin, first + count * (block + 1) / kBoundBlocks - 1);
      const double gap = std::clamp(lower(r, last) - upper(plan.opponent(last)), 0.0, plan.peak_gap);
      bound = std::max(bound, upper(begin) - (1 - share(plan, gap)) * gap);
    }
    return bound;
  }

  double share(const RoundPlan& plan, double gap) const {
    const double t = double(boost_.c) * gap / (boost_.kind == BoostKind::relative ? double(plan.scale) : 1.0);
    if (boost_.alpha == Alpha::softmax) return share_of<Alpha::softmax>(t);
    return boost_.alpha == Alpha::entmax ? share_of<Alpha::entmax>(t) : share_of<Alpha::sparsemax>(t);
  }

  // Whether the mean gap of a round is certainly below the floor.
  bool mean_gap_below(int r, const RoundPlan& plan, double floor) const {
    const auto sum_before = [&](int64_t rank) { return bounds_.sum_of_buckets(rank, row_.bucket_of(rank)); };
    const int64_t pairs = plan.half - plan.byes;
    const double middle = sum_before(plan.half);
    double sum = bounds_.upper_difference(middle - sum_before(plan.byes), sum_before(plan.size) - middle, pairs);
    for (int q = 0; q < r; ++q) {
      sum += max_loss_ * plans_[q].decided_gap *
             double(std::max<int64_t>(0, plan.size - std::max(plan.half, plans_[q].undecided)));
    }
    return sum < 0.999 * floor * double(pairs);
  }

  // Plan all partial rounds, and find the needed ranks. Returns false if the scales cannot be known in advance.
  bool plan(const Rounds<T>& rounds) {
    if (!bounds_.finite() || margin_ > active_ / 64) return false;
    // The peak gap, and a bound on the loss, as fractions of the gap at which a pair is decided.
    const double peak_gaps[] = {0.0731, 0.4, 0.5}, max_losses[] = {0.0160, 0.0920, 0.1251};
    max_loss_ = max_losses[static_cast<int>(boost_.alpha)];
    T scale = boost_.initial_scale;
    for (int r = 0; r < rounds_; ++r) {
      RoundPlan plan{};
      plan.half = k_ << (all_rounds_ - r - 1);
      plan.size = r ? 2 * plan.half : active_;
      plan.byes = 2 * plan.half - plan.size;
      if (boost_.kind == BoostKind::relative) {
        scale = std::max(scale / 2, std::numeric_limits<T>::min());
        if (!mean_gap_below(r, plan, double(scale))) return false;
      }
      plan.scale = scale;
      const double unit = (boost_.kind == BoostKind::relative ? double(scale) : 1.0) / double(boost_.c);
      plan.decided_gap = double(boost_.decisive_logit()) * unit * (1 + 1e-6);
      if (!std::isfinite(plan.decided_gap)) return false;  // no pair is ever decided: all ranks are needed
      plan.peak_gap = peak_gaps[static_cast<int>(boost_.alpha)] * plan.decided_gap * (1 + 1e-2);
      plan.undecided = first_below(r, plan, plan.decided_gap);
      plan.close_bound = bound_close_blends(r, plan);
      plans_.push_back(plan);
      const auto size = static_cast<int32_t>(plan.size), byes = static_cast<int32_t>(plan.byes);
      rounds.round[r] = {size, byes, static_cast<int32_t>(plan.half) - byes, 0, 0, ScaleSource::floor};
      rounds.scale[r] = scale;
    }
    needed_.assign(rounds_ + 1, {});
    needed_[rounds_] = {{0, k_ << (all_rounds_ - rounds_)}};
    for (int r = rounds_ - 1; r >= 0; --r) {
      const RoundPlan& plan = plans_[r];
      for (const RankRange& range : needed_[r + 1]) {
        const RankRange wide = with_margin(r, range);
        needed_[r].push_back(wide);
        const int64_t first = std::max(wide.begin, plan.undecided);
        if (first < wide.end) needed_[r].push_back({plan.opponent(wide.end - 1), plan.opponent(first) + 1});
      }
      merge_ranges(needed_[r], 2 * margin_);
    }
    return true;
  }

  static int64_t margin_for(double relative_rounding, double size) {
    return static_cast<int64_t>(std::min(3 + 16 * relative_rounding * size, size));
  }

  // No margin is necessary in the last round, whose slots stay in the order of the pairs, nor for decided pairs, whose
  // better entries keep their order.
  RankRange with_margin(int r, const RankRange& range) const {
    const RoundPlan& plan = plans_[r];
    if (r == all_rounds_ - 1 || range.end <= plan.undecided) return range;
    return {std::max<int64_t>(0, range.begin - margin_), std::min(plan.half, range.end + margin_)};
  }

  // Blend the undecided pairs of a needed range, and sort the blends. Returns false if they are not clearly separated
  // from the blends around them.
  bool blend(int r, const RankRange& range, const Rounds<T>& rounds, Entry<T>* entries, int64_t& nodes) const {
    const RoundPlan& plan = plans_[r];
    const RankRange wide = with_margin(r, range);
    const int64_t first = std::max(wide.begin, plan.undecided);
    if (first >= wide.end) return true;
    const int64_t count = wide.end - first, last = wide.end - 1;
    const T first_gap = entries[first].score - entries[plan.opponent(first)].score;
    const T last_gap = entries[last].score - entries[plan.opponent(last)].score;
    blend_pairs(entries + first, entries + plan.opponent(first), count, boost_, plan.scale,
                rounds.nodes(nodes, leaders_.n));
    nodes += count;
    const T first_blend = entries[first].score, last_blend = entries[last].score;
    if (r == all_rounds_ - 1) return true;
    sort_entries(entries + first, wide.end - first, leaders_, OneThread());
    if (wide.end < plan.half) {  // the blends of the next pairs must be below
      if (!(double(last_gap) >= plan.peak_gap)) return false;
      const double bound = std::max(double(last_blend) + rounding_, plan.close_bound);
      if (range.end > first && !(double(entries[range.end - 1].score) > bound)) return false;
    }
    // The blends of the pairs before must be above.
    if (first > wide.begin) return is_better(entries[first - 1], entries[first], leaders_);
    if (first == 0) return true;
    if (!(double(first_gap) >= plan.peak_gap)) return false;
    return double(entries[std::max(range.begin, first)].score) < double(first_blend) - rounding_;
  }

  const BucketedRow<T>& row_;
  BucketBounds bounds_;
  double rounding_;  // upper bound on the rounding error of a blend
  int64_t active_, k_;
  const Boost<T>& boost_;
  Leaders leaders_;
  int all_rounds_, rounds_;
  int64_t margin_;  // ranks beyond the needed ones: more where scores lie closer together than rounding errors
  double max_loss_ = 0;
  std::vector<RoundPlan> plans_;
  std::vector<std::vector<RankRange>> needed_;  // ranks before each round, and after the last
};

}  // namespace knockout
