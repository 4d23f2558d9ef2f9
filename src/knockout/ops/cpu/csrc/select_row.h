// The selection of one row: from its scores to its slots, with their members and weights.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
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
  Buffer<Pair> pair;  // per node, as `share`: every node eliminates a candidate, and some remain
  Buffer<T> share;
  Buffer<Branch<T>> branches, other_branches;

  explicit Workspace(const RowShape& shape)
      : entries(shape.n),
        pair(shape.n - shape.least),
        share(shape.n - shape.least),
        branches(shape.n + 1),
        other_branches(shape.n + 1) {}
};

// Where to write the results of a row that have one number per slot.
template <class T>
struct SlotOutputs {
  T* score;
  int64_t* leader;  // -1 for a slot that is not filled
  bool* filled;
};

// The results of some rows, one after the other, whose length depends on the scores.
template <class T>
struct RowResults {
  Array<int32_t> member;  // of all slots
  Array<T> weight;        // per member
  Array<int64_t> end;     // per slot: where its members end
  Array<int32_t> saved;   // see saved_rounds.h; empty if nothing is to be saved
  struct Row {
    int64_t members, saved_end;
    bool valid;  // false if a score is NaN or +inf
  };
  std::vector<Row> rows;

  int64_t begin(int64_t slot) const { return slot ? end[slot - 1] : 0; }  // of its members
  int64_t saved_begin(int64_t row) const { return row ? rows[row - 1].saved_end : 0; }

  // The number of members of the slot that has most, at least 1.
  int64_t most_members() const {
    int64_t most = 1;
    for (int64_t slot = 0; slot < end.size(); ++slot) most = std::max(most, end[slot] - begin(slot));
    return most;
  }
  // The length of the longest saved rounds of a row.
  int64_t most_saved() const {
    int64_t most = 0;
    for (size_t row = 0; row < rows.size(); ++row) most = std::max(most, rows[row].saved_end - saved_begin(row));
    return most;
  }
  // Make room for `count` rows, supposing that all are as long as those that are here.
  void expect(int64_t count) {
    const auto grown = [&](int64_t size) {
      return size + (size + size / 8) / static_cast<int64_t>(rows.size()) * count;
    };
    if (rows.empty()) return;
    member.reserve(grown(member.size())), weight.reserve(grown(weight.size()));
    end.reserve(grown(end.size())), saved.reserve(grown(saved.size()));
  }
};

// The result of an invalid row: all weights and scores NaN; each slot has one of the first active candidates.
template <class T>
void select_invalid_row(const ActiveCandidates<T>& candidates, const RowShape& shape, const SlotOutputs<T>& out,
                        RowResults<T>& results) {
  std::fill_n(out.score, shape.k, std::numeric_limits<T>::quiet_NaN());
  const int64_t filled = std::min(candidates.count, shape.slots_for(candidates.count));
  const int64_t before = results.member.size();
  std::copy_n(candidates.index, filled, results.member.extend(filled));
  std::fill_n(results.weight.extend(filled), filled, std::numeric_limits<T>::quiet_NaN());
  int64_t* const end = results.end.extend(shape.k);
  for (int64_t slot = 0; slot < shape.k; ++slot) {
    out.filled[slot] = slot < filled;
    out.leader[slot] = out.filled[slot] ? candidates.index[slot] : -1;
    end[slot] = before + std::min(slot + 1, filled);
  }
}

// Write members and weights of all slots to the results.
template <class T, class Threads>
void collect_members(const Entry<T>* slots, int64_t filled, const RowShape& shape, const Progress& progress,
                     const Rounds<T>& rounds, Workspace<T>& work, RowResults<T>& results, const Threads& threads) {
  const auto n = static_cast<int32_t>(shape.n);
  int64_t* const end = results.end.extend(shape.k);
  // The members of the slots from `first` to `last` - 1, whose ends count from the first of them.
  const auto append = [&](const Branch<T>* members, int64_t first, int64_t last) {
    const int64_t count = end[last - 1], before = results.member.size();
    int32_t* const member = results.member.extend(count);
    T* const weight = results.weight.extend(count);
    for (int64_t i = 0; i < count; ++i) member[i] = members[i].ref, weight[i] = members[i].weight;
    for (int64_t slot = first; slot < last; ++slot) end[slot] += before;
  };
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / shape.max_members());
  if (filled > 0 && (threads.count() == 1 || filled <= grain)) {
    append(find_members(slots, 0, filled, progress, n, rounds, work.branches.get(), work.other_branches.get(), end), 0,
           filled);
  } else if (filled > 0) {
    // Every part of the slots has an array of its own first, at the index of its first slot.
    std::vector<Buffer<Branch<T>>> parts(filled);
    std::vector<int64_t> part_end(filled, 0);
    threads.parallel_for(filled, grain, [&](int64_t first, int64_t last) {
      const int64_t most = std::min(shape.n, (last - first) * shape.max_members()) + 1;
      Buffer<Branch<T>> branches(most), others(most);
      const bool in_branches =
          find_members(slots, first, last, progress, n, rounds, branches.get(), others.get(), end) == branches.get();
      parts[first] = std::move(in_branches ? branches : others);
      part_end[first] = last;
    });
    for (int64_t first = 0; first < filled; first = part_end[first]) append(parts[first].get(), first, part_end[first]);
  }
  std::fill(end + filled, end + shape.k, results.member.size());
}

