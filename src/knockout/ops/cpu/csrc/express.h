// The first rounds of a long row, without most of them.
//
// In the end a slot draws on a handful of candidates, whatever n is. When the scales of the rounds are known beforehand
// (a fixed boost; or a relative one whose mean gaps cannot rise above the floor) it can be told from the counts of the
// buckets which ranks those are, round by round, from the last to the first: a small field asks for ranks of the field
// before it, and for their opponents, unless a bound says that the pair is decided. Then the ranks asked for are
// sorted, and blended upwards.
//
// What makes it exact: a blend is a - f(gap), where f is bounded, rises up to some `peak` and falls from there on. So
//   - the field at rank i is never above the candidate of rank i, nor below it by more than the bounds of f add up to;
//   - among pairs farther apart than the peak, blends come in the order of the pairs, and ranks need no sorting; for
//     closer pairs there is a bound.
// Pairs a little beyond the ranks asked for are blended too, and sorted with them; the blends asked for must be clear
// of what is not known. If they are not (ties, mostly), everything is played: see play() in tournament.h.
#pragma once

#include <algorithm>
#include <vector>

#include "tournament.h"

namespace knockout {

// Sorted, and those that touch or nearly touch joined.
inline void join(std::vector<Span>& spans, int64_t slack) {
  std::sort(spans.begin(), spans.end(), [](const Span& one, const Span& other) { return one.begin < other.begin; });
  size_t last = 0;
  for (const Span& span : spans) {
    if (last && span.begin <= spans[last - 1].end + slack) {
      spans[last - 1].end = std::max(spans[last - 1].end, span.end);
    } else {
      spans[last++] = span;
    }
  }
  spans.resize(last);
}

// What the buckets tell about ranks that nobody has looked at.
class Bounds {
 public:
  Bounds(const int32_t* start, int64_t buckets, double low, double high, double epsilon)
      : start_(start),
        total_(buckets + 1),
        high_(high),
        width_((high - low) / double(buckets)),
        rounding_(16 * epsilon * (std::abs(high) + std::abs(low))) {
    total_[0] = 0;
    for (int64_t b = 0; b < buckets; ++b) total_[b + 1] = total_[b] + int64_t{start[b + 1] - start[b]} * b;
  }

  bool finite() const { return width_ + rounding_ < std::numeric_limits<double>::infinity(); }

  // Of the score in a bucket.
  double above(int64_t bucket) const { return high_ - double(bucket) * width_ + rounding_; }
  double below(int64_t bucket) const { return high_ - double(bucket + 1) * width_ - rounding_; }

  // Of the buckets' numbers, summed over all ranks before this one, which is in this bucket.
  double number_sum(int64_t rank, int64_t bucket) const {
    return double(total_[bucket]) + double(rank - start_[bucket]) * double(bucket);
  }
  // A bound of the sum of the scores of `many` ranks, minus that of as many others, from the sums of their buckets'
  // numbers.
  double difference(double numbers, double others, int64_t many) const {
    return (others - numbers) * width_ + double(many) * (width_ + 2 * rounding_);
  }

 private:
  const int32_t* start_;
  Buffer<int64_t> total_;
  double high_, width_, rounding_;
};

template <class T>
class Express {
 public:
  // How many rounds to play so: as long as the buckets are fine enough to tell something.
  static int rounds_of(const Game& game, int64_t k, const Boost<T>& boost) {
    const int64_t least = kLeast * game.size / std::max<int64_t>(1, buckets_for(game.size));
    int rounds = 0;
    if (game.size < 2048 || boost.kind == Kind::power) return 0;  // its logits do not depend on gaps alone
    while (rounds < game.rounds && (k << (game.rounds - rounds)) >= least) ++rounds;
    return rounds;
  }

  Express(const Field<T>& field, const Entrants<T>& entrants, const Game& game, int64_t k, const Boost<T>& boost,
          const Leaders& leaders)
      : field_(field),
        bounds_(field.start(), field.buckets(), double(entrants.low), double(entrants.high),
                double(std::numeric_limits<T>::epsilon())),
        slack_(4 * double(std::numeric_limits<T>::epsilon()) *
               std::max(std::abs(double(entrants.low)), std::abs(double(entrants.high)))),
        alive_(game.size),
        k_(k),
        boost_(boost),
        leaders_(leaders),
        all_rounds_(game.rounds),
        rounds_(rounds_of(game, k, boost)),
        margin_(margin_for(slack_ / (double(entrants.high) - double(entrants.low)), double(game.size))) {}

