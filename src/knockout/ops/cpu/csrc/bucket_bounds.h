// Bounds on scores by rank, from the sizes of the buckets alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "buffer.h"

namespace knockout {

class BucketBounds {
 public:
  // `start` has the first rank of each of the buckets, which divide the scores from `low` to `high` evenly.
  BucketBounds(const int32_t* start, int64_t buckets, double low, double high, double epsilon)
      : start_(start),
        total_(buckets + 1),
        high_(high),
        width_((high - low) / double(buckets)),
        rounding_(16 * epsilon * (std::abs(high) + std::abs(low))) {
    total_[0] = 0;
    for (int64_t b = 0; b < buckets; ++b) total_[b + 1] = total_[b] + int64_t{start[b + 1] - start[b]} * b;
  }

  bool finite() const { return width_ + rounding_ < std::numeric_limits<double>::infinity(); }

  // Bounds on the scores in a bucket.
  double upper(int64_t bucket) const { return high_ - double(bucket) * width_ + rounding_; }
  double lower(int64_t bucket) const { return high_ - double(bucket + 1) * width_ - rounding_; }

  // The sum of the bucket numbers of all ranks before `rank`, which is in `bucket`.
  double sum_of_buckets(int64_t rank, int64_t bucket) const {
    return double(total_[bucket]) + double(rank - start_[bucket]) * double(bucket);
  }

  // An upper bound on the sum of the scores of `count` ranks minus the sum of the scores of `count` other ranks, from
  // the sums of their bucket numbers.
  double upper_difference(double buckets, double other_buckets, int64_t count) const {
    return (other_buckets - buckets) * width_ + double(count) * (width_ + 2 * rounding_);
  }

 private:
  const int32_t* start_;
  Buffer<int64_t> total_;  // sums of the bucket numbers of all ranks before a bucket
  double high_, width_, rounding_;
};

}  // namespace knockout
