// The selection of one row: from its scores to its slots, with their members and weights.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "active_candidates.h"
#include "forward.h"
#include "partial_rounds.h"
#include "row_call.h"
#include "saved_rounds.h"

namespace knockout {

// Working memory, reused from row to row.
template <class T>
struct Workspace {
  Buffer<Entry<T>> entries;
  CandidateMemory<T> candidates;
  Buffer<int32_t> leader, saved;

  explicit Workspace(const RowShape& shape)
      : entries(shape.n),
        leader(shape.n - shape.k),
        saved(SavedLayout::largest(shape.n, shape.k).template length<T>()) {}
};

// Where to write the results of a row that have one number per slot.
template <class T>
struct SlotOutputs {
  T* score;
  int64_t* leader;  // -1 for a slot that is not filled
  bool* filled;
};

// The results of a row whose length depends on the scores.
template <class T>
struct RowResult {
  std::vector<int32_t> member;  // of all slots, one after the other
  std::vector<T> weight;        // per member
  std::vector<int32_t> end;     // per slot: where its members end
  std::vector<int32_t> saved;   // see saved_rounds.h; empty if nothing is to be saved
  bool valid = true;            // false if a score is NaN or +inf

  int64_t begin(int64_t slot) const { return slot ? end[slot - 1] : 0; }

  // The number of members of the slot that has most, at least 1.
  int64_t most_members() const {
    int64_t most = 1;
    for (size_t slot = 0; slot < end.size(); ++slot) most = std::max<int64_t>(most, end[slot] - begin(slot));
    return most;
  }
};

// The result of an invalid row: all weights and scores NaN; each slot has one of the first active candidates.
template <class T>
void select_invalid_row(const ActiveCandidates<T>& candidates, const RowShape& shape, const SlotOutputs<T>& out,
                        RowResult<T>& result) {
  result.valid = false;
  std::fill_n(out.score, shape.k, std::numeric_limits<T>::quiet_NaN());
  const int64_t filled = std::min(candidates.count, shape.slots_for(candidates.count));
  for (int64_t slot = 0; slot < shape.k; ++slot) {
    out.filled[slot] = slot < filled;
    out.leader[slot] = out.filled[slot] ? candidates.index[slot] : -1;
    if (out.filled[slot]) result.member.push_back(candidates.index[slot]);
    result.end.push_back(static_cast<int32_t>(result.member.size()));
  }
  result.weight.assign(result.member.size(), std::numeric_limits<T>::quiet_NaN());
}

// Write members and weights of all slots to the result.
template <class T, class Threads>
void collect_members(const Entry<T>* slots, int64_t filled, const RowShape& shape, const Rounds<T>& rounds,
                     RowResult<T>& result, const Threads& threads) {
  // With several threads every slot has a list of its own first.
  struct List {
    std::vector<int32_t> member;
    std::vector<T> weight;
  };
  std::vector<List> lists(threads.count() == 1 ? 0 : shape.k);
  result.end.resize(shape.k);
  result.member.reserve(4 * shape.k), result.weight.reserve(4 * shape.k);
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / shape.max_members());
  threads.parallel_for(filled, grain, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      auto& members = lists.empty() ? result.member : lists[slot].member;
      auto& weights = lists.empty() ? result.weight : lists[slot].weight;
      for_each_member(slots[slot].ref, shape.n, rounds, [&](int32_t member, T weight) {
        members.push_back(member);
        weights.push_back(weight);
      });
      result.end[slot] = static_cast<int32_t>(members.size());
    }
  });
  for (size_t slot = 0; slot < lists.size(); ++slot) {
    result.member.insert(result.member.end(), lists[slot].member.begin(), lists[slot].member.end());
    result.weight.insert(result.weight.end(), lists[slot].weight.begin(), lists[slot].weight.end());
    result.end[slot] = static_cast<int32_t>(result.member.size());
  }
  std::fill(result.end.begin() + filled, result.end.end(), static_cast<int32_t>(result.member.size()));
}

