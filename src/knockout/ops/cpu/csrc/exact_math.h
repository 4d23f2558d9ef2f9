// Square root and exponentials with the same bits as the reference implementation in PyTorch, step by step.
//
// They consist of + - * / alone, which IEEE 754 defines to the last bit. Compiled without contraction to fused
// multiply-add, the results are the same for any vector width.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "compiler.h"

namespace knockout {

template <class T>
struct FloatFormat;

template <>
struct FloatFormat<float> {
  using Integer = int32_t;
  static constexpr int mantissa = 23, bias = 127, degree = 7;
  static constexpr float ln2_high = 0.693359375, ln2_low = -2.12194440054690583e-4, rounder = 12582912.0;
};

template <>
struct FloatFormat<double> {
  using Integer = int64_t;
  static constexpr int mantissa = 52, bias = 1023, degree = 13;
  static constexpr double ln2_high = 6.93145751953125e-1, ln2_low = 1.42860682030941723e-6,
                          rounder = 6755399441055744.0;
};

constexpr double kLn2 = 0.6931471805599453;

constexpr double factorial(int i) { return i < 2 ? 1.0 : i * factorial(i - 1); }

// The square root of a number from 1 to 2, by Newton's method.
template <class T>
KNOCKOUT_INLINE T exact_sqrt(T x) {
  T root = x * T(0.4142135623730951) + T(0.5897);
  for (int i = 0; i < (std::is_same_v<T, float> ? 2 : 3); ++i) root = (root + x / root) * T(0.5);
  return root;
}

// Split e^x into power = 2^m and rest = e^r - 1, where x = m ln 2 + r.
template <class T>
KNOCKOUT_INLINE void split_exponential(T x, T& power, T& rest) {
  using F = FloatFormat<T>;
  x = std::min(std::max(x, T((1 - F::bias) * kLn2)), T(F::bias * kLn2));
  const T m = (x * T(1.0 / kLn2) + F::rounder) - F::rounder;  // to the nearest integer, ties to even
  const T r = (x - m * F::ln2_high) - m * F::ln2_low;
  T series = T(1.0 / factorial(F::degree));
  for (int i = F::degree - 1; i > 1; --i) series = series * r + T(1.0 / factorial(i));
  const T whole = m == m ? m : T(0);  // NaN is no integer; `rest` is NaN then, too
  power = std::bit_cast<T>((static_cast<typename F::Integer>(whole) + F::bias) << F::mantissa);
  rest = r + (r * r) * series;
}

template <class T>
KNOCKOUT_INLINE T exact_exp(T x) {
  T power, rest;
  split_exponential(x, power, rest);
  return power * rest + power;
}

template <class T>
KNOCKOUT_INLINE T exact_expm1(T x) {
  T power, rest;
  split_exponential(x, power, rest);
  return power * rest + (power - T(1));
}

}  // namespace knockout
