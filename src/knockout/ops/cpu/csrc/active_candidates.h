// The input of one row: its shape, its scores, and the candidates that are active.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "buffer.h"
#include "half.h"
#include "read_once.h"
#include "score_range.h"

namespace knockout {

// The sizes of a row's result, as Quota in Python: all k slots, or, if numerator is not 0, the fraction
// numerator / 2^30 of the row's active candidates, rounded up; or, with counts, as many as the row wants, from 1 to k.
struct RowShape {
  int64_t n, k, numerator;
  int64_t wanted;  // slots that a row fills if it has enough candidates, and there is no fraction
  int64_t least;   // of the wanted slots of all rows: every node eliminates a candidate, and so many remain
  int rounds = 0;  // enough for every row of this shape

  RowShape(int64_t n_, int64_t k_, int64_t numerator_ = 0, bool counts = false)
      : n(n_), k(k_), numerator(numerator_), wanted(k_), least(counts ? 1 : k_) {
    while (numerator ? (numerator << rounds) < kDenominator && max_members() < n : (least << rounds) < n) ++rounds;
  }
  int64_t max_members() const { return int64_t{1} << rounds; }  // of a slot
  int64_t slots_for(int64_t active) const {
    return numerator ? (active * numerator + kDenominator - 1) / kDenominator : wanted;
  }

  static constexpr int64_t kDenominator = int64_t{1} << 30;
};

// A row of scores of type S as it lies in memory.
template <class S>
struct ScoreRow {
  const S* score;
  int64_t stride;
  const uint8_t* mask;  // null if there is none; any number but 0 is true
  int64_t mask_stride;

  // Whether a candidate with this score is active: neither masked out nor with a score of -inf.
  template <class T>
  bool active(int64_t i, T its_score) const {
    return (!mask || mask[i * mask_stride] != 0) && its_score != -std::numeric_limits<T>::infinity();
  }
  bool active(int64_t i) const { return active(i, static_cast<ComputeType<S>>(score[i * stride])); }
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

// Copy the scores of a row, and find their range. All that follows works on the copy: another thread may change the
// caller's memory at any time, and numbers that change would lead a sort out of its arrays.
template <class T, class S, class Threads>
ScoreRange<T> copy_scores(const ScoreRow<S>& row, int64_t n, T* copy, const Threads& threads) {
  return score_range(n, threads, [&](int64_t begin, int64_t end) {
    if (row.stride == 1) {
      for (int64_t i = begin; i < end; ++i) copy[i] = static_cast<T>(row.score[i]);
    } else {
      for (int64_t i = begin; i < end; ++i) copy[i] = static_cast<T>(row.score[i * row.stride]);
    }
    finish_reading();
    return copy + begin;
  });
}

template <class T, class S, class Threads>
ActiveCandidates<T> find_active(const ScoreRow<S>& row, int64_t n, CandidateMemory<T>& memory, const Threads& threads) {
  T* const score = memory.scores(n);
  ScoreRange<T> range = copy_scores(row, n, score, threads);
  if (!row.mask && range.finite) return {score, nullptr, n, range.low, range.high, true};
  // A mask, or scores that are not finite: move the active candidates to the front.
  int32_t* const index = memory.indices(n);
  int64_t count = 0;
  bool valid = true;
  for (int64_t i = 0; i < n; ++i) {
    if (!row.active(i, score[i])) continue;
    valid = valid && std::isfinite(score[i]);
    score[count] = score[i];
    index[count++] = static_cast<int32_t>(i);
  }
  if (count == 0 || !valid) return {score, index, count, T(0), T(0), valid};
  range = score_range(count, threads, [&](int64_t begin, int64_t) { return score + begin; });
  return {score, index, count, range.low, range.high, true};
}

}  // namespace knockout
