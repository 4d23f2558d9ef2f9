"""The limited multi-label projection (Amos, Koltun and Kolter 2019, arXiv 1906.08707)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from knockout.methods.balance import Distribution, balanced, softmax_of
from knockout.methods.khot import enter
from knockout.selection import Selection


def lml(scores: Tensor, k: int | float, temperature: float = 0.1, mask: Tensor | None = None) -> Selection:
    """A k-hot mask: sigmoids of ``s_j / temperature - t``, with the t at which they add up to k.

    The mask of highest binary entropy for its total score; and what entropic optimal transport of the scores onto
    {0, 1} gives. Solved by Newton's steps within a bracket, a fixed number of them. The Selection is the top k rows
    weighted by the mask, ``mass()`` all of it. Time O(n + k d), memory O(n + k d).

    The hard twin is ``torch.topk(scores, k).indices``:

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.lml(scores, k=2, temperature=0.5).mass()
    tensor([0.1604, 0.9125, 0.3418, 0.5853])
    """
    return balanced(enter(scores, k, mask, temperature), temperature, Logistic())


class Logistic(Distribution):
    """1 / (1 + exp(-x))."""

    STEPS = 16  # Newton's take four to eight; in the others the bracket halves

    def function(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def pull(self, x: Tensor, active: Tensor) -> Tensor:
        return softmax_of(logsigmoid(x) + logsigmoid(-x), active)

    def threshold(self, z: Tensor, active: Tensor, count: Tensor) -> Tensor:
        # The k-th best score is at 0. log k below the next one, k + 1 shares are at least k / (k + 1), and add up to k
        # or more. And log (n - k) above 0, all but the k - 1 best add up to 1 or less.
        others = active.sum(dim=-1, keepdim=True) - count
        tied = (active & (z >= 0)).sum(dim=-1, keepdim=True) > count
        below = torch.where(active & (z < 0), z, torch.finfo(z.dtype).min / 8).amax(dim=-1, keepdim=True)
        low = torch.where(tied, 0.0, below) - torch.log(count.clamp(min=1.0))
        high = torch.log(others.clamp(min=1.0))
        guess = 0.5 * low + 0.5 * high
        for _ in range(self.STEPS):
            share = torch.where(active, torch.sigmoid(z - guess), 0.0)
            excess = share.sum(dim=-1, keepdim=True) - count
            slope = (share * (1.0 - share)).sum(dim=-1, keepdim=True)
            low, high = torch.where(excess > 0, guess, low), torch.where(excess > 0, high, guess)
            step = guess + excess / slope
            guess = torch.where((step >= low) & (step <= high), step, 0.5 * low + 0.5 * high)
        return guess
