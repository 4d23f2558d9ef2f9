// The operators `blend`, `spread` and `match`: the weighted gather and its two derivatives, see
// knockout/ops/autograd/gather.py.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "buffer.h"
#include "gather.h"
#include "slot_members.h"
#include "tensors.h"

namespace knockout {

// The same values, with every value row contiguous.
inline Tensor with_contiguous_rows(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  const bool contiguous = tensor.size(last) <= 1 || tensor.stride(last) == 1;
  return as_aligned(contiguous ? tensor : contiguous_copy(tensor));
}

template <class V>
Tensor blend_of(const Tensor& values, const SlotMembers& slots, const uint8_t* valid, bool hard) {
  const int64_t dims = values.dim(), n = values.size(dims - 2), d = values.size(dims - 1);
  const int64_t stride = values.stride(dims - 2);
  Tensor out = empty(joined(slots.batch, {slots.k, d}), values.scalar_type());
  if (d == 0) return out;
  const RowOffsets offset_of(values, slots.batch);
  const V* const source = data<V>(values);
  V* const result = data<V>(out);
  const V nan = static_cast<V>(std::numeric_limits<float>::quiet_NaN());
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / (4 * d + slots.max_members));
  AllThreads().parallel_for(slots.rows * slots.k, grain, [&](int64_t begin, int64_t end) {
    using C = ComputeType<V>;
    PackedSlots<C> group;
    int64_t row_index = -1, row_offset = 0;
    for (int64_t first = begin; first < end; first += PackedSlots<C>::kSlots) {
      const int64_t count = std::min(PackedSlots<C>::kSlots, end - first);
      group.clear();
      RowOfSlot row_of_slot(first, slots.k);
      for (int64_t slot = first; slot < first + count; ++slot, row_of_slot.advance()) {
        if (row_of_slot.index != row_index) row_index = row_of_slot.index, row_offset = offset_of(row_index);
        slots.for_each<C>(slot, n, [&](int64_t, int64_t member, C weight) {
          group.add_member(row_offset + member * stride, weight);
        });
        group.end_slot();
      }
      group.prefetch_first(source, d);
      RowOfSlot batch_row(first, slots.k);
      for (int64_t i = 0; i < count; ++i, batch_row.advance()) {
        V* const row = result + (first + i) * d;
        const auto members = group[i];
        if (valid && !valid[batch_row.index]) {
          std::fill_n(row, d, nan);
        } else if (members.count == 0 || (hard && slots.leader_is_padding(first + i, n))) {
          std::fill_n(row, d, V(0));
        } else if (hard) {
          std::copy_n(source + members.offset(0), d, row);
        } else {
          blend_value_rows(row, source, members, d);
        }
      }
    }
  });
  return out;
}

// If each batch entry has values of its own: every value row is in at most one slot and its gradient is written once.
template <class V>
void spread_unshared(const V* grad, const SlotMembers& slots, V* result, int64_t n, int64_t d) {
  using C = ComputeType<V>;
  parallel_rows(slots.rows, n * d, [&](int64_t begin, int64_t end, const auto& threads) {
    Buffer<int64_t> slot_of(n);
    Buffer<C> weight_of(n);
    for (int64_t row = begin; row < end; ++row) {
      std::fill_n(slot_of.get(), n, int64_t{-1});
      for (int64_t slot = row * slots.k; slot < (row + 1) * slots.k; ++slot) {
        slots.for_each<C>(slot, n, [&](int64_t, int64_t member, C weight) {
          slot_of[member] = slot;
          weight_of[member] = weight;
        });
      }
      threads.parallel_for(n, std::max<int64_t>(1, (1 << 16) / d), [&](int64_t from, int64_t to) {
        for (int64_t j = from; j < to;) {
          int64_t next_member = j;
          while (next_member < to && slot_of[next_member] < 0) ++next_member;
          V* const out = result + (row * n + j) * d;
          if (next_member > j)
            std::fill_n(out, (next_member - j) * d, V(0));
          else
            scale_value_row(out, grad + slot_of[j] * d, weight_of[j], d);
          j = std::max(next_member, j + 1);
        }
      });
    }
  });
}

// If several batch entries share a table of values: their gradients are summed, in the order of the batch entries.
template <class V>
void spread_shared(const V* grad, const SlotMembers& slots, const RowOffsets& offset_of, V* result, int64_t tables,
                   int64_t n, int64_t d) {
  using C = ComputeType<V>;
  std::vector<std::vector<int64_t>> rows(tables);
  for (int64_t row = 0; row < slots.rows; ++row) rows[offset_of(row) / (n * d)].push_back(row);
  const int64_t width = 64, blocks = (d + width - 1) / width;  // of columns
  AllThreads().parallel_for(tables * blocks, 1, [&](int64_t begin, int64_t end) {
    Buffer<C> sum(n * width);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t table = i / blocks, column = i % blocks * width, count = std::min(width, d - column);
      std::fill_n(sum.get(), n * count, C(0));
      for (const int64_t row : rows[table]) {
        for (int64_t slot = row * slots.k; slot < (row + 1) * slots.k; ++slot) {
          slots.for_each<C>(slot, n, [&](int64_t, int64_t member, C weight) {
            add_weighted(sum.get() + member * count, grad + slot * d + column, weight, count);
          });
        }
      }
      for (int64_t j = 0; j < n; ++j) convert(result + (table * n + j) * d + column, sum.get() + j * count, count);
    }
  });
}

