// The operators `tournament` and `tournament_backward`: all rows of a batch.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "select_row.h"
#include "select_row_backward.h"
#include "tensors.h"

namespace knockout {

// member, weight, score, leader, filled, valid, saved: as in knockout/ops/schema.py
using TournamentResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// The sizes of scores (*batch, n) and of their result.
struct BatchShape {
  Sizes batch;
  RowShape row;
  int64_t rows;

  BatchShape(const Tensor& scores, int64_t k, int64_t numerator)
      : batch(sizes_of(scores)), row(batch.back(), k, numerator), rows(0) {
    batch.pop_back();
    rows = product(batch, batch.size());
    STD_TORCH_CHECK(k >= 1 && k <= row.n && row.n < (int64_t{1} << 30),
                    "knockout: k must be from 1 to n, n below 2^30");
    STD_TORCH_CHECK(row.slots_for(row.n) == k, "knockout: k must be the fraction numerator / 2^30 of n, rounded up");
  }
};

// The rows of scores and mask, both (*batch, n) with any strides.
template <class S>
class ScoreRows {
 public:
  ScoreRows(const Tensor& scores, const std::optional<Tensor>& mask, const Sizes& batch)
      : score_(data<S>(scores)),
        stride_(scores.stride(scores.dim() - 1)),
        offset_(scores, batch),
        mask_(mask ? data<bool>(*mask) : nullptr),
        mask_stride_(mask ? mask->stride(mask->dim() - 1) : 0) {
    if (mask) mask_offset_.emplace(*mask, batch);
  }
  ScoreRow<S> operator[](int64_t row) const {
    return {score_ + offset_(row), stride_, mask_ ? mask_ + (*mask_offset_)(row) : nullptr, mask_stride_};
  }

 private:
  const S* score_;
  int64_t stride_;
  RowOffsets offset_;
  const bool* mask_;
  int64_t mask_stride_;
  std::optional<RowOffsets> mask_offset_;
};

// The boost; its c is the value of the tensor `c_tensor`, if there is one.
template <class T>
Boost<T> make_boost(const std::optional<Tensor>& c_tensor, int64_t kind, int64_t alpha, double c, double unit) {
  if (c_tensor) {
    STD_TORCH_CHECK(c_tensor->dim() == 0, "knockout: c_tensor must have no dimensions");
    c = dispatch_dtype(*c_tensor, "c_tensor", [&](auto s) {
      using S = decltype(s);
      return static_cast<double>(static_cast<ComputeType<S>>(*data<S>(*c_tensor)));
    });
    STD_TORCH_CHECK(c > 0, "knockout: c of a boost must be positive; its tensor holds ", c);
  }
  return Boost<T>(kind, alpha, c, unit);
}

// Write the members and weights of all rows to tensors (*batch, k, max_members), with padding behind those of a slot.
template <class T>
void write_members(const std::vector<RowResult<T>>& results, const RowShape& shape, int64_t max_members,
                   int32_t* members, T* weights) {
  const int64_t k = shape.k, slots = static_cast<int64_t>(results.size()) * k;
  AllThreads().parallel_for(slots, std::max<int64_t>(1, (1 << 14) / max_members), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const RowResult<T>& result = results[i / k];
      const int64_t first = result.begin(i % k), count = result.end[i % k] - first;
      int32_t* const member = members + i * max_members;
      T* const weight = weights + i * max_members;
      std::copy_n(result.member.data() + first, count, member);
      std::fill(member + count, member + max_members, static_cast<int32_t>(shape.n));
      std::copy_n(result.weight.data() + first, count, weight);
      std::fill(weight + count, weight + max_members, result.valid ? T(0) : std::numeric_limits<T>::quiet_NaN());
    }
  });
}

// Write the saved rounds of all rows to a tensor (*batch, length), with zeros behind those of a row.
template <class T>
void write_saved(const std::vector<RowResult<T>>& results, int64_t length, int32_t* out) {
  if (length == 0) return;
  const int64_t rows = static_cast<int64_t>(results.size());
  AllThreads().parallel_for(rows, std::max<int64_t>(1, (1 << 14) / length), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const std::vector<int32_t>& saved = results[row].saved;
      std::fill(std::copy(saved.begin(), saved.end(), out + row * length), out + (row + 1) * length, 0);
    }
  });
}