// Write the field to `entries`, sorted: all candidates, or, for a long row, what partial rounds leave of them.
template <class T, class Threads>
void prepare_field(const ActiveCandidates<T>& candidates, int64_t k, const Boost<T>& boost, const Leaders& leaders,
                   const Rounds<T>& rounds, Entry<T>* entries, Progress& progress, const Threads& threads) {
  const CandidateSource<T> source{candidates.score, candidates.index};
  if (candidates.count <= kFewEntries || candidates.low == candidates.high) {
    for (int64_t i = 0; i < candidates.count; ++i) entries[i] = source[i];
    if (candidates.low < candidates.high) sort_few(entries, candidates.count, leaders);
    return;
  }
  const BucketedRow<T> row(entries, source, candidates.count, candidates.low, candidates.high, leaders, threads);
  if (PartialRounds<T>::count(progress, k, boost) &&
      PartialRounds<T>(row, candidates, progress, k, boost, leaders).play(rounds, entries, progress, threads)) {
    return;
  }
  row.sort(threads);
}

// The whole selection. With `save` the result has what the backward pass needs.
template <class T, class S, class Threads>
void select_row(const ScoreRow<S>& row, const RowCall<T>& call, bool save, Workspace<T>& work,
                const SlotOutputs<T>& out, RowResult<T>& result, const Threads& threads) {
  const RowShape& shape = call.shape;
  const Boost<T>& boost = call.boost;
  const ActiveCandidates<T> candidates = find_active(row, shape.n, work.candidates, threads);
  const auto n = static_cast<int32_t>(shape.n);
  SavedHeader header{call.hash, n, static_cast<int32_t>(shape.k), -1, 0, 0};
  if (!candidates.valid) {
    if (save) {
      result.saved.resize(integers_per<SavedHeader>());
      std::memcpy(result.saved.data(), &header, sizeof(header));
    }
    return select_invalid_row(candidates, shape, out, result);
  }
  SavedRounds<T> all(work.saved.get(), SavedLayout::largest(shape.n, shape.k));
  all.rounds.leader = work.leader.get();
  if (!save) all.rounds.score = nullptr;
  const Rounds<T>& rounds = all.rounds;
  const Leaders leaders{n, work.leader.get()};
  Entry<T>* const slots = work.entries.get();
  const int64_t k = shape.slots_for(candidates.count);
  Progress progress(candidates.count, k);
  prepare_field(candidates, k, boost, leaders, rounds, slots, progress, threads);
  const int64_t ordered = progress.size;
  play_rounds(slots, progress, k, boost, leaders, rounds, threads);

  const int64_t filled = std::min(candidates.count, k);
  if (save) {
    threads.parallel_for(ordered, 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) rounds.order[i] = slots[i].ref;
    });
  }
  if (call.by_position) {
    std::sort(slots, slots + filled,
              [&](const Entry<T>& one, const Entry<T>& other) { return leaders(one.ref) < leaders(other.ref); });
  }
  for (int64_t slot = 0; slot < shape.k; ++slot) {
    const bool is_filled = slot < filled;
    out.filled[slot] = is_filled;
    out.score[slot] = is_filled ? slots[slot].score : T(0);
    out.leader[slot] = is_filled ? leaders(slots[slot].ref) : -1;
  }
  collect_members(slots, filled, shape, rounds, result, threads);
  if (!save) return;
  header.active = static_cast<int32_t>(candidates.count);
  header.partial = progress.partial;
  header.nodes = static_cast<int32_t>(progress.nodes);
  *all.header = header;
  for (int64_t slot = 0; slot < shape.k; ++slot) all.root[slot] = slot < filled ? slots[slot].ref : 0;
  std::fill(rounds.round + progress.rounds, rounds.round + kMaxRounds, Round{});
  std::fill(rounds.scale + progress.rounds, rounds.scale + kSpread, T(0));
  const SavedLayout layout{shape.k, ordered, progress.nodes};
  result.saved.resize(layout.template length<T>());
  all.copy_to(SavedRounds<T>(result.saved.data(), layout), layout);
}

}  // namespace knockout
