// Half-precision types with the memory layout of PyTorch's, and the type that each value type is computed in.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "compiler.h"

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
using ComputeType = std::conditional_t<std::is_same_v<V, double>, double, float>;

}  // namespace knockout
