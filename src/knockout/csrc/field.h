// The field of one row, best first, but sorted only where somebody looks.
//
// Candidates are dealt into buckets by score: buckets are in order, and what is inside one is sorted when a rank inside
// it is asked for. A round asks for the middle of the field and for the band of undecided pairs around it; all others
// keep no more order than they need. Blends are never above those who won outright, so the field after a round is what
// is left of the buckets, followed by the blends, dealt into buckets of their own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "deal.h"
#include "sort.h"

namespace knockout {

template <class T>
KNOCKOUT_INLINE Total distances_of(const Entry<T>* entry, int64_t count, const Grid& grid) {
  const Grid mine = grid;
  if (count < 2 * kLanes) {
    Total few;
    for (int64_t i = 0; i < count; ++i) mine.add(double(entry[i].score), few.coarse, few.fine);
    return few;
  }
  double coarse[kLanes] = {}, fine[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) mine.add(double(entry[i + lane].score), coarse[lane], fine[lane]);
  }
  for (; i < count; ++i) mine.add(double(entry[i].score), coarse[0], fine[0]);
  Total total;
  for (int64_t lane = 0; lane < kLanes; ++lane) total += {coarse[lane], fine[lane]};
  return total;
}
KNOCKOUT_WIDE Total distances(const Entry<float>* entry, int64_t count, const Grid& grid) {
  return distances_of(entry, count, grid);
}
KNOCKOUT_WIDE Total distances(const Entry<double>* entry, int64_t count, const Grid& grid) {
  return distances_of(entry, count, grid);
}

template <class T>
class Field {
 public:
  // `spare` has room for the blends of a round.
  Field(Entry<T>* spare, const Leaders& leaders) : spare_(spare), leaders_(leaders) {}

  Entry<T>* entries() const { return entries_; }
  Entry<T>* spare() const { return spare_; }
  int32_t leader(int32_t ref) const { return leaders_(ref); }
  const Leaders& leaders() const { return leaders_; }

  // Count `count` candidates into buckets; `entries` has room for them. They are let in later: all, or some.
  template <class Team>
  void open(Entry<T>* entries, const Candidates<T>& candidates, int64_t count, T low, T high, const Team& team) {
    entries_ = entries;
    const int64_t buckets = low < high ? buckets_for(count) : 1;
    if (buckets < 2) {
      for (int64_t i = 0; i < count; ++i) entries_[i] = candidates[i];
      replace(entries_, count, !(low < high));  // all equal: as they come
      return;
    }
    start_.resize(buckets + 1);
    settled_.assign(buckets, 0);
    waiting_.emplace(candidates, count, low, high, team.width());
    waiting_->count(0, start_.data(), team);
  }

  template <class Team>
  void let_in(const Team& team) {
    if (waiting_) waiting_->place(entries_, nullptr, team);
    waiting_.reset();
  }

  // Those of some ranks, sorted; they are in their places then, and what is around them is not defined.
  template <class Spans, class Team>
  void let_in(const Spans& spans, const Team& team) {
    if (waiting_) {
      std::vector<uint8_t> wanted(settled_.size(), 0);
      for (const auto& span : spans) {
        std::fill(wanted.begin() + bucket_of(span.begin), wanted.begin() + bucket_of(span.end - 1) + 1, 1);
      }
      waiting_->place(entries_, wanted.data(), team);
    }
    for (const auto& span : spans) settle(span.begin, span.end, team);
  }

  // Nothing was sorted yet, as far as those are concerned who were not let in.
  void forget() {
    if (waiting_) std::fill(settled_.begin(), settled_.end(), 0);
  }

  // After a round: the field is cut off at rank `begin`, and the `count` blends in `spare` follow.
  template <class Team>
  void close(int64_t begin, int64_t count, const Team& team) {
    const int64_t cut = start_.back() == begin ? static_cast<int64_t>(settled_.size()) : bucket_of(begin);
    start_.resize(cut + 1);
    settled_.resize(cut);
    if (start_[cut] < begin) {
      settled_.push_back(1);  // a rank right behind it was asked for
      start_.push_back(static_cast<int32_t>(begin));
    }
    if (count == 0) return;
    T low = spare_[0].score, high = low;
    bool sorted = true;
    for (int64_t i = 1; i < count; ++i) {
      const T score = spare_[i].score;
      sorted = sorted && score < spare_[i - 1].score;
      low = score < low ? score : low;
      high = score > high ? score : high;
    }
    // A blend can come out equal to the last of those who won outright: then they share a bucket, and indices decide.
    int64_t tied = begin;
    while (tied > 0 && entries_[tied - 1].score == high) --tied;
    if (tied < begin) {
      while (start_.size() > 1 && start_[start_.size() - 2] >= tied) start_.pop_back(), settled_.pop_back();
    }
    const size_t first = settled_.size();
    const int64_t buckets = low < high && !sorted ? buckets_for(count) : 1;
    start_.resize(first + 1 + buckets);
    settled_.resize(first + buckets, 0);
    if (buckets < 2) {
      std::copy(spare_, spare_ + count, entries_ + begin);
      settled_[first] = sorted;
      start_.back() = static_cast<int32_t>(begin + count);
    } else {
      Deal<T, Blends<T>> deal({spare_}, count, low, high, team.width());
      deal.count(static_cast<int32_t>(begin), start_.data() + first, team);
      deal.place(entries_, nullptr, team);
    }
    if (tied < begin) {
      start_[first] = static_cast<int32_t>(tied);
      settled_[first] = 0;
    }
  }

  // Go on with `count` others, sorted or not.
  void replace(Entry<T>* entries, int64_t count, bool sorted) {
    entries_ = entries;
    start_ = {0, static_cast<int32_t>(count)};
    settled_.assign(1, sorted);
    waiting_.reset();
  }

  // The one at a rank.
  const Entry<T>& at(int64_t rank) {
    const int64_t bucket = bucket_of(rank);
    if (!settled_[bucket]) settle(bucket);
    return entries_[rank];
  }

  // Sort the ranks from begin to end.
  template <class Team>
  void settle(int64_t begin, int64_t end, const Team& team) {
    if (begin >= end) return;
    const int64_t first = bucket_of(begin), last = bucket_of(end - 1) + 1;
    team(last - first, std::max<int64_t>(1, (last - first) * 16384 / (start_[last] - start_[first] + 1)),
         [&](int64_t from, int64_t to) {
           sort_small(entries_, start_.data() + first + from, settled_.data() + first + from, to - from, leaders_);
           for (int64_t b = first + from; b < first + to; ++b) {
             if (!settled_[b]) settle(b);
           }
         });
  }

  const std::vector<int32_t>& start() const { return start_; }

  // The bucket that holds a rank.
  int64_t bucket_of(int64_t rank) const {
    const int32_t* start = start_.data();
    for (int64_t size = static_cast<int64_t>(settled_.size()); size > 1;) {  // without branches
      const int64_t half = size / 2;
      start += start[half] <= rank ? half : 0;
      size -= half;
    }
    return start - start_.data();
  }

 private:
  void settle(int64_t bucket) {
    settled_[bucket] = 1;
    sort_entries(entries_ + start_[bucket], start_[bucket + 1] - start_[bucket], leaders_);
  }

  Entry<T>* entries_ = nullptr;
  Entry<T>* spare_;
  Leaders leaders_;
  std::vector<int32_t> start_;
  std::vector<uint8_t> settled_;
  std::optional<Deal<T, Candidates<T>>> waiting_;
};

}  // namespace knockout
