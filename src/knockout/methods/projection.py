"""Projection onto the budget polytope, or capped simplex (Blondel 2019, arXiv 1910.11369)."""

from __future__ import annotations

import torch
from torch import Tensor

from knockout.methods.balance import Distribution, balanced
from knockout.methods.khot import enter
from knockout.selection import Selection


def projection(scores: Tensor, k: int | float, temperature: float = 1.0, mask: Tensor | None = None) -> Selection:
    """A sparse k-hot mask: the point of ``0 <= p <= 1, sum of p = k`` that is nearest to ``scores / temperature``.

    Its shares are ``clamp(s_j / temperature - t, 0, 1)``; t is found exactly, by sorting the points at which a share
    leaves 1 and reaches 0. Candidates with a share of exactly 0 or 1 get no gradient. The Selection is the top k rows
    weighted by the mask, ``mass()`` all of it. Time O(n log n + k d), memory O(n + k d).

    The hard twin is ``torch.topk(scores, k).indices``:

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.projection(scores, k=2).mass()
    tensor([0.0000, 1.0000, 0.2500, 0.7500])
    """
    return balanced(enter(scores, k, mask, temperature), temperature, Uniform())


class Uniform(Distribution):
    """x, but not below 0 nor above 1."""

    def function(self, x: Tensor) -> Tensor:
        # Not a clamp, which has a gradient at its ends.
        return torch.where((x > 0) & (x < 1), x, (x >= 1).to(x.dtype))

    def pull(self, x: Tensor, active: Tensor) -> Tensor:
        between = (active & (x > 0) & (x < 1)).to(x.dtype)
        return between / between.sum(dim=-1, keepdim=True).clamp(min=1.0)

    def threshold(self, z: Tensor, active: Tensor, count: Tensor) -> Tensor:
        # The k-th best score is at 0, so t is between -1 and 0, and beyond these by 1 a share is 0 or 1 anyway.
        z = z.clamp(-1.0, 1.0)
        # As t rises, a share leaves 1 at z - 1 and reaches 0 at z; between two such points the sum falls in a line.
        limits = torch.finfo(z.dtype)
        leaves, reaches = (torch.where(active, at, limits.max / 2) for at in (z - 1.0, z))
        points, order = torch.cat([leaves, reaches], dim=-1).sort(dim=-1)
        change = torch.cat([active.to(z.dtype), -active.to(z.dtype)], dim=-1).gather(-1, order)
        falling = change.cumsum(dim=-1)  # how many shares are falling right of each point
        fallen = (falling[..., :-1] * points.diff(dim=-1)).cumsum(dim=-1)
        total = active.sum(dim=-1, keepdim=True)
        # The line that passes through count begins at the last point at which the sum is not below it.
        place = (total - fallen >= count).sum(dim=-1, keepdim=True)
        start = points.gather(-1, place)
        whole = active & (z - 1.0 > start)
        between = active & (z > start) & ~whole
        number = between.sum(dim=-1, keepdim=True)
        # As differences from the start of the line, which are below 1.
        part = torch.where(between, z - start, 0.0).sum(dim=-1, keepdim=True)
        above = (part + whole.sum(dim=-1, keepdim=True) - count) / number.clamp(min=1)
        return start + torch.where(number > 0, above, 0.0)
