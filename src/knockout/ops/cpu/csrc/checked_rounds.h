// Saved rounds on their way back into the backward pass. They come from a tensor that can hold anything, and that other
// threads may change meanwhile. So everything that is used as an index is copied first, and checked in the copy: after
// that it cannot lead outside of the arrays, nor around in circles.
#pragma once

#include <algorithm>
#include <array>
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
  // Read the saved rounds of a row. Returns what is wrong with them, or null.
  const char* read(const int32_t* data, int64_t length, const RowCall<T>& call) {
    const RowShape& shape = call.shape;
    constexpr auto kOther = "saved must be what tournament saved in a call with the same arguments and save=True";
    constexpr auto kChanged = "saved has been changed since tournament returned it: its rounds do not fit together";
    if (length < integers_per<SavedHeader>()) return kOther;
    std::memcpy(&header_, data, sizeof(header_));
    finish_reading();
    if (header_.call != header_.sign(call.hash).call || header_.n != shape.n || header_.slots != shape.k) return kOther;
    if (!valid()) return nullptr;
    n_ = shape.n;
    const int64_t active = header_.active, partial = header_.partial;
    if (active < 0 || active > n_) return kChanged;
    k_ = shape.slots_for(active);
    rounds_ = round_count(active, k_);
    if (partial < 0 || partial > rounds_) return kChanged;
    if (header_.nodes < 0 || header_.nodes > active - filled()) return kChanged;
    if (length < SavedLayout::roots<T>()) return kChanged;
    std::memcpy(round_.data(), data + integers_per<SavedHeader>(), sizeof(round_));
    std::memcpy(scale_.data(), data + SavedLayout::kScales, sizeof(scale_));
    finish_reading();
    if (!rounds_fit()) return kChanged;
    const int64_t size = partial ? k_ << (rounds_ - partial) : active;
    const SavedLayout layout{shape.k, ordered_entries(call.boost, round_.data(), rounds_, header_.partial, size),
                             header_.nodes};
    if (length < layout.template length<T>()) return kChanged;

    refs_ = Buffer<int32_t>(layout.refs());
    std::memcpy(refs_.get(), data + SavedLayout::roots<T>(), static_cast<size_t>(layout.refs()) * sizeof(int32_t));
    finish_reading();
    root_ = refs_.get();
    order_ = layout.ordered ? root_ + layout.slots : nullptr;
    pair_ = reinterpret_cast<Pair*>(root_ + layout.slots + layout.ordered);
    return references_fit(layout.ordered) ? nullptr : kChanged;
  }

  bool valid() const { return header_.active != -1; }  // false for an invalid row, of which nothing else is known
  int64_t nodes() const { return header_.nodes; }
  int64_t filled() const { return std::min<int64_t>(header_.active, k_); }  // slots
  int32_t root(int64_t slot) const { return root_[slot]; }
  const Round& round(int r) const { return round_[r]; }
  T scale(int r) const { return scale_[r]; }
  const Pair* pair() const { return pair_; }
  int32_t* order() const { return order_; }  // a copy, which may be changed; null if it was not needed
  Progress progress() const {
    Progress progress(header_.active, k_);
    progress.partial = header_.partial, progress.nodes = header_.nodes;
    return progress;
  }

  // The leader of a slot: the better entry of the better entry, and so on.
  int32_t leader(int64_t slot) const { return Leaders{static_cast<int32_t>(n_), pair_}(root_[slot]); }

 private:
  // The end of the nodes of a round.
  int64_t node_end(int r) const { return r + 1 < rounds_ ? round_[r + 1].node : header_.nodes; }

  // Whether the rounds are those of a tournament of so many candidates, and their nodes follow each other.
  bool rounds_fit() const {
    int64_t size = header_.active, node = 0;
    for (int r = 0; r < rounds_; ++r) {
      const Round& round = round_[r];
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
    const int32_t* const refs = root_ + header_.slots + ordered;  // of the pairs
    bool fits = in_range(root_, filled(), end) && in_range(root_ + header_.slots, ordered, end);
    for (int r = 0; fits && r < rounds_; ++r) {
      const int64_t first = round_[r].node, count = node_end(r) - first;
      fits = in_range(refs + 2 * first, 2 * count, n_ + first);
    }
    if (!fits) return false;
    const Buffer<uint8_t> used(end);
    std::fill_n(used.get(), end, uint8_t{0});
    uint8_t twice = 0;
    const auto use = [&](const int32_t* refs, int64_t count) {
      for (int64_t i = 0; i < count; ++i) twice |= std::exchange(used[refs[i]], uint8_t{1});
    };
    use(refs, 2 * header_.nodes);
    use(root_, filled());
    return twice == 0;
  }

  SavedHeader header_{};
  int64_t n_ = 0, k_ = 0;  // slots that the row fills if it has enough candidates
  int rounds_ = 0;
  std::array<Round, kMaxRounds> round_;
  std::array<T, kMaxRounds> scale_;
  Buffer<int32_t> refs_;
  int32_t *root_ = nullptr, *order_ = nullptr;
  Pair* pair_ = nullptr;
};

}  // namespace knockout
