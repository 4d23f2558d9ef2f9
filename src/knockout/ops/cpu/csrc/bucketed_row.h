// The candidates of one row in buckets by score, sorted within the buckets only where their order is needed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "buckets.h"
#include "rank_range.h"
#include "sort.h"

namespace knockout {

template <class T>
class BucketedRow {
 public:
  // Count the candidates of each bucket; `entries` has room for all of them.
  template <class Threads>
  BucketedRow(Entry<T>* entries, const CandidateSource<T>& candidates, int64_t count, T low, T high,
              const Leaders& leaders, const Threads& threads)
      : entries_(entries),
        leaders_(leaders),
        buckets_(bucket_count_for(count)),
        start_(buckets_ + 1),
        bucket_sort_(candidates, count, low, high, threads.count()) {
    largest_ = bucket_sort_.count(start_.get(), threads);
  }

  int64_t buckets() const { return buckets_; }
  const int32_t* start() const { return start_.get(); }  // the first rank of every bucket

  // The bucket that contains a rank.
  int64_t bucket_of(int64_t rank) const {
    const int32_t* start = start_.get();
    for (int64_t size = buckets_; size > 1;) {  // binary search without branches
      const int64_t half = size / 2;
      start += start[half] <= rank ? half : 0;
      size -= half;
    }
    return start - start_.get();
  }

  // Write all candidates, sorted, to the entries.
  template <class Threads>
  void sort(const Threads& threads) const {
    bucket_sort_.place(entries_, nullptr, threads);
    sort_buckets(entries_, start_.get(), buckets_, largest_, leaders_, threads);
  }

  // Write the candidates of some ranks, sorted, to entries[rank]; the entries at other ranks are undefined.
  template <class Threads>
  void sort(const std::vector<RankRange>& ranges, const Threads& threads) const {
    const Buffer<uint8_t> wanted(buckets_);
    std::fill_n(wanted.get(), buckets_, uint8_t{0});
    for (const RankRange& range : ranges) {
      std::fill(wanted.get() + bucket_of(range.begin), wanted.get() + bucket_of(range.end - 1) + 1, uint8_t{1});
    }
    bucket_sort_.place(entries_, wanted.get(), threads);
    for (int64_t begin = 0, end = 0; begin < buckets_; begin = end + 1) {
      while (begin < buckets_ && !wanted[begin]) ++begin;
      for (end = begin; end < buckets_ && wanted[end];) ++end;
      if (begin < end) sort_buckets(entries_, start_.get() + begin, end - begin, largest_, leaders_, threads);
    }
  }

 private:
  Entry<T>* entries_;
  Leaders leaders_;
  int64_t buckets_, largest_ = 0;
  Buffer<int32_t> start_;
  BucketSort<T, CandidateSource<T>> bucket_sort_;
};

}  // namespace knockout
