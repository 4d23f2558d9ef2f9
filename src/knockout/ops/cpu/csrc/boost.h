// The boost: how strongly the better entry of a pair dominates the blend.
//
// The gap between the two scores gives a logit, the logit gives the share: the better entry's weight in the blend, from
// 1/2 to 1. The bits are those of the reference implementation in PyTorch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "exact_math.h"

namespace knockout {

// Python's Base is fixed, with log(base) as c. An adaptive boost is a relative one with another rule for the scale.
enum class BoostKind : int64_t { relative = 0, fixed = 1, power = 2, adaptive = 3 };
enum class Alpha : int64_t { softmax = 0, entmax = 1, sparsemax = 2 };  // alpha of entmax: 1, 1.5, 2

template <class T>
struct Boost {
  BoostKind kind;  // relative, fixed or power: how logits are computed
  bool adaptive;   // relative: whether the scale is that of an adaptive boost
  Alpha alpha;
  T c;              // relative, fixed: as in Python; power: the logarithm of the base
  T unit;           // relative
  T initial_scale;  // relative, not adaptive: the scale before the first round

  Boost(int64_t kind_, int64_t alpha_, double c_, double unit_)
      : kind(BoostKind(kind_) == BoostKind::adaptive ? BoostKind::relative : BoostKind(kind_)),
        adaptive(BoostKind(kind_) == BoostKind::adaptive),
        alpha(Alpha(alpha_)),
        c(T(std::min(kind == BoostKind::power ? std::log(c_) : c_, double(std::numeric_limits<T>::max())))),
        unit(T(std::clamp(unit_, double(std::numeric_limits<T>::min()), double(std::numeric_limits<T>::max())))),
        initial_scale(converted(2.0 * std::max(unit_, double(std::numeric_limits<T>::min())))) {}

  // A pair is decided, its share 1, if its logit is at least this. A little more than necessary: computed logits need
  // not be monotone to the last bit, and shares of smaller logits are computed exactly.
  T decisive_logit() const {
    if (alpha == Alpha::softmax) return std::is_same_v<T, float> ? T(17.5) : T(37.5);
    return alpha == Alpha::entmax ? T(2.002) : T(1.001);
  }

 private:
  static T converted(double x) {
    return x > double(std::numeric_limits<T>::max()) ? std::numeric_limits<T>::infinity() : T(x);
  }
};

// The scale of a round of an adaptive boost whose mean gap is the spread g of the row: rounds / h times that, where h
// is (unit + 3 g) / (3 unit + g), but at most 10 g / unit. A spread of more than kFar units counts as that many.
constexpr double kFar = 0x1p40;
template <class T>
T width_of(const Boost<T>& boost, T spread, int rounds) {
  const T x = std::min(spread / boost.unit, T(kFar));
  const T width = std::max(spread * ((T(3) + x) / (T(1) + T(3) * x)), boost.unit / T(10)) * T(rounds);
  return std::clamp(width, std::numeric_limits<T>::min(), std::numeric_limits<T>::max() / 4);
}

// d width / d spread, relative to the width.
template <class T>
double width_slope(const Boost<T>& boost, T spread, int rounds) {
  const double g = double(spread), unit = double(boost.unit), x = std::min(g / unit, kFar);
  const double width = g * ((3 + x) / (1 + 3 * x));
  if (width < unit / 10 || width * rounds > double(std::numeric_limits<T>::max() / 4)) return 0;
  const double slope = x < kFar ? (3 + 2 * x + 3 * x * x) / ((1 + 3 * x) * (1 + 3 * x)) : 1.0 / 3;
  return slope / width;
}

// How many pairs do not count for the mean gap of an adaptive boost, those with the widest gaps: outliers.
template <class T>
int64_t widest_pairs(const Boost<T>& boost, int64_t pairs) {
  return boost.adaptive ? pairs / 8 : 0;
}

// The difference of two finite scores may overflow.
template <class T>
KNOCKOUT_INLINE T clamp_gap(T gap) {
  return std::min(gap, std::numeric_limits<T>::max());
}

template <BoostKind kind, class T>
KNOCKOUT_INLINE T logit(T better, T gap, T c, T scale) {
  if constexpr (kind == BoostKind::relative) return c * (gap / scale);
  if constexpr (kind == BoostKind::fixed) return c * gap;
  return exact_exp(std::min(c * better, T(40))) * -exact_expm1(-c * gap);
}

template <class T>
KNOCKOUT_INLINE T logit(const Boost<T>& boost, T better, T gap, T scale) {
  if (boost.kind == BoostKind::relative) return logit<BoostKind::relative>(better, gap, boost.c, scale);
  if (boost.kind == BoostKind::fixed) return logit<BoostKind::fixed>(better, gap, boost.c, scale);
  return logit<BoostKind::power>(better, gap, boost.c, scale);
}

// The share of the better entry, from the logit t.
template <Alpha alpha, class T>
KNOCKOUT_INLINE T share_of(T t) {
  if constexpr (alpha == Alpha::softmax) return T(1) / (T(1) + exact_exp(-t));
  if constexpr (alpha == Alpha::entmax) {
    t = std::min(t, T(2));
    return std::min(T(0.5) + t / T(4) * exact_sqrt(T(2) - t * t / T(4)), T(1));
  }
  return std::min(T(0.5) + t / T(2), T(1));
}

// d share / d t, where share < 1.
template <Alpha alpha, class T>
KNOCKOUT_INLINE T share_slope(T t, T share) {
  if constexpr (alpha == Alpha::softmax) return share * (T(1) - share);
  if constexpr (alpha == Alpha::entmax) return (T(1) - t * t / T(4)) / (T(2) * std::sqrt(T(2) - t * t / T(4)));
  return T(0.5);
}

}  // namespace knockout
