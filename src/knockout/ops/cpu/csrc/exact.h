// Arithmetic whose bits are those of the reference: knockout/exact.py and knockout/boost.py, step by step.
// Compiled without contraction to fused multiply-add, it is the same for any width of vectors.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "portable.h"

namespace knockout {

template <class T>
struct Form;

template <>
struct Form<float> {
  using Integer = int32_t;
  static constexpr int mantissa = 23, bias = 127, degree = 7;
  static constexpr float ln2_high = 0.693359375, ln2_low = -2.12194440054690583e-4, rounder = 12582912.0;
};

template <>
struct Form<double> {
  using Integer = int64_t;
  static constexpr int mantissa = 52, bias = 1023, degree = 13;
  static constexpr double ln2_high = 6.93145751953125e-1, ln2_low = 1.42860682030941723e-6,
                          rounder = 6755399441055744.0;
};

constexpr double kLn2 = 0.6931471805599453;

constexpr double factorial(int i) { return i < 2 ? 1.0 : i * factorial(i - 1); }

// The square root of a number from 1 to 2.
template <class T>
KNOCKOUT_INLINE T exact_sqrt(T x) {
  T root = x * T(0.4142135623730951) + T(0.5897);
  for (int i = 0; i < (std::is_same_v<T, float> ? 2 : 3); ++i) root = (root + x / root) * T(0.5);
  return root;
}

// 2^m and e^r - 1, where x = m ln 2 + r.
template <class T>
KNOCKOUT_INLINE void split(T x, T& power, T& rest) {
  using F = Form<T>;
  x = std::min(std::max(x, T((1 - F::bias) * kLn2)), T(F::bias * kLn2));
  const T m = (x * T(1.0 / kLn2) + F::rounder) - F::rounder;  // to the nearest integer, ties to even
  const T r = (x - m * F::ln2_high) - m * F::ln2_low;
  T series = T(1.0 / factorial(F::degree));
  for (int i = F::degree - 1; i > 1; --i) series = series * r + T(1.0 / factorial(i));
  power = std::bit_cast<T>((static_cast<typename F::Integer>(m) + F::bias) << F::mantissa);
  rest = r + (r * r) * series;
}

template <class T>
KNOCKOUT_INLINE T exact_exp(T x) {
  T power, rest;
  split(x, power, rest);
  return power * rest + power;
}

template <class T>
KNOCKOUT_INLINE T exact_expm1(T x) {
  T power, rest;
  split(x, power, rest);
  return power * rest + (power - T(1));
}

enum class Kind : int64_t { relative = 0, fixed = 1, power = 2 };       // Base is Fixed of its logarithm
enum class Alpha : int64_t { softmax = 0, entmax = 1, sparsemax = 2 };  // 1, 1.5, 2

template <class T>
struct Boost {
  Kind kind;
  Alpha alpha;
  T c;      // relative, fixed: the sharpness; power: the logarithm of the base
  T start;  // relative: the scale before the first round

  Boost(int64_t kind_, int64_t alpha_, double c_, double unit)
      : kind(Kind(kind_)),
        alpha(Alpha(alpha_)),
        c(T(std::min(c_, double(std::numeric_limits<T>::max())))),
        start(converted(2.0 * std::max(unit, double(std::numeric_limits<T>::min())))) {}

  static T converted(double x) {
    return x > double(std::numeric_limits<T>::max()) ? std::numeric_limits<T>::infinity() : T(x);
  }

  // From this logit on every pair is decided. A little more than it takes: computed logits need not be monotone to
  // the last bit, and whoever is below is computed exactly.
  T decided() const {
    if (alpha == Alpha::softmax) return std::is_same_v<T, float> ? T(17.5) : T(37.5);
    return alpha == Alpha::entmax ? T(2.002) : T(1.001);
  }
};

template <class T>
KNOCKOUT_INLINE T clamp_gap(T gap) {
  return std::min(gap, std::numeric_limits<T>::max());
}

template <Kind kind, class T>
KNOCKOUT_INLINE T logit(T better, T gap, T c, T scale) {
  if constexpr (kind == Kind::relative) return c * (gap / scale);
  if constexpr (kind == Kind::fixed) return c * gap;
  return exact_exp(std::min(c * better, T(40))) * -exact_expm1(-c * gap);
}

template <class T>
KNOCKOUT_INLINE T logit(const Boost<T>& boost, T better, T gap, T scale) {
  if (boost.kind == Kind::relative) return logit<Kind::relative>(better, gap, boost.c, scale);
  if (boost.kind == Kind::fixed) return logit<Kind::fixed>(better, gap, boost.c, scale);
  return logit<Kind::power>(better, gap, boost.c, scale);
}

template <Alpha alpha, class T>
KNOCKOUT_INLINE T share_of(T t) {
  if constexpr (alpha == Alpha::softmax) return T(1) / (T(1) + exact_exp(-t));
  if constexpr (alpha == Alpha::entmax) {
    t = std::min(t, T(2));
    return std::min(T(0.5) + t / T(4) * exact_sqrt(T(2) - t * t / T(4)), T(1));
  }
  return std::min(T(0.5) + t / T(2), T(1));
}

// d share / d t, where share < 1
template <class T>
KNOCKOUT_INLINE T share_slope(Alpha alpha, T t, T share) {
  if (alpha == Alpha::softmax) return share * (T(1) - share);
  if (alpha == Alpha::entmax) return (T(1) - t * t / T(4)) / (T(2) * std::sqrt(T(2) - t * t / T(4)));
  return T(0.5);
}

// Sum of |x - middle| over a field, the same bits in any order: see exact_sum in knockout/exact.py. Each part of the
// field has its own Total; parts are added up exactly.
struct Total {
  double coarse = 0, fine = 0;
  void operator+=(const Total& other) { coarse += other.coarse, fine += other.fine; }
};

constexpr double kDown = 0x1p-40;

struct Grid {
  double middle, shift, finer;

  // `farthest`: the largest |x - middle|, scaled down; `count`: of the terms
  Grid(double middle_, double farthest, int64_t count) : middle(middle_) {
    const double room = 4.0 * static_cast<double>(count);
    shift = farthest * room;
    finer = shift * (room * 0x1p-52);
  }

  KNOCKOUT_INLINE void add(double x, double& coarse, double& fine) const {
    const double distance = std::abs(x * kDown - middle);
    const double on_grid = (distance + shift) - shift;
    coarse += on_grid;
    fine += ((distance - on_grid) + finer) - finer;
  }
};

template <class T>
T mean_of(const Total& total, int64_t count) {
  const double mean = ((0.0 + total.coarse) + total.fine) / static_cast<double>(count) * 0x1p40;
  return T(std::min(mean, double(std::numeric_limits<T>::max())));
}

}  // namespace knockout
