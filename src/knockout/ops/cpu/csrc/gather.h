// The arithmetic of the weighted gather and its two derivatives, one slot or one value row at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "compiler.h"
#include "half.h"
#include "read_ahead.h"

namespace knockout {

// The members of a slot that are not padding, without gaps.
template <class C, class I>
struct PackedMembers {
  const I* place;  // of their value rows: these start at multiples of `stride`
  int64_t stride;
  const C* weight;
  int64_t count;
  int64_t known;  // how many places there are, with those of the slots that follow

  KNOCKOUT_INLINE int64_t offset(int64_t i) const { return place[i] * stride; }
};

template <class V, class C>
KNOCKOUT_INLINE void set_weighted(C* sum, const V* row, C weight, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] = weight * static_cast<C>(row[i]);
}

template <class V, class C>
KNOCKOUT_INLINE void add_weighted_of(C* sum, const V* row, C weight, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += weight * static_cast<C>(row[i]);
}

// Convert sums to the type of the values.
template <class V, class C>
KNOCKOUT_INLINE void convert(V* out, const C* sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<V>(sum[i]);
}

// Let a value row be on its way from memory.
template <class V>
KNOCKOUT_INLINE void prefetch(const V* row, int64_t d) {
  constexpr int64_t most = 512;  // bytes; the processor fetches the rest by itself
  const char* const bytes = reinterpret_cast<const char*>(row);
  for (int64_t i = 0; i < std::min<int64_t>(d * sizeof(V), most); i += kLine) __builtin_prefetch(bytes + i);
}

constexpr int64_t kRowsAhead = 24;  // that are prefetched

// The columns [at, at + columns) of a blend, which stay in registers.
template <int64_t columns, class V, class I>
KNOCKOUT_INLINE void blend_columns(V* out, const V* values, const PackedMembers<ComputeType<V>, I>& members, int64_t at,
                                   int64_t prefetched) {
  ComputeType<V> sum[columns];
  set_weighted(sum, values + members.offset(0) + at, members.weight[0], columns);
  for (int64_t i = 1; i < members.count; ++i) {
    if (prefetched && i + kRowsAhead < members.known) prefetch(values + members.offset(i + kRowsAhead), prefetched);
    add_weighted_of(sum, values + members.offset(i) + at, members.weight[i], columns);
  }
  convert(out + at, sum, columns);
}

template <class V, class I>
KNOCKOUT_INLINE void blend_value_rows_of(V* out, const V* values, const PackedMembers<ComputeType<V>, I>& members,
                                         int64_t d) {
  constexpr int64_t narrow = 128 / sizeof(ComputeType<V>), wide = 256;  // columns at a time
  int64_t at = 0;
  if (d <= 2 * narrow) {
    for (; at + narrow <= d; at += narrow) blend_columns<narrow>(out, values, members, at, at ? 0 : d);
  }
  ComputeType<V> sum[wide];
  for (int64_t prefetched = at ? 0 : d; at < d; at += wide, prefetched = 0) {
    const int64_t count = std::min(wide, d - at);
    set_weighted(sum, values + members.offset(0) + at, members.weight[0], count);
    for (int64_t i = 1; i < members.count; ++i) {
      if (prefetched && i + kRowsAhead < members.known) prefetch(values + members.offset(i + kRowsAhead), prefetched);
      add_weighted_of(sum, values + members.offset(i) + at, members.weight[i], count);
    }
    convert(out + at, sum, count);
  }
}

// Vectors of the compiler (GCC and Clang): the sum of an array that is kept in registers goes through memory otherwise.
template <class C>
struct Lanes {
  typedef C Eight __attribute__((vector_size(8 * sizeof(C))));
  typedef C Four __attribute__((vector_size(4 * sizeof(C))));
};

template <class V>
KNOCKOUT_INLINE void load_eight(const V* from, typename Lanes<ComputeType<V>>::Eight& to) {
  ComputeType<V> converted[8];
  for (int64_t lane = 0; lane < 8; ++lane) converted[lane] = static_cast<ComputeType<V>>(from[lane]);
  std::memcpy(&to, converted, sizeof(to));
}

template <class V>
KNOCKOUT_INLINE void add_products(typename Lanes<ComputeType<V>>::Eight& sum, const V* one, const V* other) {
  typename Lanes<ComputeType<V>>::Eight left, right;
  load_eight(one, left);
  load_eight(other, right);
  sum += left * right;
}

