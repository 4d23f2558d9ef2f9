// The candidates of one row, dealt into buckets by score: the buckets are in order, and what is inside one is sorted
// when somebody asks for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "deal.h"
#include "sort.h"

namespace knockout {

// Ranks, best first.
struct Span {
  int64_t begin, end;
};

template <class T>
class Field {
 public:
  // Count `count` candidates into buckets; `entries` has room for them.
  template <class Team>
  Field(Entry<T>* entries, const Candidates<T>& candidates, int64_t count, T low, T high, const Leaders& leaders,
        const Team& team)
      : entries_(entries),
        leaders_(leaders),
        buckets_(buckets_for(count)),
        start_(buckets_ + 1),
        deal_(candidates, count, low, high, team.width()) {
    most_ = deal_.count(start_.get(), team);
  }

  int64_t buckets() const { return buckets_; }
  const int32_t* start() const { return start_.get(); }

  // The bucket that holds a rank.
  int64_t bucket_of(int64_t rank) const {
    const int32_t* start = start_.get();
    for (int64_t size = buckets_; size > 1;) {  // without branches
      const int64_t half = size / 2;
      start += start[half] <= rank ? half : 0;
      size -= half;
    }
    return start - start_.get();
  }

  // All candidates, sorted, to the entries.
  template <class Team>
  void sort(const Team& team) const {
    deal_.place(entries_, nullptr, team);
    sort_buckets(entries_, start_.get(), buckets_, most_, leaders_, team);
  }

  // Those of some ranks, sorted, to their places among the entries; what is around them is not defined.
  template <class Team>
  void sort(const std::vector<Span>& spans, const Team& team) const {
    const Buffer<uint8_t> wanted(buckets_);
    std::fill_n(wanted.get(), buckets_, uint8_t{0});
    for (const Span& span : spans) {
      std::fill(wanted.get() + bucket_of(span.begin), wanted.get() + bucket_of(span.end - 1) + 1, uint8_t{1});
    }
    deal_.place(entries_, wanted.get(), team);
    for (int64_t begin = 0, end = 0; begin < buckets_; begin = end + 1) {
      while (begin < buckets_ && !wanted[begin]) ++begin;
      for (end = begin; end < buckets_ && wanted[end];) ++end;
      if (begin < end) sort_buckets(entries_, start_.get() + begin, end - begin, most_, leaders_, team);
    }
  }

 private:
  Entry<T>* entries_;
  Leaders leaders_;
  int64_t buckets_, most_ = 0;
  Buffer<int32_t> start_;
  Deal<T, Candidates<T>> deal_;
};

}  // namespace knockout