  // Play as many rounds as can be played so, if they can. The field that is left, sorted (or, if there is no round
  // left, the slots) is in `entries` then.
  template <class Team>
  bool operator()(const Record<T>& record, Entry<T>* entries, Game& game, const Team& team) {
    if (!plan(record)) return false;
    field_.sort(asked_[0], team);
    int64_t nodes = 0;
    for (int r = 0; r < rounds_; ++r) {
      record.round[r].node = static_cast<int32_t>(nodes);
      for (const Span& span : asked_[r + 1]) {
        if (!blend(r, span, record, entries, nodes)) return false;
      }
    }
    game.played = game.hasty = rounds_;
    game.nodes = nodes;
    game.size = k_ << (all_rounds_ - rounds_);
    return true;
  }

 private:
  static constexpr int64_t kBlocks = 8;   // of ranks, for a bound
  static constexpr int64_t kLeast = 128;  // buckets that a field must fill, or rounds are played out

  struct Level {
    int64_t size, half, byes;
    T scale;
    double reach, peak;  // gaps: from `reach` on decided, above `peak` in order
    int64_t undecided;   // the first rank that may be
    double close;        // no pair closer than the peak has a blend above this
    int64_t mirror(int64_t rank) const { return size - 1 + byes - rank; }
  };

  // Bounds on the score at a rank of the field of round r.
  double above(int64_t rank) const { return bounds_.above(field_.bucket_of(rank)); }
  double below(int r, int64_t rank) const {
    double bound = bounds_.below(field_.bucket_of(rank));
    for (int q = 0; q < r; ++q) bound -= rank >= levels_[q].undecided ? lowered_ * levels_[q].reach : 0.0;
    return bound;
  }

  // The first rank whose gap may be below some limit: gaps fall with the rank.
  int64_t first_below(int r, const Level& level, double limit) const {
    int64_t low = level.byes, high = level.half;
    while (low < high) {
      const int64_t rank = low + (high - low) / 2;
      if (below(r, rank) - above(level.mirror(rank)) >= limit) {
        low = rank + 1;
      } else {
        high = rank;
      }
    }
    return low;
  }

  // No pair closer than the peak has a blend above this: better - f(gap), where f rises with the gap.
  double bound_of_close(int r, const Level& level) const {
    double bound = -std::numeric_limits<double>::infinity();
    const int64_t first = first_below(r, level, level.peak), count = level.half - first;
    for (int64_t block = 0; block < kBlocks && count > 0; ++block) {
      const int64_t begin = first + count * block / kBlocks;
      const int64_t last = std::max(begin, first + count * (block + 1) / kBlocks - 1);
      const double gap = std::clamp(below(r, last) - above(level.mirror(last)), 0.0, level.peak);
      bound = std::max(bound, above(begin) - (1 - share(level, gap)) * gap);
    }
    return bound;
  }

  double share(const Level& level, double gap) const {
    const double t = double(boost_.c) * gap / (boost_.kind == Kind::relative ? double(level.scale) : 1.0);
    if (boost_.alpha == Alpha::softmax) return share_of<Alpha::softmax>(t);
    return boost_.alpha == Alpha::entmax ? share_of<Alpha::entmax>(t) : share_of<Alpha::sparsemax>(t);
  }

  // Whether the mean gap of a round is surely below the floor.
  bool at_floor(int r, const Level& level, double floor) const {
    const auto until = [&](int64_t rank) { return bounds_.number_sum(rank, field_.bucket_of(rank)); };
    const double middle = until(level.half), pairs = double(level.half - level.byes);
    double total = bounds_.difference(middle - until(level.byes), until(level.size) - middle, level.half - level.byes);
    for (int q = 0; q < r; ++q) {
      total += lowered_ * levels_[q].reach *
               double(std::max<int64_t>(0, level.size - std::max(level.half, levels_[q].undecided)));
    }
    return total < 0.999 * floor * pairs;
  }

