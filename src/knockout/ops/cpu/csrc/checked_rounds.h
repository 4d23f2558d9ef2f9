// Saved rounds on their way back into the backward pass. They come from a tensor that can hold anything, and that other
// threads may change meanwhile. So everything that is used as an index is copied first, and checked in the copy: after
// that it cannot lead outside of the arrays, nor around in circles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "buffer.h"
#include "read_once.h"
#include "row_call.h"
#include "saved_rounds.h"

namespace knockout {

template <class T>
class CheckedRounds {
 public:
  // Read the saved rounds of a row. Returns what is wrong with them, or null. `data` must be aligned for T.
  const char* read(const int32_t* data, int64_t length, const RowCall<T>& call) {
    const RowShape& shape = call.shape;
    constexpr auto kOther = "saved must be what tournament saved in a call with the same arguments and save=True";
    constexpr auto kChanged = "saved has been changed since tournament returned it: its rounds do not fit together";
    if (length < integers_per<SavedHeader>() || length % integers_per<T>() != 0) return kOther;
    std::memcpy(&header_, data, sizeof(header_));
    finish_reading();
    if (header_.call != call.hash || header_.n != shape.n || header_.slots != shape.k) return kOther;
    if (!valid()) return nullptr;
    n_ = shape.n;
    const int64_t active = header_.active, partial = header_.partial;
    if (active < 0 || active > n_) return kChanged;
    k_ = shape.slots_for(active);
    rounds_ = round_count(active, k_);
    if (partial < 0 || partial > rounds_) return kChanged;
    if (header_.nodes < 0 || header_.nodes > active - filled()) return kChanged;
    const SavedLayout layout{shape.k, partial ? k_ << (rounds_ - partial) : active, header_.nodes};
    if (length < layout.template length<T>()) return kChanged;

    integers_ = Buffer<int32_t>(layout.integers());
    std::memcpy(integers_.get(), data, static_cast<std::size_t>(layout.integers()) * sizeof(int32_t));
    finish_reading();
    // Shares, scores, gaps and scales are only computed with, never followed: they stay where they are.
    T* const numbers = reinterpret_cast<T*>(const_cast<int32_t*>(data + layout.integers()));
    const SavedRounds<T> saved(integers_.get(), numbers, layout);
    rounds_data_ = saved.rounds, root_ = saved.root;
    return rounds_fit() && references_fit(layout.ordered) ? nullptr : kChanged;
  }

  bool valid() const { return header_.active != -1; }  // false for an invalid row, of which nothing else is known
  int64_t nodes() const { return header_.nodes; }
  int64_t filled() const { return std::min<int64_t>(header_.active, k_); }  // slots
  int32_t root(int64_t slot) const { return root_[slot]; }
  const Rounds<T>& rounds() const { return rounds_data_; }  // its `order` is a copy, and may be changed
  Progress progress() const {
    Progress progress(header_.active, k_);
    progress.partial = header_.partial, progress.nodes = header_.nodes;
    return progress;
  }

  // The leader of a slot: the better entry of the better entry, and so on.
  int32_t leader(int64_t slot) const {
    int32_t ref = root_[slot];
    while (ref >= n_) ref = rounds_data_.better[ref - n_];
    return ref;
  }

 private:
  // The end of the nodes of a round.
  int64_t node_end(int r) const { return r + 1 < rounds_ ? rounds_data_.round[r + 1].node : header_.nodes; }

  // Whether the rounds are those of a tournament of so many candidates, and their nodes follow each other.
  bool rounds_fit() const {
    int64_t size = header_.active, node = 0;
    for (int r = 0; r < rounds_; ++r) {
      const Round& round = rounds_data_.round[r];
      const int64_t half = k_ << (rounds_ - r - 1), pairs = size - half, count = node_end(r) - node;
      const auto source = static_cast<int32_t>(round.source);
      if (round.size != size || round.pairs != pairs || round.byes != half - pairs || round.node != node) return false;
      if (round.decided < 0 || source < 0 || source > static_cast<int32_t>(ScaleSource::none)) return false;
      if (count < 0 || (r < header_.partial ? count > pairs : count != pairs - round.decided)) return false;
      size = half;
      node += count;
    }
    return node == header_.nodes;
  }

  // Whether all numbers are from 0 to end - 1.
  static bool in_range(const int32_t* numbers, int64_t count, int64_t end) {
    const uint32_t last = static_cast<uint32_t>(end - 1);
    uint32_t bits = 0;  // the highest bit is set if a number is negative, or larger than the last one
    for (int64_t i = 0; i < count; ++i) {
      const auto number = static_cast<uint32_t>(numbers[i]);
      bits |= number | (last - number);
    }
    return bits >> 31 == 0;
  }

  // Whether the nodes form trees with the slots as roots: the entries of a pair come from earlier rounds, so that a
  // tree is not deeper than there are rounds, and no entry is in two pairs.
  bool references_fit(int64_t ordered) const {
    const int64_t end = n_ + header_.nodes;
    bool fits = in_range(root_, filled(), end) && in_range(rounds_data_.order, ordered, end);
    for (int r = 0; fits && r < rounds_; ++r) {
      const int64_t first = rounds_data_.round[r].node, count = node_end(r) - first;
      fits = in_range(rounds_data_.better + first, count, n_ + first) &&
             in_range(rounds_data_.worse + first, count, n_ + first);
    }
    if (!fits) return false;
    const Buffer<uint8_t> used(end);
    std::fill_n(used.get(), end, uint8_t{0});
    uint8_t twice = 0;
    const auto use = [&](const int32_t* refs, int64_t count) {
      for (int64_t i = 0; i < count; ++i) twice |= std::exchange(used[refs[i]], uint8_t{1});
    };
    use(rounds_data_.better, header_.nodes);
    use(rounds_data_.worse, header_.nodes);
    use(root_, filled());
    return twice == 0;
  }

  SavedHeader header_{};
  int64_t n_ = 0, k_ = 0;  // slots that the row fills if it has enough candidates
  int rounds_ = 0;
  Buffer<int32_t> integers_;
  Rounds<T> rounds_data_{};
  int32_t* root_ = nullptr;
};

}  // namespace knockout
