// The derivative of the selection of one row with respect to its scores.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

#include "active_candidates.h"
#include "backward.h"
#include "checked_rounds.h"
#include "read_once.h"

namespace knockout {

// The gradients of a row's results; null for those that have none.
template <class T>
struct OutputGradients {
  const T* weight;  // (k, max_members)
  const T* score;   // (k,)
};

// Members of the slots of a row (k, max_members), n where they are padding.
struct RowMembers {
  const int32_t* member;
  int64_t max_members;
};

constexpr auto kOtherMembers = "member must be what tournament returned together with saved; got other members";

// Write the gradient of the scores to `out`. The entries of the candidates must have, as their weights, the derivatives
// with respect to the weights of members, and 0 for all others.
template <class T, class S, class Threads>
void scores_backward(const ScoreRow<S>& row, const RowCall<T>& call, const CheckedRounds<T>& saved, const T* d_score,
                     EntryNumbers<T>* entry, S* out, const Threads& threads) {
  const int64_t n = call.shape.n;
  threads.parallel_for(n, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) entry[i].score = static_cast<T>(row.score[i * row.stride]);
  });
  RoundsBackward<T, Threads> backward(saved, n, call.boost, entry, threads);
  backward.up();
  threads.parallel_for(n + saved.nodes(), 1 << 16,
                       [&](int64_t begin, int64_t end) { std::fill(entry + begin, entry + end, EntryNumbers<T>{}); });
  for (int64_t slot = 0; slot < saved.filled(); ++slot) {
    entry[saved.root(slot)] = {d_score ? d_score[slot] : T(0), T(1)};
  }
  backward.down();
  threads.parallel_for(n, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = static_cast<S>(entry[i].score);
  });
}

// The gradient of an invalid row: NaN for active candidates.
template <class S>
void invalid_row_backward(const ScoreRow<S>& row, int64_t n, S* out) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = static_cast<S>(row.active(i) ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
}

// Write the gradient of the scores to `out`. Returns what is wrong with `saved`, which has `length` numbers, or with
// the members; null if all is well.
template <class T, class S, class Threads>
const char* select_row_backward(const ScoreRow<S>& row, const RowCall<T>& call, const RowMembers& members,
                                const OutputGradients<T>& output, const int32_t* saved, int64_t length, S* out,
                                const Threads& threads) {
  CheckedRounds<T> checked;
  if (const char* problem = checked.read(saved, length, call)) return problem;
  const int64_t n = call.shape.n, max_members = members.max_members;
  if (!checked.valid()) {
    invalid_row_backward(row, n, out);
    return nullptr;
  }
  const Buffer<EntryNumbers<T>> entry(n + checked.nodes());
  threads.parallel_for(n, 1 << 16, [&](int64_t begin, int64_t end) {
    std::fill(entry.get() + begin, entry.get() + end, EntryNumbers<T>{});
  });
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / max_members);
  std::atomic<bool> other_members = false;
  threads.parallel_for(output.weight ? checked.filled() : 0, grain, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      int32_t first = -1;
      for (int64_t i = slot * max_members; i < (slot + 1) * max_members; ++i) {
        const int32_t each = read_once(members.member[i]);
        if (each == n) break;
        if (each < 0 || each > n) return other_members.store(true);
        if (first < 0) first = each;
        entry[each].weight = output.weight[i];
      }
      if (first != checked.leader(slot)) return other_members.store(true);
    }
  });
  if (other_members) return kOtherMembers;
  scores_backward(row, call, checked, output.score, entry.get(), out, threads);
  return nullptr;
}

}  // namespace knockout