  // Scales, bounds, and who is asked for.
  bool plan(const Record<T>& record) {
    if (!bounds_.finite() || margin_ > alive_ / 64) return false;
    // In units of the gap at which a pair is decided: where f has its peak, and a bound of it there.
    const double peaks[] = {0.0731, 0.4, 0.5}, bounds[] = {0.0160, 0.0920, 0.1251};
    lowered_ = bounds[static_cast<int>(boost_.alpha)];
    T scale = boost_.start;
    for (int r = 0; r < rounds_; ++r) {
      Level level{};
      level.half = k_ << (all_rounds_ - r - 1);
      level.size = r ? 2 * level.half : alive_;
      level.byes = 2 * level.half - level.size;
      if (boost_.kind == Kind::relative) {
        scale = std::max(scale / 2, std::numeric_limits<T>::min());
        if (!at_floor(r, level, double(scale))) return false;
      }
      level.scale = scale;
      const double unit = (boost_.kind == Kind::relative ? double(scale) : 1.0) / double(boost_.c);
      level.reach = double(boost_.decided()) * unit * (1 + 1e-6);
      level.peak = peaks[static_cast<int>(boost_.alpha)] * level.reach * (1 + 1e-2);
      level.undecided = first_below(r, level, level.reach);
      level.close = bound_of_close(r, level);
      levels_.push_back(level);
      record.round[r] = {static_cast<int32_t>(level.size),
                         static_cast<int32_t>(level.byes),
                         static_cast<int32_t>(level.half - level.byes),
                         0,
                         0,
                         Source::floor};
      record.scale[r] = scale;
    }
    asked_.assign(rounds_ + 1, {});
    asked_[rounds_] = {{0, k_ << (all_rounds_ - rounds_)}};
    for (int r = rounds_ - 1; r >= 0; --r) {
      const Level& level = levels_[r];
      for (const Span& span : asked_[r + 1]) {
        const Span wide = widened(r, span);
        asked_[r].push_back(wide);
        const int64_t first = std::max(wide.begin, level.undecided);
        if (first < wide.end) asked_[r].push_back({level.mirror(wide.end - 1), level.mirror(first) + 1});
      }
      join(asked_[r], 2 * margin_);
    }
    return true;
  }

  static int64_t margin_for(double slack, double size) {
    return static_cast<int64_t>(std::min(3 + 16 * slack * size, size));
  }

  // The last round's order is that of its pairs, and those who win outright keep theirs: no margin needed.
  Span widened(int r, const Span& span) const {
    const Level& level = levels_[r];
    if (r == all_rounds_ - 1 || span.end <= level.undecided) return span;
    return {std::max<int64_t>(0, span.begin - margin_), std::min(level.half, span.end + margin_)};
  }

  bool blend(int r, const Span& span, const Record<T>& record, Entry<T>* entries, int64_t& nodes) const {
    const Level& level = levels_[r];
    const Span wide = widened(r, span);
    const int64_t first = std::max(wide.begin, level.undecided);
    if (first >= wide.end) return true;
    T low_end = 0, high_end = 0;  // blends of the outermost pairs
    T gap_ends[2] = {0, 0};
    Meeting<T> m;
    for (int64_t at = first; at < wide.end; at += kPairs) {
      const int64_t count = std::min(kPairs, wide.end - at);
      for (int64_t i = 0; i < count; ++i) m.better[i] = entries[at + i].score;
      for (int64_t i = 0; i < count; ++i) m.worse[i] = entries[level.mirror(at + i)].score;
      meet(m, count, boost_, level.scale);
      if (at == first) high_end = m.blend[0], gap_ends[0] = m.gap[0];
      low_end = m.blend[count - 1], gap_ends[1] = m.gap[count - 1];
      note(
          m, count, [&](int64_t i) { return entries[at + i].ref; },
          [&](int64_t i) { return entries[level.mirror(at + i)].ref; }, leaders_, record, nodes);
      for (int64_t i = 0; i < count; ++i) {
        entries[at + i] = {m.blend[i], static_cast<int32_t>(leaders_.n + nodes + i)};
      }
      nodes += count;
    }
    if (r == all_rounds_ - 1) return true;
    sort_entries(entries + first, wide.end - first, leaders_, Alone());
    if (wide.end < level.half) {  // clear of the blends below
      if (!(double(gap_ends[1]) >= level.peak)) return false;
      const double bound = std::max(double(low_end) + slack_, level.close);
      if (span.end > first && !(double(entries[span.end - 1].score) > bound)) return false;
    }
    if (first > wide.begin) return is_better(entries[first - 1], entries[first], leaders_);
    if (first == 0) return true;
    if (!(double(gap_ends[0]) >= level.peak)) return false;
    return double(entries[std::max(span.begin, first)].score) < double(high_end) - slack_;
  }

  const Field<T>& field_;
  Bounds bounds_;
  double slack_;  // by which a blend may be off by rounding
  int64_t alive_, k_;
  const Boost<T>& boost_;
  Leaders leaders_;
  int all_rounds_, rounds_;
  int64_t margin_;  // pairs beyond the ranks asked for: some more where scores lie closer together than rounding
  double lowered_ = 0;
  std::vector<Level> levels_;
  std::vector<std::vector<Span>> asked_;
};

}  // namespace knockout
