// The operators `topk` and `topk_backward`: the tournament and the weighted gather of one tensor of values, a row at a
// time. They give what `tournament` and `blend`, and their derivatives, give one after the other.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "gather_op.h"
#include "tournament_op.h"

namespace knockout {

// values, member, weight, score, leader, filled, valid, saved: as in knockout/ops/schema.py
using TopKResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// Check values (*batch, n, d), and return them with contiguous rows.
inline Tensor checked_values(const Tensor& values, const TournamentCall& call) {
  check_floating(values, "values");
  const int64_t d = values.dim() ? values.size(values.dim() - 1) : 0;
  check_shape(values, "values", call.batch, {call.row.n, d});
  return with_contiguous_rows(values);
}

// The value rows of each row of scores, which are read ahead: see ReadAhead.
class ValueTables {
 public:
  ValueTables(const Tensor& values, const TournamentCall& call)
      : offset_of_(values, call.batch),
        table_(static_cast<const char*>(values.data_ptr())),
        item_(item_size(values.scalar_type())),
        rows_(call.row.n),
        row_bytes_(values.size(values.dim() - 1) * item_),
        stride_(values.stride(values.dim() - 2) * item_) {}

  // Whether it is worth it: that they are not in a first-level cache by themselves.
  bool large() const { return rows_ * row_bytes_ >= 1 << 16; }
  // Whether it is worth it to wait for them: that they exceed a second-level cache.
  bool very_large() const { return rows_ * row_bytes_ >= 1 << 20; }
  void start(int64_t row, ReadAhead& ahead) const {
    ahead.start(table_ + offset_of_(row) * item_, rows_, row_bytes_, stride_);
  }

