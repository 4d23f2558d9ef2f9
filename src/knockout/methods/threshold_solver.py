"""Masks that sum to exactly k: each candidate's weight is a distribution function of its score above a threshold.

With z_j = s_j / temperature and F the distribution function, the threshold t solves  sum over j of F(z_j - t) = k.
Its derivative follows from that equation, however it was solved:  dt/dz_j = F'(z_j - t) / sum over m of F'(z_m - t).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from knockout.functional import Order
from knockout.methods.khot_plan import fill_inactive, hard_topk
from knockout.selection import Selection


class Distribution(ABC):
    """A distribution function F, and the solver for its threshold."""

    @abstractmethod
    def function(self, x: Tensor) -> Tensor:
        """F(x), from 0 to 1."""

    @abstractmethod
    def relative_density(self, x: Tensor, active: Tensor) -> Tensor:
        """F'(x_j) / sum of F'(x_m) over the active candidates, (..., n)."""

    @abstractmethod
    def threshold(self, z: Tensor, active: Tensor, count: Tensor) -> Tensor:
        """The t (..., 1) at which F(z - t) sums to ``count`` (..., 1), which is below the number of active candidates.

        The k-th best z is 0.
        """


def select_by_distribution(
    distribution: Distribution,
    scores: Tensor,
    k: int | float | Tensor,
    temperature: float,
    mask: Tensor | None,
    order: Order,
    max_k: int | None,
) -> Selection:
    """The top k, scaled by the mask ``F(scores / temperature - t)`` that sums to k."""
    top = hard_topk(scores, k, mask, order, temperature, max_k)
    z = top.scaled(temperature)
    # Where all active candidates are selected, no threshold exists, and all weights are 1 anyway: solve for a sum that
    # is less by a half.
    count = torch.minimum(top.slot_count, top.active_count - 0.5).clamp(min=0.5).to(z.dtype)
    threshold: Tensor = _Threshold.apply(z, top.active, count, distribution)  # type: ignore[no-untyped-call]
    return top.selection(distribution.function(z - threshold))


def active_softmax(logit: Tensor, active: Tensor) -> Tensor:
    """A softmax (..., n) over the active candidates."""
    return torch.softmax(fill_inactive(logit, active), dim=-1)


class _Threshold(Function):
    """The threshold of a distribution, differentiated by the equation that it solves."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, active: Tensor, count: Tensor, distribution: Distribution) -> Tensor:
        return torch.where(active.any(dim=-1, keepdim=True), distribution.threshold(z, active, count), 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        z, active, _, ctx.distribution = inputs
        ctx.save_for_backward(z, active, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        z, active, threshold = ctx.saved_tensors
        return grad * ctx.distribution.relative_density(z - threshold, active), None, None, None
