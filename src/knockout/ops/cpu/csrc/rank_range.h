// Ranges of ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace knockout {

// The ranks from `begin` to `end` - 1; rank 0 is the best.
struct RankRange {
  int64_t begin, end;
};

// Sort the ranges, and merge those with a distance of at most `slack`.
inline void merge_ranges(std::vector<RankRange>& ranges, int64_t slack) {
  std::sort(ranges.begin(), ranges.end(),
            [](const RankRange& one, const RankRange& other) { return one.begin < other.begin; });
  size_t count = 0;
  for (const RankRange& range : ranges) {
    if (count && range.begin <= ranges[count - 1].end + slack) {
      ranges[count - 1].end = std::max(ranges[count - 1].end, range.end);
    } else {
      ranges[count++] = range;
    }
  }
  ranges.resize(count);
}

}  // namespace knockout
