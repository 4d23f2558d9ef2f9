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

  TournamentCall(const Tensor& scores_, const std::optional<Tensor>& mask_, int64_t k, int64_t numerator,
                 const std::optional<Tensor>& counts)
      : scores(scores_),
        mask(mask_),
        batch(checked_batch(scores_, mask_)),
        row(checked_row(batch, k, numerator, counts.has_value())) {
    batch.pop_back();
    rows = product(batch, batch.size());
    scores = as_aligned(scores);
    if (counts) read_counts(*counts);
  }

  // The call as it is for a row, which `own` may be used for.
  template <class T>
  const RowCall<T>& of_row(int64_t index, const RowCall<T>& all, std::optional<RowCall<T>>& own) const {
    return wanted_.empty() ? all : own.emplace(all.wanting(wanted_[static_cast<size_t>(index)]));
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

  static RowShape checked_row(const Sizes& sizes, int64_t k, int64_t numerator, bool counts) {
    const int64_t n = sizes.back();
    check(n < (int64_t{1} << 30), "scores must have less than 2^30 candidates; got n = ", n);
    check(k >= 1 && k <= n, "k must be from 1 to n = ", n, ", the number of scores in a row; got ", k);
    check(numerator >= 0 && numerator < RowShape::kDenominator, "numerator must be from 0 to 2^30 - 1; got ",
          numerator);
    check(!counts || numerator == 0, "counts must be None with a fraction; got a tensor, and numerator = ", numerator);
    const RowShape shape(n, k, numerator, counts);
    check(shape.slots_for(n) == k, "k must be the fraction numerator / 2^30 of n = ", n, ", rounded up, which is ",
          shape.slots_for(n), "; got ", k);
    return shape;
  }

  // Copy the counts, and check the copy: another thread may change the tensor at any time.
  void read_counts(const Tensor& counts) {
    check_tensor(counts, "counts", {ScalarType::Long}, "int64");
    check_shape(counts, "counts", batch, {});
    const Tensor aligned = as_aligned(counts);
    const RowOffsets offset_of(aligned, batch);
    const int64_t* const data_of_counts = data<int64_t>(aligned);
    wanted_.reserve(static_cast<size_t>(rows));
    for (int64_t index = 0; index < rows; ++index) {
      const int64_t wanted = read_once(data_of_counts[offset_of(index)]);
      check(wanted >= 1 && wanted <= row.k, "counts must be from 1 to k = ", row.k, "; got ", wanted);
      wanted_.push_back(wanted);
    }
  }

  std::vector<int64_t> wanted_;  // slots of each row; empty if all want k
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

// Write the members and weights of some rows to arrays (rows, k, max_members), with padding behind those of a slot.
template <class T>
void write_members(const RowResults<T>& results, const RowShape& shape, int64_t max_members, int32_t* member,
                   T* weight) {
  for (int64_t slot = 0; slot < results.end.size(); ++slot, member += max_members, weight += max_members) {
    const int64_t first = results.begin(slot), count = results.end[slot] - first;
    std::copy_n(results.member.data() + first, count, member);
    std::fill(member + count, member + max_members, static_cast<int32_t>(shape.n));
    std::copy_n(results.weight.data() + first, count, weight);
    const bool valid = results.rows[slot / shape.k].valid;
    std::fill(weight + count, weight + max_members, valid ? T(0) : std::numeric_limits<T>::quiet_NaN());
  }
}

// Write the saved rounds of some rows to an array (rows, length), with zeros behind those of a row.
template <class T>
void write_saved(const RowResults<T>& results, int64_t length, int32_t* out) {
  if (length == 0) return;
  for (size_t row = 0; row < results.rows.size(); ++row, out += length) {
    const int64_t first = results.saved_begin(row), count = results.rows[row].saved_end - first;
    std::fill(std::copy_n(results.saved.data() + first, count, out), out + length, 0);
  }
}

// What to keep of a tournament beyond the results that have one number per slot.
struct Keep {
  bool members;  // with their weights
  bool rounds;   // for the backward pass
  bool fixed;    // whether both are as long as any row of this shape could need, for callers that must know shapes in
                 // advance; otherwise, as long as the longest of this batch
};

// Calls with_row(results, row, threads, play) for each row; play() adds it to the results.
template <class S, class WithRow>
TournamentResult play_tournament(const TournamentCall& call, const RowCall<ComputeType<S>>& row_call, const Keep& keep,
                                 const WithRow& with_row) {
  using T = ComputeType<S>;
  const int64_t n = call.row.n, k = call.row.k;
  const Sizes per_slot = joined(call.batch, {k});
  Tensor score = empty(per_slot, dtype_of<T>()), leader = empty(per_slot, ScalarType::Long);
  Tensor filled = empty(per_slot, ScalarType::Bool), valid = empty(joined(call.batch, {1}), ScalarType::Bool);
  const SlotOutputs<T> out{data<T>(score), data<int64_t>(leader), data<bool>(filled)};
  const ScoreRows<S> score_rows(call);
  std::vector<RowResults<T>> results(call.rows);  // of rows that a thread has worked on, at the index of the first
  parallel_rows(call.rows, n, [&](int64_t begin, int64_t end, const auto& threads) {
    Workspace<T> work(call.row);
    std::optional<RowCall<T>> own;
    for (int64_t row = begin; row < end; ++row) {
      const RowCall<T>& call_of_row = call.of_row(row, row_call, own);
      const SlotOutputs<T> row_out{out.score + row * k, out.leader + row * k, out.filled + row * k};
      RowResults<T>& some = results[begin];
      with_row(some, row, threads,
               [&] { select_row<T>(score_rows[row], call_of_row, keep.rounds, work, row_out, some, threads); });
      if (!keep.members) some.member.clear(), some.weight.clear(), some.end.clear();
      if (row == begin) some.expect(end - begin - 1);
    }
  });

  int64_t max_members = keep.fixed ? call.row.max_members() : keep.members ? 1 : 0;
  int64_t length = keep.rounds && keep.fixed ? saved_length<T>().of(n, k, call.row.least) : 0;
  bool* next_valid = data<bool>(valid);
  for (const RowResults<T>& some : results) {
    for (const auto& row : some.rows) *next_valid++ = row.valid;
    if (!keep.fixed && keep.members) max_members = std::max(max_members, some.most_members());
    length = std::max(length, some.most_saved());
  }
  const Sizes per_member = joined(call.batch, {k, max_members});
  Tensor member = empty(per_member, ScalarType::Int), weight = empty(per_member, dtype_of<T>());
  Tensor saved = empty(joined(call.batch, {length}), ScalarType::Int);
  int32_t *const members = data<int32_t>(member), *const rounds = data<int32_t>(saved);
  T* const weights = data<T>(weight);
  // By the same threads, if possible: each keeps the memory of its results for its next call.
  parallel_rows(call.rows, n, [&](int64_t begin, int64_t end, const auto&) {
    for (int64_t row = begin; row < end; ++row) {
      const RowResults<T> some = std::move(results[row]);
      write_members(some, call.row, max_members, members + row * k * max_members, weights + row * k * max_members);
      write_saved(some, length, rounds + row * length);
    }
  });
  return {member, weight, score, leader, filled, valid, saved};
}

// Check a tensor of numbers of type T, of shape (*batch, *sizes), and return it contiguous.
template <class T>
Tensor checked_numbers(const Tensor& tensor, const char* name, const Sizes& batch,
                       std::initializer_list<int64_t> sizes) {
  check_tensor(tensor, name, {dtype_of<T>()}, std::is_same_v<T, float> ? "float32" : "float64");
  check_shape(tensor, name, batch, sizes);
  return as_contiguous(tensor);
}

// Check the members and saved rounds that a tournament has returned. Returns the number of members of a slot.
inline int64_t check_saved(const TournamentCall& call, const Tensor& member, const Tensor& saved) {
  for (const auto& [tensor, name] : {std::pair(&member, "member"), std::pair(&saved, "saved")}) {
    check_tensor(*tensor, name, {ScalarType::Int}, "int32");
    check(tensor->dim() > 0, name, " must have dimensions; got none");
  }
  const int64_t max_members = member.size(member.dim() - 1);
  check(max_members >= 1, "member must have a last dimension of at least 1; got ", max_members);
  check_shape(member, "member", call.batch, {call.row.k, max_members});
  check_shape(saved, "saved", call.batch, {saved.size(saved.dim() - 1)});
  return max_members;
}

template <class S>
Tensor tournament_backward_of(const TournamentCall& call, const RowCall<ComputeType<S>>& row_call,
                              std::optional<Tensor> d_weight, std::optional<Tensor> d_score, const Tensor& member,
                              Tensor saved) {
  using T = ComputeType<S>;
  const int64_t n = call.row.n, k = call.row.k;
  const int64_t max_members = member.size(member.dim() - 1), members_per_row = k * max_members;
  const int64_t length = saved.size(saved.dim() - 1);
  if (d_weight) d_weight = checked_numbers<T>(*d_weight, "d_weight", call.batch, {k, max_members});
  if (d_score) d_score = checked_numbers<T>(*d_score, "d_score", call.batch, {k});
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
    std::optional<RowCall<T>> own;
    for (int64_t row = begin; row < end; ++row) {
      const OutputGradients<T> output{d_weights ? d_weights + row * members_per_row : nullptr,
                                      d_scores ? d_scores + row * k : nullptr};
      const char* const found = select_row_backward<T>(score_rows[row], call.of_row(row, row_call, own),
                                                       {members + row * members_per_row, max_members}, output,
                                                       saved_data + row * length, length, gradient + row * n, threads);
      if (found) problem = found;
    }
  });
  if (problem) refuse(problem.load());
  return out;
}

