"""NeuralSort (Grover, Wang, Zweig and Ermon 2019, arXiv 1903.08850)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from knockout.checks import check_positive
from knockout.functional import Order
from knockout.methods.softmax_plan import SoftmaxPlan, rank
from knockout.selection import Selection


def neuralsort(
    scores: Tensor,
    k: int | float | Tensor,
    temperature: float = 1.0,
    mask: Tensor | None = None,
    order: Order = "score",
    max_k: int | None = None,
) -> Selection:
    """Slot i of n: a softmax of ``((n + 1 - 2 i) s_j - sum over m of |s_j - s_m|) / temperature``.

    These are the first k rows of the paper's relaxed permutation matrix, without its n x n matrix of distances: their
    sums are found by sorting. The logits grow with n, and so should the temperature.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.neuralsort(scores, k=2).weights()
    tensor([[0.0046, 0.6865, 0.0563, 0.2525],
            [0.0641, 0.1744, 0.2875, 0.4740]])

    Time O(k n d); memory O(n d) plus a few chunks of 2**22 weights, backward included.
    """
    check_positive(temperature, "temperature")
    ranking = rank(scores, k, mask, order, max_k)
    distance = distances(ranking.score, ranking.active, ranking.order)
    return ranking.selection(
        NeuralSortPlan,
        slot=ranking.slot,
        active_count=ranking.active_count,
        distance=distance,
        temperature=temperature,
    )


def distances(score: Tensor, active: Tensor, order: Tensor) -> Tensor:
    """The sum (..., n) of each candidate's distances from all others, in double precision.

    ``order`` lists the candidates from best to worst. Candidates with equal scores are at distance 0, so their order
    does not matter, for the gradient either.
    """
    wide = score.to(score.dtype if score.device.type == "mps" else torch.float64)
    ascending = torch.where(active, -wide.detach(), torch.inf)  # best first, inactive candidates last
    ordered = ascending.gather(-1, order)
    better = torch.searchsorted(ordered, ascending.contiguous())
    not_worse = torch.searchsorted(ordered, ascending.contiguous(), right=True)
    sums = pad(wide.gather(-1, order).cumsum(dim=-1), (1, 0))  # of the best 0, 1, 2, ... scores
    worse = active.sum(dim=-1, keepdim=True) - not_worse
    # Better scores count positive, worse ones negative, the candidate's own as often as it takes.
    summed = sums.gather(-1, better) - (sums[..., -1:] - sums.gather(-1, not_worse)) + (worse - better) * wide
    return torch.where(active, summed, 0.0)


@dataclass(eq=False)
class NeuralSortPlan(SoftmaxPlan):
    """Softmaxes of the scores times a factor that falls from slot to slot, less the distances from all others."""

    slot: Tensor  # (*batch, k) int64: the rank of the leader of each slot
    active_count: Tensor  # (*batch, 1) int64: the number of active candidates
    distance: Tensor  # (*batch, n), in double precision
    temperature: float

    def logits(self, start: int, stop: int) -> Tensor:
        limits = torch.finfo(self.score.dtype)
        slot = self.slot[..., start:stop]
        factor = (self.active_count - 1 - 2 * slot).unsqueeze(-1).to(self.distance.dtype)
        logit = factor * self.score.to(self.distance.dtype).unsqueeze(-2) - self.distance.unsqueeze(-2)
        # As differences from the highest logit of the slot: logits near it must keep their digits in single precision.
        active = self.active.unsqueeze(-2)
        highest = torch.where(active, logit.detach(), torch.finfo(logit.dtype).min).amax(dim=-1, keepdim=True)
        sharpness = min(1.0 / self.temperature, limits.max)
        return ((logit - highest) * sharpness).clamp(limits.min / 8, limits.max / 8).to(self.score.dtype)