 private:
  RowOffsets offset_of_;
  const char* table_;
  int64_t item_, rows_, row_bytes_, stride_;
};

// Blend the slots [begin, end) of a row, which is the last one of the results.
template <class T>
using BlendSlots = std::function<void(const RowResults<T>&, int64_t row, int64_t begin, int64_t end)>;

template <class T, class V>
BlendSlots<T> blend_slots_of(const Tensor& values, const TournamentCall& call, const Tensor& out) {
  const int64_t k = call.row.k, d = values.size(values.dim() - 1), stride = values.stride(values.dim() - 2);
  return [=, offset_of = RowOffsets(values, call.batch), source = data<V>(values), result = data<V>(out)](
             const RowResults<T>& results, int64_t row, int64_t begin, int64_t end) {
    using C = ComputeType<V>;
    V* const row_out = result + row * k * d;
    if (!results.rows.back().valid) {
      std::fill(row_out + begin * d, row_out + end * d, static_cast<V>(std::numeric_limits<float>::quiet_NaN()));
      return;
    }
    const V* const row_values = source + offset_of(row);
    const int64_t first_slot = results.end.size() - k;
    const int64_t first = results.begin(first_slot + begin), last = results.end[first_slot + end - 1];
    Buffer<C> converted;
    const C* weight;
    if constexpr (std::is_same_v<C, T>) {
      weight = results.weight.data() + first;
    } else {
      converted = Buffer<C>(last - first);
      std::transform(results.weight.data() + first, results.weight.data() + last, converted.get(),
                     [](T each) { return static_cast<C>(each); });
      weight = converted.get();
    }
    for (int64_t i = first; i < std::min(first + kRowsAhead, last); ++i) {
      prefetch(row_values + results.member[i] * stride, d);
    }
    for (int64_t slot = begin; slot < end; ++slot) {
      const int64_t at = results.begin(first_slot + slot), count = results.end[first_slot + slot] - at;
      if (count) {
        const PackedMembers<C, int32_t> members{results.member.data() + at, stride, weight + (at - first), count,
                                                last - at};
        blend_value_rows(row_out + slot * d, row_values, members, d);
      } else {
        std::fill_n(row_out + slot * d, d, V(0));
      }
    }
  };
}

inline TopKResult topk(Tensor values, Tensor scores, std::optional<Tensor> mask, std::optional<Tensor> c_tensor,
                       std::optional<Tensor> unit_tensor, int64_t k, int64_t numerator, int64_t kind, int64_t alpha,
                       double c, double unit, bool by_position, bool members, bool save, std::optional<Tensor> counts) {
  const TournamentCall call(scores, mask, k, numerator, counts);
  const BoostArguments boost(c_tensor, unit_tensor, kind, alpha, c, unit);
  values = checked_values(values, call);
  const int64_t d = values.size(values.dim() - 1);
  Tensor out = empty(joined(call.batch, {k, d}), values.scalar_type());
  return dispatch_dtype(call.scores, [&](auto s) {
    using S = decltype(s);
    using T = ComputeType<S>;
    const auto blend =
        dispatch_dtype(values, [&](auto v) { return blend_slots_of<T, decltype(v)>(values, call, out); });
    const int64_t grain = std::max<int64_t>(1, (1 << 15) / (4 * d + call.row.max_members()));
    const ValueTables tables(values, call);
    const auto most_members = [&](const RowResults<T>& results) {
      return !results.rows.empty() && 2 * results.rows.back().members >= call.row.n;
    };
    const auto blend_row = [&](const RowResults<T>& results, int64_t row, const auto& threads, const auto& play) {
      ReadAhead& ahead = ReadAhead::of_this_thread();
      const bool expected = tables.large() && most_members(results);  // the row before had
      if (expected) tables.start(row, ahead);
      play();
      // With several threads on one row, each blends its own slots, and one that reads for all would hold them up.
      if (threads.count() == 1 && tables.very_large() && most_members(results)) {
        if (!expected) tables.start(row, ahead);
        ahead.finish();
      }
      ahead.stop();
      threads.parallel_for(k, grain, [&](int64_t begin, int64_t end) { blend(results, row, begin, end); });
    };
    return std::tuple_cat(std::tuple(out), play_tournament<S>(call, {call.row, boost.as<T>(), by_position},
                                                              {members || save, save, false}, blend_row));
  });
}

// Compute the gradients of a row's values and of the weights of its members, for the candidates [begin, end): see
// GatherBackward.
template <class T>
using CandidatesBackward = std::function<void(int64_t row, int64_t begin, int64_t end, const int32_t* slot_of,
                                              const T* weight_of, EntryNumbers<T>* entry)>;

// `d_values` is null if it is not wanted.
template <class T, class V>
CandidatesBackward<T> candidates_backward_of(const Tensor& grad, const Tensor& values, const TournamentCall& call,
                                             void* d_values) {
  const int64_t n = call.row.n, k = call.row.k, d = values.size(values.dim() - 1);
  const int64_t stride = values.stride(values.dim() - 2);
  return
      [=, offset_of = RowOffsets(values, call.batch), grad = data<V>(grad), source = data<V>(values)](
          int64_t row, int64_t begin, int64_t end, const int32_t* slot_of, const T* weight_of, EntryNumbers<T>* entry) {
        using C = ComputeType<V>;
        constexpr int64_t block = 256;
        C weight[block], d_weight[block];
        GatherBackward<V> part{grad + row * k * d,         nullptr, stride, d, nullptr, weight,
                               entry ? d_weight : nullptr, nullptr};
        for (int64_t at = begin; at < end; at += block) {
          const int64_t count = std::min(block, end - at);
          for (int64_t i = 0; i < count; ++i) weight[i] = static_cast<C>(weight_of[at + i]), d_weight[i] = C(0);
          part.values = source + offset_of(row) + at * stride;
          part.slot_of = slot_of + at;
          if (d_values) part.d_values = static_cast<V*>(d_values) + (row * n + at) * d;
          gather_backward(part, 0, count);
          for (int64_t i = 0; entry && i < count; ++i) entry[at + i].weight = static_cast<T>(d_weight[i]);
        }
      };
}

// Which slot each candidate is a member of, or -1, and its weight. Returns whether all members are in range.
template <class T>
bool find_slots(const RowMembers& members, const T* weight, int64_t k, int64_t n, int32_t* slot_of, T* weight_of) {
  std::fill_n(slot_of, n, -1);
  std::fill_n(weight_of, n, T(0));
  for (int64_t slot = 0; slot < k; ++slot) {
    for (int64_t i = slot * members.max_members; i < (slot + 1) * members.max_members; ++i) {
      const int32_t member = read_once(members.member[i]);
      if (member == n) break;
      if (member < 0 || member > n) return false;
      slot_of[member] = static_cast<int32_t>(slot);
      weight_of[member] = weight[i];
    }
  }
  return true;
}

// The gradients of values and scores; empty tensors if they are not wanted.
inline std::tuple<Tensor, Tensor> topk_backward(Tensor grad, std::optional<Tensor> d_score, Tensor values,
                                                Tensor scores, std::optional<Tensor> mask,
                                                std::optional<Tensor> c_tensor, std::optional<Tensor> unit_tensor,
                                                Tensor member, Tensor weight, Tensor saved, int64_t k,
                                                int64_t numerator, int64_t kind, int64_t alpha, double c, double unit,
                                                bool by_position, bool values_wanted, bool scores_wanted,
                                                std::optional<Tensor> counts) {
  const TournamentCall call(scores, mask, k, numerator, counts);
  const BoostArguments boost(c_tensor, unit_tensor, kind, alpha, c, unit);
  const int64_t max_members = check_saved(call, member, saved), length = saved.size(saved.dim() - 1);
  values = checked_values(values, call);
  const int64_t n = call.row.n, d = values.size(values.dim() - 1);
  check_floating(grad, "grad");
  check_shape(grad, "grad", call.batch, {k, d});
  check(grad.scalar_type() == values.scalar_type(), "grad must have the dtype of values; got another one");
  grad = as_contiguous(grad), member = as_contiguous(member), saved = as_contiguous(saved);
  Tensor d_values = empty(values_wanted ? joined(call.batch, {n, d}) : Sizes{0}, values.scalar_type());
  Tensor d_scores = empty(scores_wanted ? joined(call.batch, {n}) : Sizes{0}, call.scores.scalar_type());
  const int32_t *const members = data<int32_t>(member), *const rounds = data<int32_t>(saved);
  std::atomic<const char*> problem = nullptr;  // errors are not thrown from here: they would cross PyTorch's threads
  dispatch_dtype(call.scores, [&](auto s) {
    using S = decltype(s);
    using T = ComputeType<S>;
    const Tensor weights = checked_numbers<T>(weight, "weight", call.batch, {k, max_members});
    const T* const weight_data = data<T>(weights);
    if (d_score) d_score = checked_numbers<T>(*d_score, "d_score", call.batch, {k});
    const T* const d_score_data = d_score ? data<T>(*d_score) : nullptr;
    const RowCall<T> row_call(call.row, boost.as<T>(), by_position);
    const ScoreRows<S> score_rows(call);
    S* const d_scores_data = data<S>(d_scores);
    const auto candidates_backward = dispatch_dtype(values, [&](auto v) {
      return candidates_backward_of<T, decltype(v)>(grad, values, call, values_wanted ? d_values.data_ptr() : nullptr);
    });
    const auto row_backward = [&](int64_t row, int32_t* slot_of, T* weight_of, const auto& threads) -> const char* {
      const RowMembers row_members{members + row * k * max_members, max_members};
      std::optional<RowCall<T>> own;
      const RowCall<T>& call_of_row = call.of_row(row, row_call, own);
      CheckedRounds<T> checked;
      if (scores_wanted) {
        if (const char* found = checked.read(rounds + row * length, length, call_of_row)) return found;
      }
      if (!find_slots(row_members, weight_data + row * k * max_members, k, n, slot_of, weight_of)) return kOtherMembers;
      const bool in_rounds = scores_wanted && checked.valid();
      for (int64_t slot = 0; in_rounds && slot < checked.filled(); ++slot) {
        if (read_once(row_members.member[slot * max_members]) != checked.leader(slot)) return kOtherMembers;
      }
      const Buffer<EntryNumbers<T>> entry(in_rounds ? n + checked.nodes() : 0);
      threads.parallel_for(n, std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(d, 1)), [&](int64_t from, int64_t to) {
        candidates_backward(row, from, to, slot_of, weight_of, in_rounds ? entry.get() : nullptr);
      });
      S* const row_out = d_scores_data + row * n;
      if (in_rounds) {
        const T* const row_score = d_score_data ? d_score_data + row * k : nullptr;
        scores_backward(score_rows[row], call_of_row, checked, row_score, entry.get(), row_out, threads);
      } else if (scores_wanted) {
        invalid_row_backward(score_rows[row], n, row_out);
      }
      return nullptr;
    };
    parallel_rows(call.rows, n, [&](int64_t begin, int64_t end, const auto& threads) {
      const Buffer<int32_t> slot_of(n);
      const Buffer<T> weight_of(n);
      for (int64_t row = begin; row < end; ++row) {
        if (const char* found = row_backward(row, slot_of.get(), weight_of.get(), threads)) problem = found;
      }
    });
  });
  if (problem) refuse(problem.load());
  return {d_values, d_scores};
}

}  // namespace knockout
