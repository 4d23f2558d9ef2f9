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

// Four numbers, as a vector of the compiler (GCC and Clang).
typedef double FourDoubles __attribute__((vector_size(32)));

template <class T>
KNOCKOUT_INLINE ExactSum sum_distances_of(const Entry<T>* entry, int64_t count, const DistanceGrid& grid) {
  constexpr int64_t vectors = 2;  // at a time; more would not stay in registers
  const FourDoubles middle = FourDoubles{} + grid.middle, shift = FourDoubles{} + grid.shift;
  const FourDoubles fine_shift = FourDoubles{} + grid.fine_shift;
  FourDoubles coarse[vectors] = {}, fine[vectors] = {};
  int64_t i = 0;
  for (; i + 4 * vectors <= count; i += 4 * vectors) {
    for (int64_t v = 0; v < vectors; ++v) {
      const Entry<T>* const four = entry + i + 4 * v;
      const FourDoubles x{double(four[0].score), double(four[1].score), double(four[2].score), double(four[3].score)};
      const FourDoubles difference = x * kScaleDown - middle;
      const FourDoubles distance = difference < 0 ? -difference : difference;
      const FourDoubles on_grid = (distance + shift) - shift;
      coarse[v] += on_grid;
      fine[v] += ((distance - on_grid) + fine_shift) - fine_shift;
    }
  }
  ExactSum sum;
  for (; i < count; ++i) grid.add(double(entry[i].score), sum.coarse, sum.fine);
  for (int64_t v = 0; v < vectors; ++v) {
    for (int64_t lane = 0; lane < 4; ++lane) sum += {coarse[v][lane], fine[v][lane]};
  }
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