// Members, weights and saved rounds are as long as the longest of this batch; with `fixed`, as long as any row of this
// shape could need, for callers that must know shapes in advance.
template <class S>
TournamentResult tournament_of(const Tensor& scores, const std::optional<Tensor>& mask, const BatchShape& shape,
                               const Boost<ComputeType<S>>& boost, bool by_position, bool save, bool fixed) {
  using T = ComputeType<S>;
  const int64_t n = shape.row.n, k = shape.row.k;
  const Sizes per_slot = joined(shape.batch, {k});
  Tensor score = empty(per_slot, dtype_of<T>()), leader = empty(per_slot, ScalarType::Long);
  Tensor filled = empty(per_slot, ScalarType::Bool), valid = empty(joined(shape.batch, {1}), ScalarType::Bool);
  const SlotOutputs<T> out{data<T>(score), data<int64_t>(leader), data<bool>(filled)};
  const ScoreRows<S> score_rows(scores, mask, shape.batch);
  std::vector<RowResult<T>> results(shape.rows);
  parallel_rows(shape.rows, n, [&](int64_t begin, int64_t end, const auto& threads) {
    Workspace<T> work(shape.row);
    for (int64_t row = begin; row < end; ++row) {
      const SlotOutputs<T> row_out{out.score + row * k, out.leader + row * k, out.filled + row * k};
      select_row<T>(score_rows[row], shape.row, boost, by_position, save, work, row_out, results[row], threads);
    }
  });

  int64_t max_members = fixed ? shape.row.max_members() : 1;
  int64_t length = save && fixed ? saved_length<T>().of(n, k) : 0;
  bool* next_valid = data<bool>(valid);
  for (const RowResult<T>& result : results) {
    *next_valid++ = result.valid;
    if (!fixed) max_members = std::max(max_members, result.most_members());
    if (save) length = std::max(length, static_cast<int64_t>(result.saved.size()));
  }
  const Sizes per_member = joined(shape.batch, {k, max_members});
  Tensor member = empty(per_member, ScalarType::Int), weight = empty(per_member, dtype_of<T>());
  Tensor saved = empty(joined(shape.batch, {length}), ScalarType::Int);
  write_members(results, shape.row, max_members, data<int32_t>(member), data<T>(weight));
  write_saved(results, length, data<int32_t>(saved));
  return {member, weight, score, leader, filled, valid, saved};
}

template <class S>
Tensor tournament_backward_of(const std::optional<Tensor>& d_weight, const std::optional<Tensor>& d_score,
                              const Tensor& scores, const std::optional<Tensor>& mask, const Tensor& member,
                              const Tensor& saved, const BatchShape& shape, const Boost<ComputeType<S>>& boost) {
  using T = ComputeType<S>;
  const int64_t n = shape.row.n, k = shape.row.k;
  const int64_t max_members = member.size(member.dim() - 1), members_per_row = k * max_members;
  const int64_t length = saved.size(saved.dim() - 1);
  Tensor out = empty(joined(shape.batch, {n}), scores.scalar_type());
  const ScoreRows<S> score_rows(scores, mask, shape.batch);
  const T* const d_weights = d_weight ? data<T>(*d_weight) : nullptr;
  const T* const d_scores = d_score ? data<T>(*d_score) : nullptr;
  const int32_t* const members = data<int32_t>(member);
  int32_t* const saved_data = data<int32_t>(saved);
  S* const gradient = data<S>(out);
  parallel_rows(shape.rows, n, [&](int64_t begin, int64_t end, const auto& threads) {
    for (int64_t row = begin; row < end; ++row) {
      const OutputGradients<T> output{d_weights ? d_weights + row * members_per_row : nullptr,
                                      d_scores ? d_scores + row * k : nullptr};
      select_row_backward<T>(score_rows[row], shape.row, boost, members + row * members_per_row, max_members, output,
                             SavedRounds<T>::read(saved_data + row * length, k), gradient + row * n, threads);
    }
  });
  return out;
}

inline TournamentResult tournament(Tensor scores, std::optional<Tensor> mask, std::optional<Tensor> c_tensor, int64_t k,
                                   int64_t numerator, int64_t kind, int64_t alpha, double c, double unit,
                                   bool by_position, bool save, bool fixed) {
  const BatchShape shape(scores, k, numerator);
  return dispatch_dtype(scores, "scores", [&](auto s) {
    using S = decltype(s);
    return tournament_of<S>(scores, mask, shape, make_boost<ComputeType<S>>(c_tensor, kind, alpha, c, unit),
                            by_position, save, fixed);
  });
}

inline Tensor tournament_backward(std::optional<Tensor> d_weight, std::optional<Tensor> d_score, Tensor scores,
                                  std::optional<Tensor> mask, std::optional<Tensor> c_tensor, Tensor member,
                                  Tensor saved, int64_t k, int64_t numerator, int64_t kind, int64_t alpha, double c,
                                  double unit, bool /* by_position: the saved rounds know */) {
  const BatchShape shape(scores, k, numerator);
  if (d_weight) d_weight = as_contiguous(*d_weight);
  if (d_score) d_score = as_contiguous(*d_score);
  member = as_contiguous(member), saved = as_contiguous(saved);
  return dispatch_dtype(scores, "scores", [&](auto s) {
    using S = decltype(s);
    return tournament_backward_of<S>(d_weight, d_score, scores, mask, member, saved, shape,
                                     make_boost<ComputeType<S>>(c_tensor, kind, alpha, c, unit));
  });
}

}  // namespace knockout
