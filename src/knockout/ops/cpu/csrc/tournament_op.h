// The operators `tournament` and `tournament_backward`: all rows of a batch.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "select_row.h"
#include "select_row_backward.h"
#include "tensors.h"

namespace knockout {

// member, weight, score, leader, filled, valid, saved: as in knockout/ops/schema.py
using TournamentResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// The arguments that both operators have, checked.
struct TournamentCall {
  Tensor scores;
  std::optional<Tensor> mask;
  Sizes batch;  // scores are (*batch, n)
  RowShape row;
  int64_t rows;

  TournamentCall(const Tensor& scores_, const std::optional<Tensor>& mask_, int64_t k, int64_t numerator)
      : scores(scores_), mask(mask_), batch(checked_batch(scores_, mask_)), row(checked_row(batch, k, numerator)) {
    batch.pop_back();
    rows = product(batch, batch.size());
    scores = as_aligned(scores);
  }

 private:
  static Sizes checked_batch(const Tensor& scores, const std::optional<Tensor>& mask) {
    check_floating(scores, "scores");
    Sizes sizes = sizes_of(scores);
    check(!sizes.empty(), "scores must have shape (*batch, n); got a tensor without dimensions");
    if (mask) {
      check_tensor(*mask, "mask", {ScalarType::Bool}, "bool");
      check_shape(*mask, "mask", sizes, {});
    }
    return sizes;
  }

  static RowShape checked_row(const Sizes& sizes, int64_t k, int64_t numerator) {
    const int64_t n = sizes.back();
    check(n < (int64_t{1} << 30), "scores must have less than 2^30 candidates; got n = ", n);
    check(k >= 1 && k <= n, "k must be from 1 to n = ", n, ", the number of scores in a row; got ", k);
    check(numerator >= 0 && numerator < RowShape::kDenominator, "numerator must be from 0 to 2^30 - 1; got ",
          numerator);
    const RowShape shape(n, k, numerator);
    check(shape.slots_for(n) == k, "k must be the fraction numerator / 2^30 of n = ", n, ", rounded up, which is ",
          shape.slots_for(n), "; got ", k);
    return shape;
  }
};

// The rows of scores and mask, both (*batch, n) with any strides.
template <class S>
class ScoreRows {
 public:
  explicit ScoreRows(const TournamentCall& call)
      : score_(data<S>(call.scores)),
        stride_(call.scores.stride(call.scores.dim() - 1)),
        offset_(call.scores, call.batch),
        mask_(call.mask ? data<uint8_t>(*call.mask) : nullptr),
        mask_stride_(call.mask ? call.mask->stride(call.mask->dim() - 1) : 0) {
    if (call.mask) mask_offset_.emplace(*call.mask, call.batch);
  }
  ScoreRow<S> operator[](int64_t row) const {
    return {score_ + offset_(row), stride_, mask_ ? mask_ + (*mask_offset_)(row) : nullptr, mask_stride_};
  }

 private:
  const S* score_;
  int64_t stride_;
  RowOffsets offset_;
  const uint8_t* mask_;
  int64_t mask_stride_;
  std::optional<RowOffsets> mask_offset_;
};

// A boost as arguments of an operator: a BoostCode of Python. The values of c_tensor and unit_tensor replace c and
// unit.
struct BoostArguments {
  int64_t kind, alpha;
  double c, unit;

  BoostArguments(const std::optional<Tensor>& c_tensor, const std::optional<Tensor>& unit_tensor, int64_t kind_,
                 int64_t alpha_, double c_, double unit_)
      : kind(kind_), alpha(alpha_), c(c_), unit(unit_) {
    check(kind >= 0 && kind <= 3, "kind must be 0, 1, 2 or 3; got ", kind);
    check(alpha >= 0 && alpha <= 2, "alpha must be 0, 1 or 2; got ", alpha);
    check(!unit_tensor || BoostKind(kind) == BoostKind::adaptive,
          "unit_tensor must be None unless kind is 3; got kind ", kind);
    if (c_tensor) c = value_of(*c_tensor, "c_tensor");
    if (unit_tensor) unit = value_of(*unit_tensor, "unit_tensor");
    const double least = BoostKind(kind) == BoostKind::power ? 1.0 : 0.0;
    check(c > least && std::isfinite(c), c_tensor ? "c_tensor" : "c", " must be finite and above ", least, "; got ", c);
    check(unit > 0 && std::isfinite(unit), unit_tensor ? "unit_tensor" : "unit", " must be finite and above 0; got ",
          unit);
  }

  template <class T>
  Boost<T> as() const {
    return Boost<T>(kind, alpha, c, unit);
  }