// Write the field to `entries`, sorted: all candidates, or, for a long row, what partial rounds leave of them.
template <class T, class Threads>
void prepare_field(const ActiveCandidates<T>& candidates, int64_t k, const Boost<T>& boost, const Leaders& leaders,
                   const Rounds<T>& rounds, Entry<T>* entries, Progress& progress, const Threads& threads) {
  const CandidateSource<T> source{candidates.score, candidates.index};
  const int64_t count = candidates.count;
  if (count <= kFewEntries || candidates.low == candidates.high) {
    for (int64_t i = 0; i < count; ++i) entries[i] = source[i];
    if (candidates.low < candidates.high) sort_few(entries, count, leaders);
    return;
  }
  const bool partial = PartialRounds<T>::count(candidates, progress, k, boost) > 0;
  if (partial || count > kCachedEntries) {
    const BucketedRow<T> row(entries, source, count, candidates.low, candidates.high, leaders, threads);
    if (partial &&
        PartialRounds<T>(row, candidates, progress, k, boost, leaders).play(rounds, entries, progress, threads)) {
      return;
    }
    if (count > kCachedEntries) return row.sort(threads);
  }
  if (radix_sort(source, entries, count, candidates.low, candidates.high)) sort_ties(entries, count, leaders);
}

// Write the saved rounds of a row, which has been played; `entries` has the field after the last round, and `slots` the
// filled slots in the order of the result.
template <class T>
void save_rounds(const RowCall<T>& call, SavedHeader header, const Progress& progress, const Entry<T>* slots,
                 int64_t filled, const Entry<T>* entries, int64_t field_size, Rounds<T>& rounds,
                 Array<int32_t>& saved) {
  header.partial = progress.partial;
  header.nodes = static_cast<int32_t>(progress.nodes);
  header = header.sign(call.hash);
  std::fill(rounds.round + progress.rounds, rounds.round + kMaxRounds, Round{});
  std::fill(rounds.scale + progress.rounds, rounds.scale + kSpread, T(0));
  const SavedLayout layout{call.shape.k,
                           ordered_entries(call.boost, rounds.round, progress.rounds, progress.partial, field_size),
                           progress.nodes};
  int32_t* out = saved.extend(layout.template length<T>());
  const auto write = [&out](const void* from, int64_t integers) {
    std::memcpy(out, from, static_cast<size_t>(integers) * sizeof(int32_t));
    out += integers;
  };
  write(&header, integers_per<SavedHeader>());
  write(rounds.round, kMaxRounds * integers_per<Round>());
  write(rounds.scale, kMaxRounds * integers_per<T>());
  for (int64_t slot = 0; slot < layout.slots; ++slot) *out++ = slot < filled ? slots[slot].ref : 0;
  for (int64_t i = 0; i < layout.ordered; ++i) *out++ = entries[i].ref;
  write(rounds.pair, 2 * layout.nodes);
}

// The whole selection, added to the results. With `save` they have what the backward pass needs.
template <class T, class S, class Threads>
void select_row(const ScoreRow<S>& row, const RowCall<T>& call, bool save, Workspace<T>& work,
                const SlotOutputs<T>& out, RowResults<T>& results, const Threads& threads) {
  const RowShape& shape = call.shape;
  const Boost<T>& boost = call.boost;
  const ActiveCandidates<T> candidates = find_active(row, shape.n, work.candidates, threads);
  const auto n = static_cast<int32_t>(shape.n);
  const int64_t members_before = results.member.size();
  SavedHeader header{0, n, static_cast<int32_t>(shape.k), -1, 0, 0};
  if (!candidates.valid) {
    header = header.sign(call.hash);
    if (save) std::memcpy(results.saved.extend(integers_per<SavedHeader>()), &header, sizeof(header));
    select_invalid_row(candidates, shape, out, results);
    results.rows.push_back({results.member.size() - members_before, results.saved.size(), false});
    return;
  }
  std::array<Round, kMaxRounds> round;
  std::array<T, kMaxRounds> scale;
  Rounds<T> rounds{round.data(), scale.data(), work.pair.get(), work.share.get()};
  const Leaders leaders{n, work.pair.get()};
  Entry<T>* const slots = work.entries.get();
  const int64_t k = shape.slots_for(candidates.count);
  Progress progress(candidates.count, k);
  prepare_field(candidates, k, boost, leaders, rounds, slots, progress, threads);
  const int64_t field_size = progress.size;
  play_rounds(slots, progress, k, boost, leaders, rounds, threads);

  const int64_t filled = std::min(candidates.count, k);
  std::vector<Entry<T>> ordered(slots, slots + filled);
  if (call.by_position) {
    std::sort(ordered.begin(), ordered.end(),
              [&](const Entry<T>& one, const Entry<T>& other) { return leaders(one.ref) < leaders(other.ref); });
  }
  for (int64_t slot = 0; slot < shape.k; ++slot) {
    const bool is_filled = slot < filled;
    out.filled[slot] = is_filled;
    out.score[slot] = is_filled ? ordered[slot].score : T(0);
    out.leader[slot] = is_filled ? leaders(ordered[slot].ref) : -1;
  }
  collect_members(ordered.data(), filled, shape, progress, rounds, work, results, threads);
  header.active = static_cast<int32_t>(candidates.count);
  if (save) save_rounds(call, header, progress, ordered.data(), filled, slots, field_size, rounds, results.saved);
  results.rows.push_back({results.member.size() - members_before, results.saved.size(), true});
}

}  // namespace knockout