// Sixteen sums, each of every sixteenth product; these are added in a fixed order.
template <class V>
KNOCKOUT_INLINE ComputeType<V> dot_of(const V* one, const V* other, int64_t d) {
  using C = ComputeType<V>;
  typename Lanes<C>::Eight low = {}, high = {};
  int64_t i = 0;
  for (; i + 16 <= d; i += 16) {
    add_products(low, one + i, other + i);
    add_products(high, one + i + 8, other + i + 8);
  }
  if (i < d) {
    C sum[16];
    std::memcpy(sum, &low, sizeof(low));
    std::memcpy(sum + 8, &high, sizeof(high));
    for (int64_t lane = 0; i < d; ++i, ++lane) sum[lane] += C(one[i]) * C(other[i]);
    load_eight(sum, low);
    load_eight(sum + 8, high);
  }
  low += high;
  typename Lanes<C>::Four first, second;
  std::memcpy(&first, &low, sizeof(first));
  std::memcpy(&second, reinterpret_cast<const char*>(&low) + sizeof(first), sizeof(second));
  first += second;
  return (first[0] + first[2]) + (first[1] + first[3]);
}

template <class V>
KNOCKOUT_INLINE void scale_value_row_of(V* out, const V* row, ComputeType<V> weight, int64_t d) {
  using C = ComputeType<V>;
  int64_t i = 0;
  for (; i + 8 <= d; i += 8) {
    typename Lanes<C>::Eight scaled;
    load_eight(row + i, scaled);
    scaled *= weight;
    for (int64_t lane = 0; lane < 8; ++lane) out[i + lane] = static_cast<V>(scaled[lane]);
  }
  for (; i < d; ++i) out[i] = static_cast<V>(weight * static_cast<C>(row[i]));
}

// The gradients of values and weights, for the candidates [begin, end) of a row. Where slot_of[j] >= 0, candidate j is
// a member of that slot with the weight weight_of[j]; its results are d_weight[j] and a row of d_values, of which each
// may be null. The value rows of other candidates have a gradient of 0.
template <class V>
struct GatherBackward {
  const V* grad;  // of the slots: rows of d values
  const V* values;
  int64_t stride;  // between rows of values
  int64_t d;
  const int32_t* slot_of;
  const ComputeType<V>* weight_of;
  ComputeType<V>* d_weight;
  V* d_values;
};

template <class V>
KNOCKOUT_INLINE void gather_backward_of(const GatherBackward<V>& row, int64_t begin, int64_t end) {
  const int64_t d = row.d;
  for (int64_t j = begin; j < end;) {
    int64_t next = j;
    while (next < end && row.slot_of[next] < 0) ++next;
    if (row.d_values && next > j) std::fill_n(row.d_values + j * d, (next - j) * d, V(0));
    for (j = next; j < end && row.slot_of[j] >= 0; ++j) {
      const V* const grad = row.grad + row.slot_of[j] * d;
      if (row.d_weight) row.d_weight[j] = dot_of(row.values + j * row.stride, grad, d);
      if (row.d_values) scale_value_row_of(row.d_values + j * d, grad, row.weight_of[j], d);
    }
  }
}

// For every type of values, compiled for wide vectors:
//   blend_value_rows   out = the sum over the members of weight * value row; needs at least one member
//   dot                the dot product of two rows
//   scale_value_row    out = weight * row
//   add_weighted       sum += weight * row
//   gather_backward    see GatherBackward
#define KNOCKOUT_GATHER(V)                                                                                          \
  KNOCKOUT_VECTORIZED void blend_value_rows(V* out, const V* values,                                                \
                                            const PackedMembers<ComputeType<V>, int32_t>& members, int64_t d) {     \
    blend_value_rows_of(out, values, members, d);                                                                   \
  }                                                                                                                 \
  KNOCKOUT_VECTORIZED void blend_value_rows(V* out, const V* values,                                                \
                                            const PackedMembers<ComputeType<V>, int64_t>& members, int64_t d) {     \
    blend_value_rows_of(out, values, members, d);                                                                   \
  }                                                                                                                 \
  KNOCKOUT_VECTORIZED ComputeType<V> dot(const V* one, const V* other, int64_t d) { return dot_of(one, other, d); } \
  KNOCKOUT_VECTORIZED void scale_value_row(V* out, const V* row, ComputeType<V> weight, int64_t d) {                \
    scale_value_row_of(out, row, weight, d);                                                                        \
  }                                                                                                                 \
  KNOCKOUT_VECTORIZED void add_weighted(ComputeType<V>* sum, const V* row, ComputeType<V> weight, int64_t d) {      \
    add_weighted_of(sum, row, weight, d);                                                                           \
  }                                                                                                                 \
  KNOCKOUT_VECTORIZED void gather_backward(const GatherBackward<V>& row, int64_t begin, int64_t end) {              \
    gather_backward_of(row, begin, end);                                                                            \
  }
KNOCKOUT_GATHER(Float16)
KNOCKOUT_GATHER(BFloat16)
KNOCKOUT_GATHER(float)
KNOCKOUT_GATHER(double)
#undef KNOCKOUT_GATHER

}  // namespace knockout
