// The smallest and the largest score of a row, and whether all scores are finite.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "compiler.h"
#include "entry.h"

namespace knockout {

template <class T>
struct ScoreRange {
  T low, high;
  bool finite;

  void include(const ScoreRange& other) {
    low = std::min(low, other.low), high = std::max(high, other.high);
    finite = finite && other.finite;
  }
};

KNOCKOUT_INLINE float score_of(float score) { return score; }
KNOCKOUT_INLINE double score_of(double score) { return score; }
template <class T>
KNOCKOUT_INLINE T score_of(const Entry<T>& entry) {
  return entry.score;
}

// The range of an array of scores, or of entries.
template <class Scored>
KNOCKOUT_INLINE auto score_range_of(const Scored* scored, int64_t count) {
  using T = decltype(score_of(*scored));
  T low[kLanes], high[kLanes], zero[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) low[lane] = high[lane] = score_of(scored[0]), zero[lane] = 0;
  const auto include = [&](int64_t lane, T value) {
    low[lane] = value < low[lane] ? value : low[lane];
    high[lane] = value > high[lane] ? value : high[lane];
    zero[lane] += value * T(0);  // becomes NaN if a value is NaN or infinite
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) include(lane, score_of(scored[i + lane]));
  }
  for (; i < count; ++i) include(0, score_of(scored[i]));
  ScoreRange<T> all{low[0], high[0], true};
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    all.low = std::min(all.low, low[lane]);
    all.high = std::max(all.high, high[lane]);
    all.finite = all.finite && zero[lane] == T(0);
  }
  return all;
}

KNOCKOUT_VECTORIZED ScoreRange<float> score_range(const float* score, int64_t count) {
  return score_range_of(score, count);
}
KNOCKOUT_VECTORIZED ScoreRange<double> score_range(const double* score, int64_t count) {
  return score_range_of(score, count);
}
KNOCKOUT_VECTORIZED ScoreRange<float> score_range(const Entry<float>* entry, int64_t count) {
  return score_range_of(entry, count);
}
KNOCKOUT_VECTORIZED ScoreRange<double> score_range(const Entry<double>* entry, int64_t count) {
  return score_range_of(entry, count);
}

// The range of `count` scores, with several threads. They come in parts: scores(begin, end) returns a pointer to those
// of a part. A part fits into the first-level cache.
template <class Threads, class Scores>
auto score_range(int64_t count, const Threads& threads, const Scores& scores) {
  using Range = decltype(score_range(scores(int64_t{0}, int64_t{0}), int64_t{0}));
  constexpr int64_t part = 1 << 12, parts_per_thread = 1 << 4;
  const auto range_of = [&](int64_t begin, int64_t end) {
    Range range = score_range(scores(begin, std::min(begin + part, end)), std::min(part, end - begin));
    for (int64_t at = begin + part; at < end; at += part) {
      range.include(score_range(scores(at, std::min(at + part, end)), std::min(part, end - at)));
    }
    return range;
  };
  constexpr int64_t run = part * parts_per_thread;
  if (count <= run) return range_of(0, count);
  std::vector<Range> ranges((count + run - 1) / run);
  threads.parallel_for(static_cast<int64_t>(ranges.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ranges[i] = range_of(i * run, std::min((i + 1) * run, count));
  });
  for (const Range& each : ranges) ranges[0].include(each);
  return ranges[0];
}

}  // namespace knockout
