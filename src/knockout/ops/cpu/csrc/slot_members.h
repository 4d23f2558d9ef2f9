// Members and weights of the slots of a batch, as tensors.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "arguments.h"
#include "gather.h"
#include "read_once.h"

namespace knockout {

// Members (*batch, k, max_members), int32 or int64, and weights of the same shape, float32 or float64. A member of n is
// padding. Slots are numbered through the whole batch: slot s is in row s / k.
class SlotMembers {
 public:
  SlotMembers(const std::optional<Tensor>& weight, const Tensor& member) : sizes(checked(weight, member)) {
    max_members = sizes.back();
    k = sizes[sizes.size() - 2];
    batch.assign(sizes.begin(), sizes.end() - 2);
    rows = product(batch, batch.size());
    if (weight) weight_ = as_contiguous(*weight);
    member_ = as_contiguous(member);
    weight_data_ = weight_ ? weight_->data_ptr() : nullptr;
    member_data_ = member_.data_ptr();
    weight_is_double_ = weight && weight->scalar_type() == ScalarType::Double;
    member_is_long_ = member.scalar_type() == ScalarType::Long;
  }

  // Raise an error if a member was out of range. It was skipped: nothing can be thrown while threads are at work.
  void check_range(int64_t n) const {
    check(!out_of_range_, "member must be from 0 to n = ", n, ", where n is padding; got a number out of this range");
  }

  // use(i, member, weight) for the members of a slot that are not padding; the weight is 1 if there are no weights.
  template <class C, class Use>
  void for_each(int64_t slot, int64_t n, const Use& use) const {
    if (member_is_long_) {
      return weight_is_double_ ? for_each_as<C, int64_t, double>(slot, n, use)
                               : for_each_as<C, int64_t, float>(slot, n, use);
    }
    return weight_is_double_ ? for_each_as<C, int32_t, double>(slot, n, use)
                             : for_each_as<C, int32_t, float>(slot, n, use);
  }

  bool leader_is_padding(int64_t slot, int64_t n) const {
    const int64_t i = slot * max_members;
    return (member_is_long_ ? static_cast<const int64_t*>(member_data_)[i]
                            : static_cast<const int32_t*>(member_data_)[i]) >= n;
  }

  Sizes sizes, batch;
  int64_t k, max_members, rows;

 private:
  static Sizes checked(const std::optional<Tensor>& weight, const Tensor& member) {
    check_tensor(member, "member", {ScalarType::Int, ScalarType::Long}, "int32 or int64");
    Sizes sizes = sizes_of(member);
    check(sizes.size() >= 2 && sizes.back() >= 1 && sizes[sizes.size() - 2] >= 1,
          "member must have shape (*batch, k, m) with k and m of at least 1; got ", sizes);
    if (weight) {
      check_tensor(*weight, "weight", {ScalarType::Float, ScalarType::Double}, "float32 or float64");
      check_shape(*weight, "weight", sizes, {});
    }
    return sizes;
  }

  template <class C, class I, class W, class Use>
  void for_each_as(int64_t slot, int64_t n, const Use& use) const {
    const I* member = static_cast<const I*>(member_data_) + slot * max_members;
    const W* weight = weight_data_ ? static_cast<const W*>(weight_data_) + slot * max_members : nullptr;
    constexpr int64_t block = 64;
    for (int64_t at = 0; at < max_members; at += block) {
      const int64_t end = std::min(at + block, max_members);
      // Most members of a long slot are padding: skip whole blocks of it.
      I least = std::numeric_limits<I>::max(), largest = 0;
      for (int64_t i = at; i < end; ++i) least = std::min(least, member[i]), largest = std::max(largest, member[i]);
      if (least < 0 || largest > n) out_of_range_ = true;
      if (least >= n) continue;
      for (int64_t i = at; i < end; ++i) {
        const I each = read_once(member[i]);
        if (each >= 0 && each < n) use(i, static_cast<int64_t>(each), weight ? static_cast<C>(weight[i]) : C(1));
      }
    }
  }

  std::optional<Tensor> weight_;
  Tensor member_;
  const void *weight_data_, *member_data_;  // asking a tensor for them is a call into PyTorch
  bool weight_is_double_, member_is_long_;
  mutable std::atomic<bool> out_of_range_ = false;
};

// The row of one slot after the other, without a division for each.
struct RowOfSlot {
  int64_t index, k, left;
  RowOfSlot(int64_t slot, int64_t k_) : index(slot / k_), k(k_), left((index + 1) * k_ - slot) {}
  void advance() {
    if (--left == 0) ++index, left = k;
  }
};

// The packed members of a few consecutive slots, so that value rows of the next slots are on their way from memory
// while those of a slot are summed.
template <class C>
class PackedSlots {
 public:
  static constexpr int64_t kSlots = 32;

  void clear() { offset_.clear(), weight_.clear(), end_.clear(); }
  void add_member(int64_t offset, C weight) { offset_.push_back(offset), weight_.push_back(weight); }
  void end_slot() { end_.push_back(static_cast<int64_t>(offset_.size())); }

  // Let the first value rows be on their way from memory.
  template <class V>
  void prefetch_first(const V* values, int64_t d) const {
    const auto count = std::min<int64_t>(kRowsAhead, static_cast<int64_t>(offset_.size()));
    for (int64_t i = 0; i < count; ++i) prefetch(values + offset_[i], d);
  }

  // The members of the i-th slot.
  PackedMembers<C, int64_t> operator[](int64_t i) const {
    const int64_t begin = i ? end_[i - 1] : 0;
    return {offset_.data() + begin, 1, weight_.data() + begin, end_[i] - begin,
            static_cast<int64_t>(offset_.size()) - begin};
  }

 private:
  std::vector<int64_t> offset_, end_;
  std::vector<C> weight_;
};

}  // namespace knockout
