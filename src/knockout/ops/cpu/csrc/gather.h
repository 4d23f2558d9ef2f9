// The weighted gather and its two derivatives, for one slot or one candidate at a time: see knockout/gather.py.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "portable.h"

namespace knockout {

struct BFloat16 {
  uint16_t bits;
  BFloat16() = default;
  KNOCKOUT_INLINE explicit BFloat16(float x) {
    const uint32_t wide = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;  // to nearest, ties to even
    bits = static_cast<uint16_t>(x == x ? rounded : 0x7fc0);
  }
  KNOCKOUT_INLINE explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

using Float16 = _Float16;

// Half types are computed in float32.
template <class V>
using Computing = std::conditional_t<std::is_same_v<V, double>, double, float>;

constexpr int64_t kColumns = 256;  // added up at a time

template <class V, class C>
KNOCKOUT_INLINE void first_row(C* sum, const V* row, C weight, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] = weight * static_cast<C>(row[i]);
}

template <class V, class C>
KNOCKOUT_INLINE void next_row(C* sum, const V* row, C weight, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += weight * static_cast<C>(row[i]);
}

template <class V, class C>
KNOCKOUT_INLINE void round_row(V* out, const C* sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<V>(sum[i]);
}

// A slot's members that carry weight, packed.
template <class C>
struct Members {
  const int64_t* place;  // where their rows start
  const C* weight;
  int64_t count;
};

template <class V>
KNOCKOUT_INLINE void blend_of(V* out, const V* values, const Members<Computing<V>>& members, int64_t d) {
  using C = Computing<V>;
  C sum[kColumns];
  for (int64_t at = 0; at < d; at += kColumns) {
    const int64_t count = std::min(kColumns, d - at);
    first_row(sum, values + members.place[0] + at, members.weight[0], count);
    for (int64_t i = 1; i < members.count; ++i) next_row(sum, values + members.place[i] + at, members.weight[i], count);
    round_row(out + at, sum, count);
  }
}

template <class V>
KNOCKOUT_INLINE Computing<V> dot_of(const V* one, const V* other, int64_t d) {
  using C = Computing<V>;
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
KNOCKOUT_INLINE void scale_of(V* out, const V* row, Computing<V> weight, int64_t d) {
  for (int64_t i = 0; i < d; ++i) out[i] = static_cast<V>(weight * static_cast<Computing<V>>(row[i]));
}

// Compiled for wide vectors, one of each a type.
#define KNOCKOUT_GATHER(V)                                                                                  \
  KNOCKOUT_WIDE void blend_rows(V* out, const V* values, const Members<Computing<V>>& members, int64_t d) { \
    blend_of(out, values, members, d);                                                                      \
  }                                                                                                         \
  KNOCKOUT_WIDE Computing<V> dot(const V* one, const V* other, int64_t d) { return dot_of(one, other, d); } \
  KNOCKOUT_WIDE void scale_row(V* out, const V* row, Computing<V> weight, int64_t d) {                      \
    scale_of(out, row, weight, d);                                                                          \
  }                                                                                                         \
  KNOCKOUT_WIDE void add_row(Computing<V>* sum, const V* row, Computing<V> weight, int64_t d) {             \
    next_row(sum, row, weight, d);                                                                          \
  }
KNOCKOUT_GATHER(Float16)
KNOCKOUT_GATHER(BFloat16)
KNOCKOUT_GATHER(float)
KNOCKOUT_GATHER(double)
#undef KNOCKOUT_GATHER

}  // namespace knockout
