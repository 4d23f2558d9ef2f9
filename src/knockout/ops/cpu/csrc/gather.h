// The arithmetic of the weighted gather and its two derivatives, one slot or one value row at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "compiler.h"
#include "half.h"

namespace knockout {

// The members of a slot that are not padding, without gaps.
template <class C>
struct PackedMembers {
  const int64_t* offset;  // of their value rows, from the first value
  const C* weight;
  int64_t count;
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

template <class V>
KNOCKOUT_INLINE void blend_value_rows_of(V* out, const V* values, const PackedMembers<ComputeType<V>>& members,
                                         int64_t d) {
  constexpr int64_t columns = 256;  // at a time
  ComputeType<V> sum[columns];
  for (int64_t at = 0; at < d; at += columns) {
    const int64_t count = std::min(columns, d - at);
    set_weighted(sum, values + members.offset[0] + at, members.weight[0], count);
    for (int64_t i = 1; i < members.count; ++i) {
      add_weighted_of(sum, values + members.offset[i] + at, members.weight[i], count);
    }
    convert(out + at, sum, count);
  }
}

template <class V>
KNOCKOUT_INLINE ComputeType<V> dot_of(const V* one, const V* other, int64_t d) {
  using C = ComputeType<V>;
  constexpr int64_t lanes = 16;
  C sum[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= d; i += lanes) {
    for (int64_t lane = 0; lane < lanes; ++lane) sum[lane] += C(one[i + lane]) * C(other[i + lane]);
  }
  for (int64_t lane = 0; i < d; ++i, ++lane) sum[lane] += C(one[i]) * C(other[i]);
  for (int64_t half = lanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) sum[lane] += sum[lane + half];
  }
  return sum[0];
}

template <class V>
KNOCKOUT_INLINE void scale_value_row_of(V* out, const V* row, ComputeType<V> weight, int64_t d) {
  for (int64_t i = 0; i < d; ++i) out[i] = static_cast<V>(weight * static_cast<ComputeType<V>>(row[i]));
}

// For every type of values, compiled for wide vectors:
//   blend_value_rows   out = the sum over the members of weight * value row; needs at least one member
//   dot                the dot product of two rows
//   scale_value_row    out = weight * row
//   add_weighted       sum += weight * row
#define KNOCKOUT_GATHER(V)                                                                                          \
  KNOCKOUT_VECTORIZED void blend_value_rows(V* out, const V* values, const PackedMembers<ComputeType<V>>& members,  \
                                            int64_t d) {                                                            \
    blend_value_rows_of(out, values, members, d);                                                                   \
  }                                                                                                                 \
  KNOCKOUT_VECTORIZED ComputeType<V> dot(const V* one, const V* other, int64_t d) { return dot_of(one, other, d); } \
  KNOCKOUT_VECTORIZED void scale_value_row(V* out, const V* row, ComputeType<V> weight, int64_t d) {                \
    scale_value_row_of(out, row, weight, d);                                                                        \
  }                                                                                                                 \
  KNOCKOUT_VECTORIZED void add_weighted(ComputeType<V>* sum, const V* row, ComputeType<V> weight, int64_t d) {      \
    add_weighted_of(sum, row, weight, d);                                                                           \
  }
KNOCKOUT_GATHER(Float16)
KNOCKOUT_GATHER(BFloat16)
KNOCKOUT_GATHER(float)
KNOCKOUT_GATHER(double)
#undef KNOCKOUT_GATHER

}  // namespace knockout
