"""Masks with a threshold such that they add up to k: the share of a candidate is a distribution function of how far its
score is above it.

With x_j = s_j / temperature - t and F the function, t solves  sum over j of F(x_j) = k.  Its derivative follows from
that equation, however it was solved:  dt/ds_j = F'(x_j) / sum of F'(x_m)  (over the temperature).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from knockout.methods.khot import Field
from knockout.selection import Selection


class Distribution(ABC):
    """A distribution function F, and how to find the threshold that goes with it."""

    @abstractmethod
    def function(self, x: Tensor) -> Tensor:
        """F(x), from 0 to 1."""

    @abstractmethod
    def pull(self, x: Tensor, active: Tensor) -> Tensor:
        """F'(x_j) / sum of F'(x_m) over those who are active, (..., n)."""

    @abstractmethod
    def threshold(self, z: Tensor, active: Tensor, count: Tensor) -> Tensor:
        """The t (..., 1) at which F(z - t) adds up to count (..., 1), a number below that of those who are active.

        The k-th best z is 0.
        """


def balanced(field: Field, temperature: float, distribution: Distribution) -> Selection:
    """The mask whose shares add up to k, and the top k by it."""
    z = field.scaled(temperature)
    # Where all fit in, there is no threshold, and shares are 1 anyway; half a place free, and one there is.
    count = torch.minimum(field.own, field.total - 0.5).clamp(min=0.5).to(z.dtype)
    threshold: Tensor = _Threshold.apply(z, field.active, count, distribution)  # type: ignore[no-untyped-call]
    return field.selection(distribution.function(z - threshold))


def softmax_of(logit: Tensor, active: Tensor) -> Tensor:
    """A softmax (..., n) over those who are active."""
    return torch.softmax(torch.where(active, logit, torch.finfo(logit.dtype).min), dim=-1)


class _Threshold(Function):
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
        return grad * ctx.distribution.pull(z - threshold, active), None, None, None
