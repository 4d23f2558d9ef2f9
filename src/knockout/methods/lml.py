"""The limited multi-label projection (Amos, Koltun and Kolter 2019, arXiv 1906.08707)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from knockout.functional import Order
from knockout.methods.threshold_solver import Distribution, active_softmax, select_by_distribution
from knockout.selection import Selection


def lml(
    scores: Tensor,
    k: int | float | Tensor,
    temperature: float = 0.1,
    mask: Tensor | None = None,
    order: Order = "score",
    max_k: int | None = None,
) -> Selection:
    """A k-hot mask: sigmoids of ``s_j / temperature - t``, with the t at which they sum to k.

    It has the highest binary entropy of all masks with its total score, and is what entropic optimal transport of the
    scores onto {0, 1} gives. The threshold t is found by a fixed number of Newton steps within a bracket.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.lml(scores, k=2, temperature=0.5).mass()
    tensor([0.1604, 0.9125, 0.3418, 0.5853])

    The Selection is the top k value rows scaled by the mask, ``mass()`` the whole mask. Time O(n + k d), memory
    O(n + k d).
    """
    return select_by_distribution(Logistic(), scores, k, temperature, mask, order, max_k)


class Logistic(Distribution):
    """1 / (1 + exp(-x))."""

    STEPS = 16  # Newton's method takes four to eight; steps it is not used for halve the bracket

    def function(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def relative_density(self, x: Tensor, active: Tensor) -> Tensor:
        return active_softmax(logsigmoid(x) + logsigmoid(-x), active)

    def threshold(self, z: Tensor, active: Tensor, count: Tensor) -> Tensor:
        # The k-th best score is at 0. With t at log k below the next score, k + 1 weights are at least k / (k + 1), so
        # they sum to k or more. With t at log (n - k), all but the k - 1 best sum to 1 or less.
        others = active.sum(dim=-1, keepdim=True) - count
        tied = (active & (z >= 0)).sum(dim=-1, keepdim=True) > count
        below = torch.where(active & (z < 0), z, torch.finfo(z.dtype).min / 8).amax(dim=-1, keepdim=True)
        low = torch.where(tied, 0.0, below) - torch.log(count.clamp(min=1.0))
        high = torch.log(others.clamp(min=1.0))
        guess = 0.5 * low + 0.5 * high
        for _ in range(self.STEPS):
            weight = torch.where(active, torch.sigmoid(z - guess), 0.0)
            excess = weight.sum(dim=-1, keepdim=True) - count
            slope = (weight * (1.0 - weight)).sum(dim=-1, keepdim=True)
            low, high = torch.where(excess > 0, guess, low), torch.where(excess > 0, high, guess)
            step = guess + excess / slope
            guess = torch.where((step >= low) & (step <= high), step, 0.5 * low + 0.5 * high)
        return guess
