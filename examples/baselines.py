"""Other ways to pool tokens, with the interface of ``knockout.nn.TokenPool``, for comparison with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import knockout
from knockout import Selection
from knockout.nn import TokenPool
from knockout.plan import DensePlan

Method = Callable[[Tensor, int, Tensor | None], Selection]  # scores (..., n), k, mask -> selection


class MethodPool(TokenPool):
    """A token pool that selects by another method."""

    def __init__(self, dim: int, k: int, method: Method, scorer: nn.Module | None = None, **options: Any) -> None:
        super().__init__(dim, k, scorer=scorer, **options)
        self.method = method

    def select(self, scores: Tensor, mask: Tensor | None, k: Tensor | None = None) -> Selection:
        assert isinstance(self.topk.k, int)
        assert k is None
        return self.method(scores, min(self.topk.k, scores.shape[-1]), mask)


class ZeroScorer(nn.Module):
    """A scorer for methods that do not use scores."""

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[:-1])


def strided(scores: Tensor, k: int, mask: Tensor | None) -> Selection:
    """Take k tokens at equal distances from those that the mask allows, which must come first in each row."""
    place = torch.arange(scores.shape[-1], device=scores.device)
    count = torch.full_like(scores[..., :1], scores.shape[-1]) if mask is None else mask.sum(dim=-1, keepdim=True)
    # Token i is taken if a multiple of count / k lies in (i, i + 1]: all of them where there are k or fewer.
    step = (k / count.clamp(min=1)).clamp(max=1.0)
    taken = ((place + 1) * step + 1e-4).floor() > (place * step + 1e-4).floor()
    return knockout.methods.hard(-place.to(scores.dtype) + 0.0 * scores, k, taken if mask is None else taken & mask)


def average(weights: Tensor) -> Method:
    """Make a method with fixed weights (k, n), for example the mean of each cell of an image."""

    def method(scores: Tensor, k: int, mask: Tensor | None) -> Selection:
        assert mask is None
        assert weights.shape == (k, scores.shape[-1])
        weight = weights.to(scores).expand(*scores.shape[:-1], -1, -1)
        leader = weight.argmax(dim=-1)
        plan = FixedWeights(scores.shape[-1], torch.ones_like(scores[..., :1], dtype=torch.bool), k, weight)
        return Selection(plan, leader, torch.ones_like(leader, dtype=torch.bool), scores.dtype)

    return method


@dataclass(eq=False)
class FixedWeights(DensePlan):
    """A plan with given weights."""

    weight: Tensor  # (*batch, k, n)

    def slot_weights(self, start: int, stop: int) -> Tensor:
        return self.weight[..., start:stop, :]

    def scores(self) -> Tensor:
        return self.weight.new_zeros(self.weight.shape[:-1])

    def _batch_size(self) -> int:
        return self.weight[..., 0, 0].numel()


def gated(scores: Tensor, k: int, mask: Tensor | None) -> Selection:
    """Take the hard top k, times twice the sigmoid of their scores: scores of 0 leave value rows unchanged."""
    return knockout.methods.gated(scores, k, scale=2.0, mask=mask)


def iterative(scores: Tensor, k: int, mask: Tensor | None) -> Selection:
    """Use the paper's baseline: k softmaxes over the candidates that are left."""
    return knockout.methods.iterative(scores, k, peaked=False, mask=mask)


def pools(cells: Callable[[int], Tensor] | None = None) -> dict[str, Callable[..., TokenPool]]:
    """List all kinds of pools, each made by ``pool(dim, k=k)``; ``cells(k)``: the weights (k, n) of the kind "mean"."""
    made: dict[str, Callable[..., TokenPool]] = {
        "strided": partial(_fixed, method=strided),
        "hard, gated": partial(MethodPool, method=gated),
        "iterative": partial(MethodPool, method=iterative),
        "knockout": TokenPool,
    }
    if cells is not None:
        made = {"mean": lambda dim, k, **options: _fixed(dim, k, average(cells(k)), **options), **made}
    return made


def _fixed(dim: int, k: int, method: Method, **options: Any) -> TokenPool:
    return MethodPool(dim, k, method, ZeroScorer(), **options)
