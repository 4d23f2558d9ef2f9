// The operators of torch.ops.knockout: see knockout/ops/schema.py for their schemas.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "tensors.h"

namespace knockout {

// member, weight, score, leader, filled, valid, saved
using TournamentResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

TournamentResult tournament(Tensor scores, std::optional<Tensor> mask, std::optional<Tensor> c_tensor, int64_t k,
                            int64_t numerator, int64_t kind, int64_t alpha, double c, double unit, bool by_position,
                            bool save, bool fixed);

Tensor tournament_backward(std::optional<Tensor> d_weight, std::optional<Tensor> d_score, Tensor scores,
                           std::optional<Tensor> mask, std::optional<Tensor> c_tensor, Tensor member, Tensor saved,
                           int64_t k, int64_t numerator, int64_t kind, int64_t alpha, double c, double unit,
                           bool by_position);

Tensor blend(Tensor values, Tensor weight, Tensor member, std::optional<Tensor> valid, bool hard);

Tensor spread(Tensor grad, Tensor weight, Tensor member, std::vector<int64_t> shape);

Tensor match(Tensor grad, Tensor values, Tensor member, bool float64);

}  // namespace knockout
