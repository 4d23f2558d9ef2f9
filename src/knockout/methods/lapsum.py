"""LapSum (Struski, Bednarczyk, Podolak and Tabor 2025, arXiv 2503.06242)."""

from __future__ import annotations

import torch
from torch import Tensor

from knockout.functional import Order
from knockout.methods.threshold_solver import Distribution, active_softmax, select_by_distribution
from knockout.selection import Selection


def lapsum(
    scores: Tensor,
    k: int | float | Tensor,
    temperature: float = 0.1,
    mask: Tensor | None = None,
    order: Order = "score",
    max_k: int | None = None,
) -> Selection:
    """A k-hot mask: the Laplace distribution function of each score's distance from a threshold.

    The threshold at which the mask sums to k is found in closed form: between two neighboring scores the sum is a
    quadratic in one exponential.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.lapsum(scores, k=2, temperature=0.5).mass()
    tensor([0.1016, 0.9549, 0.2763, 0.6671])

    The Selection is the top k value rows scaled by the mask, ``mass()`` the whole mask. Time O(n log n + k d), memory
    O(n + k d).
    """
    return select_by_distribution(Laplace(), scores, k, temperature, mask, order, max_k)


class Laplace(Distribution):
    """exp(x) / 2 below 0, 1 - exp(-x) / 2 above."""

    FAR = 60.0  # farther from the threshold a weight is 0 or 1 to the last bit

    def function(self, x: Tensor) -> Tensor:
        half = 0.5 * torch.exp(-_size(x))
        return torch.where(x > 0, 1.0 - half, half)

    def relative_density(self, x: Tensor, active: Tensor) -> Tensor:
        return active_softmax(-_size(x), active)

    def threshold(self, z: Tensor, active: Tensor, count: Tensor) -> Tensor:
        # The k-th best score is at 0, and the threshold not far above it; so scores far from 0 need not be told apart.
        z = z.clamp(-self.FAR, self.FAR)
        # With the threshold at the j-th best score, the weights of the candidates above and below it sum to
        #     total_j = j - above_j / 2 + below_j / 2,   above_j = sum over i <= j of exp(z_j - z_i),
        #                                                below_j = sum over i >  j of exp(z_i - z_j),
        # which grows with j. The threshold lies at or below the last score whose total is not more than k.
        ordered = torch.where(active, z, -torch.inf).sort(dim=-1, descending=True).values
        above = torch.exp(torch.logcumsumexp(-ordered, dim=-1) + ordered)
        below = torch.exp(torch.logcumsumexp(ordered.flip(-1), dim=-1).flip(-1) - ordered) - 1.0
        number = torch.arange(1, z.shape[-1] + 1, device=z.device)
        total = number - above / 2.0 + below / 2.0  # NaN for inactive candidates, for which the comparison is False
        j = (total <= count).sum(dim=-1, keepdim=True)
        pivot = ordered.gather(-1, (j - 1).clamp(min=0))
        # Down from there by log x: j - above / (2 x) + below x / 2 = k, whose root is found in logarithms, so that
        # nothing vanishes. If no total is small enough, the threshold is above all scores, and all are below it.
        distance = -_size(z - pivot)
        is_above = active & (z >= pivot) & (j > 0)
        above = torch.where(is_above, distance, -torch.inf).logsumexp(dim=-1, keepdim=True)
        below = torch.where(active & ~is_above, distance, -torch.inf).logsumexp(dim=-1, keepdim=True)
        missing = count - is_above.sum(dim=-1, keepdim=True)
        size = torch.log(missing.abs())
        # log(1 + sqrt(1 + above below / missing^2)), without overflow of the product.
        excess = (above + below) / 2.0 - size
        part = size + torch.where(
            excess > 20.0, excess, torch.log1p(torch.exp(2.0 * excess.clamp(max=20.0)).add(1.0).sqrt())
        )
        up, down = part - below, above - part
        return pivot - torch.where(missing > 0, up, torch.where(missing < 0, down, (above - below) / 2.0))


def _size(x: Tensor) -> Tensor:
    """|x|, with derivative -1 at 0 rather than 0: functions of it that are smooth at 0 get their true derivative."""
    return torch.where(x > 0, x, -x)
