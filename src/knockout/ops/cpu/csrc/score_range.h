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
};

template <class T>
KNOCKOUT_INLINE ScoreRange<T> score_range_of(const T* score, int64_t count) {
  T low[kLanes], high[kLanes], zero[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) low[lane] = high[lane] = score[0], zero[lane] = 0;
  const auto include = [&](int64_t lane, T value) {
    low[lane] = value < low[lane] ? value : low[lane];
    high[lane] = value > high[lane] ? value : high[lane];
    zero[lane] += value * T(0);  // becomes NaN if a value is NaN or infinite
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) include(lane, score[i + lane]);
  }
  for (; i < count; ++i) include(0, score[i]);
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

// The same with several threads.
template <class T, class Threads>
ScoreRange<T> score_range(const T* score, int64_t count, const Threads& threads) {
  constexpr int64_t part = 1 << 16;
  if (count <= part) return score_range(score, count);
  std::vector<ScoreRange<T>> ranges((count + part - 1) / part);
  threads.parallel_for(static_cast<int64_t>(ranges.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ranges[i] = score_range(score + i * part, std::min(part, count - i * part));
  });
  ScoreRange<T> all = ranges[0];
  for (const ScoreRange<T>& each : ranges) {
    all = {std::min(all.low, each.low), std::max(all.high, each.high), all.finite && each.finite};
  }
  return all;
}

}  // namespace knockout
