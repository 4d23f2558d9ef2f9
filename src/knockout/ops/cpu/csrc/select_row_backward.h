// The derivative of the selection of one row with respect to its scores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "active_candidates.h"
#include "backward.h"
#include "saved_rounds.h"

namespace knockout {

// The gradients of a row's results; null for those that have none.
template <class T>
struct OutputGradients {
  const T* weight;  // (k, max_members)
  const T* score;   // (k,)
};

// Write the gradient of the scores to `out`; `member` has shape (k, max_members) and is n where it is padding.
template <class T, class S, class Threads>
void select_row_backward(const ScoreRow<S>& row, const RowShape& shape, const Boost<T>& boost, const int32_t* member,
                         int64_t max_members, const OutputGradients<T>& output, SavedRounds<T> saved, S* out,
                         const Threads& threads) {
  const SavedHeader& header = *saved.header;
  const int64_t n = shape.n, nodes = header.nodes, ordered = header.ordered;
  if (header.rounds < 0) {  // an invalid row
    for (int64_t i = 0; i < n; ++i)
      out[i] = static_cast<S>(row.active(i) ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
    return;
  }
  Buffer<T> score_gradient(n + nodes), node_weight(nodes), member_gradient(n + nodes);
  const Gradients<T> gradients{score_gradient.get(), member_gradient.get(), node_weight.get()};
  threads.parallel_for(n + nodes, 1 << 16, [&](int64_t begin, int64_t end) {
    std::fill(gradients.score + begin, gradients.score + end, T(0));
    std::fill(gradients.member + begin, gradients.member + end, T(0));
    if (begin < nodes) std::fill(gradients.weight + begin, gradients.weight + std::min(end, nodes), T(0));
  });
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / max_members);
  threads.parallel_for(header.filled, grain, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      const int32_t root = saved.root[slot];
      if (output.score) gradients.score[root] = output.score[slot];
      if (!output.weight) continue;
      for (int64_t i = slot * max_members; i < (slot + 1) * max_members && member[i] < n; ++i) {
        gradients.member[member[i]] = output.weight[i];
      }
      set_weights_of_slot(root, n, saved.rounds, gradients);
    }
  });
  Progress progress(0, 1);
  progress.rounds = header.rounds, progress.nodes = nodes, progress.partial = header.partial;
  // rounds_backward changes the order: give it a copy, because the saved one may be used again.
  Buffer<int32_t> order(ordered);
  std::copy(saved.rounds.order, saved.rounds.order + ordered, order.get());
  saved.rounds.order = order.get();
  rounds_backward(progress, n, boost, saved.rounds, gradients, threads);
  threads.parallel_for(n, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = static_cast<S>(gradients.score[i]);
  });
}

}  // namespace knockout
