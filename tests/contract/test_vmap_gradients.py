"""vmap over tensors that require gradients: the mapped call takes part in the graph outside of it."""

from __future__ import annotations

import torch
from torch import Tensor

import knockout
from tests.cases import randn, separated


def pool(values: Tensor, scores: Tensor) -> Tensor:
    out = knockout.topk(values, scores, 4, boost=1.0)
    return torch.cat([out.values, out.scores.unsqueeze(-1)], dim=-1)


def test_gradients_flow_through_a_mapped_call() -> None:
    values, scores = randn(3, 20, 2).requires_grad_(), separated(3, 20).requires_grad_()
    mapped = torch.autograd.grad(torch.vmap(pool)(values, scores).square().sum(), (values, scores))
    batched = torch.autograd.grad(pool(values, scores).square().sum(), (values, scores))
    for one, other in zip(mapped, batched, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_of_each_sample_with_parameters_that_require_gradients() -> None:
    layer = knockout.nn.TokenPool(4, k=3, boost=1.0).double()
    assert isinstance(layer.scorer.weight, Tensor)
    torch.nn.init.normal_(layer.scorer.weight)
    x = randn(5, 12, 4)
    parameters: dict[str, Tensor] = dict(layer.named_parameters())

    def loss(parameters: dict[str, Tensor], each: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(layer, parameters, (each.unsqueeze(0),)).x
        return out.square().sum()

    mapped = torch.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for name, found in mapped.items():
        for i, each in enumerate(x):
            expected = torch.autograd.grad(loss(parameters, each), parameters[name])[0]
            torch.testing.assert_close(found[i], expected)