inline TournamentResult tournament(Tensor scores, std::optional<Tensor> mask, std::optional<Tensor> c_tensor,
                                   std::optional<Tensor> unit_tensor, int64_t k, int64_t numerator, int64_t kind,
                                   int64_t alpha, double c, double unit, bool by_position, bool save, bool fixed,
                                   std::optional<Tensor> counts) {
  const TournamentCall call(scores, mask, k, numerator, counts);
  const BoostArguments boost(c_tensor, unit_tensor, kind, alpha, c, unit);
  return dispatch_dtype(call.scores, [&](auto s) {
    using S = decltype(s);
    const auto nothing_more = [](const auto&, int64_t, const auto&, const auto& play) { play(); };
    return play_tournament<S>(call, {call.row, boost.as<ComputeType<S>>(), by_position}, {true, save, fixed},
                              nothing_more);
  });
}

inline Tensor tournament_backward(std::optional<Tensor> d_weight, std::optional<Tensor> d_score, Tensor scores,
                                  std::optional<Tensor> mask, std::optional<Tensor> c_tensor,
                                  std::optional<Tensor> unit_tensor, Tensor member, Tensor saved, int64_t k,
                                  int64_t numerator, int64_t kind, int64_t alpha, double c, double unit,
                                  bool by_position, std::optional<Tensor> counts) {
  const TournamentCall call(scores, mask, k, numerator, counts);
  const BoostArguments boost(c_tensor, unit_tensor, kind, alpha, c, unit);
  check_saved(call, member, saved);
  return dispatch_dtype(call.scores, [&](auto s) {
    using S = decltype(s);
    return tournament_backward_of<S>(call, {call.row, boost.as<ComputeType<S>>(), by_position}, d_weight, d_score,
                                     as_contiguous(member), as_contiguous(saved));
  });
}

}  // namespace knockout