 private:
  static double value_of(const Tensor& tensor, const char* name) {
    check_floating(tensor, name);
    check_shape(tensor, name, {}, {});
    const Tensor aligned = as_aligned(tensor);
    return dispatch_dtype(aligned, [&](auto s) {
      using S = decltype(s);
      return static_cast<double>(static_cast<ComputeType<S>>(*data<S>(aligned)));
    });
  }
};

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
TournamentResult tournament_of(const TournamentCall& call, const RowCall<ComputeType<S>>& row_call, bool save,
                               bool fixed) {
  using T = ComputeType<S>;
  const int64_t n = call.row.n, k = call.row.k;
  const Sizes per_slot = joined(call.batch, {k});
  Tensor score = empty(per_slot, dtype_of<T>()), leader = empty(per_slot, ScalarType::Long);
  Tensor filled = empty(per_slot, ScalarType::Bool), valid = empty(joined(call.batch, {1}), ScalarType::Bool);
  const SlotOutputs<T> out{data<T>(score), data<int64_t>(leader), data<bool>(filled)};
  const ScoreRows<S> score_rows(call);
  std::vector<RowResult<T>> results(call.rows);
  parallel_rows(call.rows, n, [&](int64_t begin, int64_t end, const auto& threads) {
    Workspace<T> work(call.row);
    for (int64_t row = begin; row < end; ++row) {
      const SlotOutputs<T> row_out{out.score + row * k, out.leader + row * k, out.filled + row * k};
      select_row<T>(score_rows[row], row_call, save, work, row_out, results[row], threads);
    }
  });

  int64_t max_members = fixed ? call.row.max_members() : 1;
  int64_t length = save && fixed ? saved_length<T>().of(n, k) : 0;
  bool* next_valid = data<bool>(valid);
  for (const RowResult<T>& result : results) {
    *next_valid++ = result.valid;
    if (!fixed) max_members = std::max(max_members, result.most_members());
    if (save) length = std::max(length, static_cast<int64_t>(result.saved.size()));
  }
  const Sizes per_member = joined(call.batch, {k, max_members});
  Tensor member = empty(per_member, ScalarType::Int), weight = empty(per_member, dtype_of<T>());
  Tensor saved = empty(joined(call.batch, {length}), ScalarType::Int);
  write_members(results, call.row, max_members, data<int32_t>(member), data<T>(weight));
  write_saved(results, length, data<int32_t>(saved));
  return {member, weight, score, leader, filled, valid, saved};
}

template <class S>
Tensor tournament_backward_of(const TournamentCall& call, const RowCall<ComputeType<S>>& row_call,
                              std::optional<Tensor> d_weight, std::optional<Tensor> d_score, const Tensor& member,
                              Tensor saved) {
  using T = ComputeType<S>;
  const int64_t n = call.row.n, k = call.row.k;
  const int64_t max_members = member.size(member.dim() - 1), members_per_row = k * max_members;
  const int64_t length = saved.size(saved.dim() - 1);
  const auto checked = [&](const Tensor& tensor, const char* name, std::initializer_list<int64_t> sizes) {
    check_tensor(tensor, name, {dtype_of<T>()}, std::is_same_v<T, float> ? "float32" : "float64");
    check_shape(tensor, name, call.batch, sizes);
    return as_contiguous(tensor);
  };
  if (d_weight) d_weight = checked(*d_weight, "d_weight", {k, max_members});
  if (d_score) d_score = checked(*d_score, "d_score", {k});
  saved = as_aligned(saved, sizeof(T));
  const T* const d_weights = d_weight ? data<T>(*d_weight) : nullptr;
  const T* const d_scores = d_score ? data<T>(*d_score) : nullptr;
  Tensor out = empty(joined(call.batch, {n}), call.scores.scalar_type());
  const ScoreRows<S> score_rows(call);
  const int32_t* const members = data<int32_t>(member);
  const int32_t* const saved_data = data<int32_t>(saved);
  S* const gradient = data<S>(out);
  // Errors are not thrown from here: they would cross the threads of PyTorch.
  std::atomic<const char*> problem = nullptr;
  parallel_rows(call.rows, n, [&](int64_t begin, int64_t end, const auto& threads) {
    for (int64_t row = begin; row < end; ++row) {
      const OutputGradients<T> output{d_weights ? d_weights + row * members_per_row : nullptr,
                                      d_scores ? d_scores + row * k : nullptr};
      const char* const found =
          select_row_backward<T>(score_rows[row], row_call, members + row * members_per_row, max_members, output,
                                 saved_data + row * length, length, gradient + row * n, threads);
      if (found) problem = found;
    }
  });
  if (problem) refuse(problem.load());
  return out;
}

inline TournamentResult tournament(Tensor scores, std::optional<Tensor> mask, std::optional<Tensor> c_tensor,
                                   std::optional<Tensor> unit_tensor, int64_t k, int64_t numerator, int64_t kind,
                                   int64_t alpha, double c, double unit, bool by_position, bool save, bool fixed) {
  const TournamentCall call(scores, mask, k, numerator);
  const BoostArguments boost(c_tensor, unit_tensor, kind, alpha, c, unit);
  return dispatch_dtype(call.scores, [&](auto s) {
    using S = decltype(s);
    return tournament_of<S>(call, {call.row, boost.as<ComputeType<S>>(), by_position}, save, fixed);
  });
}

inline Tensor tournament_backward(std::optional<Tensor> d_weight, std::optional<Tensor> d_score, Tensor scores,
                                  std::optional<Tensor> mask, std::optional<Tensor> c_tensor,
                                  std::optional<Tensor> unit_tensor, Tensor member, Tensor saved, int64_t k,
                                  int64_t numerator, int64_t kind, int64_t alpha, double c, double unit,
                                  bool by_position) {
  const TournamentCall call(scores, mask, k, numerator);
  const BoostArguments boost(c_tensor, unit_tensor, kind, alpha, c, unit);
  for (const auto& [tensor, name] : {std::pair(&member, "member"), std::pair(&saved, "saved")}) {
    check_tensor(*tensor, name, {ScalarType::Int}, "int32");
    check(tensor->dim() > 0, name, " must have dimensions; got none");
  }
  const int64_t max_members = member.size(member.dim() - 1);
  check(max_members >= 1, "member must have a last dimension of at least 1; got ", max_members);
  check_shape(member, "member", call.batch, {k, max_members});
  check_shape(saved, "saved", call.batch, {saved.size(saved.dim() - 1)});
  return dispatch_dtype(call.scores, [&](auto s) {
    using S = decltype(s);
    return tournament_backward_of<S>(call, {call.row, boost.as<ComputeType<S>>(), by_position}, d_weight, d_score,
                                     as_contiguous(member), as_contiguous(saved));
  });
}

}  // namespace knockout
