"""Projection onto the budget polytope, or capped simplex (Blondel 2019, arXiv 1910.11369)."""

from __future__ import annotations

import torch
from torch import Tensor

from knockout.functional import Order
from knockout.methods.threshold_solver import Distribution, select_by_distribution
from knockout.selection import Selection


def projection(
    scores: Tensor,
    k: int | float | Tensor,
    temperature: float = 1.0,
    mask: Tensor | None = None,
    order: Order = "score",
    max_k: int | None = None,
) -> Selection:
    """A sparse k-hot mask: the point of ``0 <= p <= 1, sum of p = k`` that is nearest to ``scores / temperature``.

    Its weights are ``clamp(s_j / temperature - t, 0, 1)``; t is found exactly, by sorting the points at which a weight
    leaves 1 and reaches 0. Candidates with a weight of exactly 0 or 1 get no gradient.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.projection(scores, k=2).mass()
    tensor([0.0000, 1.0000, 0.2500, 0.7500])

    The Selection is the top k value rows scaled by the mask, ``mass()`` the whole mask. Time O(n log n + k d), memory
    O(n + k d).
    """
    return select_by_distribution(Uniform(), scores, k, temperature, mask, order, max_k)


class Uniform(Distribution):
    """x, but at least 0 and at most 1."""

    def function(self, x: Tensor) -> Tensor:
        # Not a clamp, which has a gradient at its ends.
        return torch.where((x > 0) & (x < 1), x, (x >= 1).to(x.dtype))

    def relative_density(self, x: Tensor, active: Tensor) -> Tensor:
        between = (active & (x > 0) & (x < 1)).to(x.dtype)
        return between / between.sum(dim=-1, keepdim=True).clamp(min=1.0)

    def threshold(self, z: Tensor, active: Tensor, count: Tensor) -> Tensor:
        # The k-th best score is at 0, so t is between -1 and 0. Clamping to 1 beyond those changes no weight.
        z = z.clamp(-1.0, 1.0)
        # As t rises, a weight leaves 1 at z - 1 and reaches 0 at z; between two such points the sum falls linearly.
        limits = torch.finfo(z.dtype)
        leaves, reaches = (torch.where(active, at, limits.max / 2) for at in (z - 1.0, z))
        points, order = torch.cat([leaves, reaches], dim=-1).sort(dim=-1)
        change = torch.cat([active.to(z.dtype), -active.to(z.dtype)], dim=-1).gather(-1, order)
        falling = change.cumsum(dim=-1)  # how many weights are falling to the right of each point
        fallen = (falling[..., :-1] * points.diff(dim=-1)).cumsum(dim=-1)
        total = active.sum(dim=-1, keepdim=True)
        # The segment that passes through count begins at the last point at which the sum is not below it.
        segment = (total - fallen >= count).sum(dim=-1, keepdim=True)
        start = points.gather(-1, segment)
        is_one = active & (z - 1.0 > start)
        between = active & (z > start) & ~is_one
        number = between.sum(dim=-1, keepdim=True)
        # Summed as differences from the start of the segment, which are at most 1.
        part = torch.where(between, z - start, 0.0).sum(dim=-1, keepdim=True)
        above = (part + is_one.sum(dim=-1, keepdim=True) - count) / number.clamp(min=1)
        return start + torch.where(number > 0, above, 0.0)
