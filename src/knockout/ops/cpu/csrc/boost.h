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

enum class BoostKind : int64_t { relative = 0, fixed = 1, power = 2 };  // Python's Base is fixed, with log(base) as c
enum class Alpha : int64_t { softmax = 0, entmax = 1, sparsemax = 2 };  // alpha of entmax: 1, 1.5, 2

template <class T>
struct Boost {
  BoostKind kind;
  Alpha alpha;
  T c;              // relative, fixed: as in Python; power: the logarithm of the base
  T initial_scale;  // relative: the scale before the first round

  Boost(int64_t kind_, int64_t alpha_, double c_, double unit)
      : kind(BoostKind(kind_)),
        alpha(Alpha(alpha_)),
        c(T(std::min(kind == BoostKind::power ? std::log(c_) : c_, double(std::numeric_limits<T>::max())))),
        initial_scale(converted(2.0 * std::max(unit, double(std::numeric_limits<T>::min())))) {}

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
template <class T>
KNOCKOUT_INLINE T share_slope(Alpha alpha, T t, T share) {
  if (alpha == Alpha::softmax) return share * (T(1) - share);
  if (alpha == Alpha::entmax) return (T(1) - t * t / T(4)) / (T(2) * std::sqrt(T(2) - t * t / T(4)));
  return T(0.5);
}

}  // namespace knockout