template <class V, class W>
void match_of(const V* grad, const Tensor& values, const SlotMembers& slots, W* result) {
  const int64_t dims = values.dim(), n = values.size(dims - 2), d = values.size(dims - 1);
  const int64_t stride = values.stride(dims - 2);
  const RowOffsets offset_of(values, slots.batch);
  const V* const source = data<V>(values);
  const int64_t grain = std::max<int64_t>(1, (1 << 16) / (4 * d + slots.max_members));
  AllThreads().parallel_for(slots.rows * slots.k, grain, [&](int64_t begin, int64_t end) {
    RowOfSlot row(begin, slots.k);
    int64_t offset = offset_of(row.index), offset_row = row.index;
    for (int64_t slot = begin; slot < end; ++slot, row.advance()) {
      if (row.index != offset_row) offset_row = row.index, offset = offset_of(offset_row);
      W* const out = result + slot * slots.max_members;
      std::fill_n(out, slots.max_members, W(0));
      slots.for_each<ComputeType<V>>(slot, n, [&](int64_t i, int64_t member, ComputeType<V>) {
        out[i] = static_cast<W>(dot(source + offset + member * stride, grad + slot * d, d));
      });
    }
  });
}

// Check values or their gradient (*rows, n, d), for these slots.
inline void check_values(const Tensor& values, const char* name, const SlotMembers& slots) {
  check_floating(values, name);
  check_rows(values.sizes(), name, slots.batch);
}

// Check the gradient of a result (*batch, k, d).
inline void check_result_gradient(const Tensor& grad, const SlotMembers& slots, int64_t d) {
  check_floating(grad, "grad");
  check_shape(grad, "grad", slots.batch, {slots.k, d});
}

inline Tensor blend(Tensor values, Tensor weight, Tensor member, std::optional<Tensor> valid, bool hard) {
  const SlotMembers slots(weight, member);
  check_values(values, "values", slots);
  if (valid) {
    check_tensor(*valid, "valid", {ScalarType::Bool}, "bool");
    check_shape(*valid, "valid", slots.batch, {1});
    valid = as_contiguous(*valid);
  }
  values = with_contiguous_rows(values);
  const uint8_t* const row_valid = valid ? data<uint8_t>(*valid) : nullptr;
  Tensor out = dispatch_dtype(values, [&](auto v) { return blend_of<decltype(v)>(values, slots, row_valid, hard); });
  slots.check_range(values.size(values.dim() - 2));
  return out;
}

inline Tensor spread(Tensor grad, Tensor weight, Tensor member, std::vector<int64_t> shape) {
  const SlotMembers slots(weight, member);
  check_rows(shape, "shape", slots.batch);
  const int64_t n = shape[shape.size() - 2], d = shape.back(), tables = product(shape, shape.size() - 2);
  check(n >= 0 && d >= 0, "shape must not have negative numbers; got ", shape);
  check_result_gradient(grad, slots, d);
  grad = as_contiguous(grad);
  Tensor out = empty(shape, grad.scalar_type());
  if (n * d * tables == 0) return out;
  dispatch_dtype(grad, [&](auto v) {
    using V = decltype(v);
    if (tables == slots.rows)
      spread_unshared(data<V>(grad), slots, data<V>(out), n, d);
    else
      spread_shared(data<V>(grad), slots, RowOffsets(out, slots.batch), data<V>(out), tables, n, d);
  });
  slots.check_range(n);
  return out;
}

inline Tensor match(Tensor grad, Tensor values, Tensor member, bool float64) {
  const SlotMembers slots(std::nullopt, member);
  check_values(values, "values", slots);
  check_result_gradient(grad, slots, values.size(values.dim() - 1));
  check(grad.scalar_type() == values.scalar_type(), "grad must have the dtype of values; got another one");
  grad = as_contiguous(grad);
  values = with_contiguous_rows(values);
  Tensor out = empty(slots.sizes, float64 ? ScalarType::Double : ScalarType::Float);
  dispatch_dtype(values, [&](auto v) {
    using V = decltype(v);
    if (float64)
      match_of(data<V>(grad), values, slots, data<double>(out));
    else
      match_of(data<V>(grad), values, slots, data<float>(out));
  });
  slots.check_range(values.size(values.dim() - 2));
  return out;
}

}  // namespace knockout
