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

// Write the gradient of the scores to `out`; `member` has shape (k, max_members) and is n where it is padding. Returns
// what is wrong with `saved`, which has `length` numbers, or with `member`; null if all is well.
template <class T, class S, class Threads>
const char* select_row_backward(const ScoreRow<S>& row, const RowCall<T>& call, const int32_t* member,
                                int64_t max_members, const OutputGradients<T>& output, const int32_t* saved,
                                int64_t length, S* out, const Threads& threads) {
  CheckedRounds<T> checked;
  if (const char* problem = checked.read(saved, length, call)) return problem;
  const int64_t n = call.shape.n, nodes = checked.nodes();
  if (!checked.valid()) {
    for (int64_t i = 0; i < n; ++i)
      out[i] = static_cast<S>(row.active(i) ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
    return nullptr;
  }
  Buffer<T> score_gradient(n + nodes), node_weight(nodes), member_gradient(n + nodes);
  const Gradients<T> gradients{score_gradient.get(), member_gradient.get(), node_weight.get()};
  threads.parallel_for(n + nodes, 1 << 16, [&](int64_t begin, int64_t end) {
    std::fill(gradients.score + begin, gradients.score + end, T(0));
    std::fill(gradients.member + begin, gradients.member + end, T(0));
    if (begin < nodes) std::fill(gradients.weight + begin, gradients.weight + std::min(end, nodes), T(0));
  });
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / max_members);
  std::atomic<bool> other_members = false;
  threads.parallel_for(checked.filled(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      const int32_t root = checked.root(slot);
      if (output.score) gradients.score[root] = output.score[slot];
      if (!output.weight) continue;
      int32_t first = -1;
      for (int64_t i = slot * max_members; i < (slot + 1) * max_members; ++i) {
        const int32_t each = read_once(member[i]);
        if (each == n) break;
        if (each < 0 || each > n) return other_members.store(true);
        if (first < 0) first = each;
        gradients.member[each] = output.weight[i];
      }
      if (first != checked.leader(slot)) return other_members.store(true);
      set_weights_of_slot(root, n, checked.rounds(), gradients);
    }
  });
  if (other_members) return "member must be what tournament returned together with saved; got other members";
  rounds_backward(checked.progress(), n, call.boost, checked.rounds(), gradients, threads);
  threads.parallel_for(n, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = static_cast<S>(gradients.score[i]);
  });
  return nullptr;
}

}  // namespace knockout
