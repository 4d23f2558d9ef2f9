// The input of one row: its shape, its scores, and the candidates that are active.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "buffer.h"
#include "half.h"
#include "score_range.h"

namespace knockout {

// The sizes of a row's result, as Quota in Python: all k slots, or, if numerator is not 0, the fraction
// numerator / 2^30 of the row's active candidates, rounded up.
struct RowShape {
  int64_t n, k, numerator;
  int rounds = 0;  // enough for every row of this shape

  RowShape(int64_t n_, int64_t k_, int64_t numerator_ = 0) : n(n_), k(k_), numerator(numerator_) {
    while (numerator ? (numerator << rounds) < kDenominator && max_members() < n : (k << rounds) < n) ++rounds;
  }
  int64_t max_members() const { return int64_t{1} << rounds; }  // of a slot
  int64_t slots_for(int64_t active) const {
    return numerator ? (active * numerator + kDenominator - 1) / kDenominator : k;
  }

  static constexpr int64_t kDenominator = int64_t{1} << 30;
};

// A row of scores of type S as it lies in memory.
template <class S>
struct ScoreRow {
  const S* score;
  int64_t stride;
  const bool* mask;  // null if there is none
  int64_t mask_stride;

  // Whether a candidate is active: neither masked out nor with a score of -inf.
  bool active(int64_t i) const {
    using C = ComputeType<S>;
    return (!mask || mask[i * mask_stride]) && static_cast<C>(score[i * stride]) != -std::numeric_limits<C>::infinity();
  }
};

// The active candidates of a row.
template <class T>
struct ActiveCandidates {
  const T* score;
  const int32_t* index;  // null if all candidates are active
  int64_t count;
  T low, high;  // the smallest and the largest score
  bool valid;   // false if a score is NaN or +inf
};

// Working memory for find_active.
template <class T>
class CandidateMemory {
 public:
  T* scores(int64_t n) {
    if (!score_.get()) score_ = Buffer<T>(n);
    return score_.get();
  }
  int32_t* indices(int64_t n) {
    if (!index_.get()) index_ = Buffer<int32_t>(n);
    return index_.get();
  }

 private:
  Buffer<T> score_;
  Buffer<int32_t> index_;
};

template <class T, class S, class Threads>
ActiveCandidates<T> find_active(const ScoreRow<S>& row, int64_t n, CandidateMemory<T>& memory, const Threads& threads) {
  const T* score = nullptr;
  if constexpr (std::is_same_v<T, S>) {
    if (row.stride == 1) score = row.score;
  }
  if (!score) {
    T* copy = memory.scores(n);
    threads.parallel_for(n, 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) copy[i] = static_cast<T>(row.score[i * row.stride]);
    });
    score = copy;
  }
  if (!row.mask) {
    const ScoreRange<T> range = score_range(score, n, threads);
    if (range.finite) return {score, nullptr, n, range.low, range.high, true};
  }
  // A mask, or scores that are not finite: copy the active candidates.
  T* active_score = memory.scores(n);
  int32_t* index = memory.indices(n);
  int64_t count = 0;
  bool valid = true;
  for (int64_t i = 0; i < n; ++i) {
    if (!row.active(i)) continue;
    valid = valid && std::isfinite(score[i]);
    active_score[count] = score[i];
    index[count++] = static_cast<int32_t>(i);
  }
  if (count == 0 || !valid) return {active_score, index, count, T(0), T(0), valid};
  const ScoreRange<T> range = score_range(active_score, count, threads);
  return {active_score, index, count, range.low, range.high, true};
}

}  // namespace knockout
