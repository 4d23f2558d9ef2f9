// Sums of distances |x - middle| that have the same bits in any order of summation, as `exact_sum` of the reference.
//
// Every distance is rounded to a multiple of a power of two that is coarse enough for all sums to be exact; what the
// rounding cuts off is summed in the same way on a finer grid. Partial sums can therefore be added in any order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "compiler.h"
#include "entry.h"

namespace knockout {

constexpr double kScaleDown = 0x1p-40;  // keeps sums of the largest finite numbers finite

struct ExactSum {
  double coarse = 0, fine = 0;  // on the two grids
  void operator+=(const ExactSum& other) { coarse += other.coarse, fine += other.fine; }
};

// The two grids for a sum of `count` distances from `middle`, of which the largest is `farthest`; both are already
// multiplied by kScaleDown.
struct DistanceGrid {
  double middle, shift, fine_shift;  // adding and subtracting a shift rounds to its grid

  DistanceGrid(double middle_, double farthest, int64_t count) : middle(middle_) {
    const double room = 4.0 * static_cast<double>(count);
    shift = farthest * room;
    fine_shift = shift * (room * 0x1p-52);
  }

  KNOCKOUT_INLINE void add(double x, double& coarse, double& fine) const {
    const double distance = std::abs(x * kScaleDown - middle);
    const double on_grid = (distance + shift) - shift;
    coarse += on_grid;
    fine += ((distance - on_grid) + fine_shift) - fine_shift;
  }
};

template <class T>
KNOCKOUT_INLINE ExactSum sum_distances_of(const Entry<T>* entry, int64_t count, const DistanceGrid& shared_grid) {
  const DistanceGrid grid = shared_grid;  // a local copy can stay in registers
  if (count < 2 * kLanes) {
    ExactSum sum;
    for (int64_t i = 0; i < count; ++i) grid.add(double(entry[i].score), sum.coarse, sum.fine);
    return sum;
  }
  double coarse[kLanes] = {}, fine[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) grid.add(double(entry[i + lane].score), coarse[lane], fine[lane]);
  }
  for (; i < count; ++i) grid.add(double(entry[i].score), coarse[0], fine[0]);
  ExactSum sum;
  for (int64_t lane = 0; lane < kLanes; ++lane) sum += {coarse[lane], fine[lane]};
  return sum;
}

KNOCKOUT_VECTORIZED ExactSum sum_distances(const Entry<float>* entry, int64_t count, const DistanceGrid& grid) {
  return sum_distances_of(entry, count, grid);
}
KNOCKOUT_VECTORIZED ExactSum sum_distances(const Entry<double>* entry, int64_t count, const DistanceGrid& grid) {
  return sum_distances_of(entry, count, grid);
}

// The sum divided by `count`, scaled up again; at most the largest finite number.
template <class T>
T mean_of(const ExactSum& sum, int64_t count) {
  const double mean = ((0.0 + sum.coarse) + sum.fine) / static_cast<double>(count) / kScaleDown;
  return T(std::min(mean, double(std::numeric_limits<T>::max())));
}

}  // namespace knockout
