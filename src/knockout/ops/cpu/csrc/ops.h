// The operators of torch.ops.knockout: see library.cpp for their schemas.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "tensors.h"

namespace knockout {

// member, weight, score, leader, filled, saved
using TournamentResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

TournamentResult tournament(Tensor scores, std::optional<Tensor> mask, std::optional<Tensor> sharpness, int64_t k,
                            int64_t numerator, int64_t kind, int64_t alpha, double c, double unit, bool by_position,
                            bool save, bool fixed);

Tensor tournament_backward(std::optional<Tensor> d_weight, std::optional<Tensor> d_score, Tensor scores,
                           std::optional<Tensor> mask, std::optional<Tensor> sharpness, Tensor member, Tensor saved,
                           int64_t k, int64_t kind, int64_t alpha, double c, double unit);

Tensor blend(Tensor values, Tensor weight, Tensor member, bool hard);

Tensor spread(Tensor grad, Tensor weight, Tensor member, std::vector<int64_t> shape);

Tensor match(Tensor grad, Tensor values, Tensor member, bool float64);

}  // namespace knockout
