"""NeuralSort (Grover, Wang, Zweig and Ermon 2019, arXiv 1903.08850)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from knockout.candidates import candidates
from knockout.checks import check_positive, check_scores
from knockout.methods.slots import Slots, in_order, selection
from knockout.selection import Selection


def neuralsort(scores: Tensor, k: int | float, temperature: float = 1.0, mask: Tensor | None = None) -> Selection:
    """Slot i of n: a softmax of ``((n + 1 - 2 i) s_j - sum over m of |s_j - s_m|) / temperature``.

    The first k rows of the paper's relaxed permutation matrix, without its n x n matrix of distances: their sums are
    found by sorting. The logits grow with n, and so should the temperature. Time O(k n d); memory O(n d) plus a few
    chunks of 2**22 weights, backward included.

    The hard twin is ``torch.topk(scores, k).indices``:

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.neuralsort(scores, k=2).weights()
    tensor([[0.0046, 0.6865, 0.0563, 0.2525],
            [0.0641, 0.1744, 0.2875, 0.4740]])
    """
    quota = check_scores(scores, k, mask)
    check_positive(temperature, "temperature")
    entrants = candidates(scores, mask)
    order = in_order(entrants, quota)
    plan = NeuralSort(
        n=scores.shape[-1],
        k=quota.k,
        valid=entrants.valid,
        score=entrants.score,
        active=entrants.active,
        filled=order.filled,
        masked=mask is not None,
        total=entrants.active.sum(dim=-1, keepdim=True),
        distance=distances(entrants.score, entrants.active, order.place),
        temperature=temperature,
    )
    return selection(plan, order, scores.dtype)


def distances(score: Tensor, active: Tensor, place: Tensor) -> Tensor:
    """The sum (..., n) of each candidate's distances from all others: from the better ones, and from the worse ones.

    Equals are neither: so their order in ``place``, from best to worst, does not matter, for the gradient either.
    """
    wide = score.to(score.dtype if score.device.type == "mps" else torch.float64)
    below = torch.where(active, -wide.detach(), torch.inf)  # those who take no part are worse than all
    ordered = below.gather(-1, place)
    better = torch.searchsorted(ordered, below.contiguous())
    not_worse = torch.searchsorted(ordered, below.contiguous(), right=True)
    sums = pad(wide.gather(-1, place).cumsum(dim=-1), (1, 0))  # of the first 0, 1, 2, ...
    worse = active.sum(dim=-1, keepdim=True) - not_worse
    summed = sums.gather(-1, better) - (sums[..., -1:] - sums.gather(-1, not_worse)) + (worse - better) * wide
    return torch.where(active, summed, 0.0)


@dataclass(eq=False)
class NeuralSort(Slots):
    """Scores times a factor that falls from slot to slot, less the distances from all others."""

    total: Tensor  # (*batch, 1) int64: how many take part
    distance: Tensor  # (*batch, n), in double precision
    temperature: float

    def logits(self, start: int, stop: int) -> Tensor:
        limits = torch.finfo(self.score.dtype)
        slot = torch.arange(start, stop, device=self.score.device).unsqueeze(-1)
        factor = (self.total.unsqueeze(-1) - 1 - 2 * slot).to(self.distance.dtype)
        logit = factor * self.score.to(self.distance.dtype).unsqueeze(-2) - self.distance.unsqueeze(-2)
        # In units of the best of the slot, so that those near it keep their digits in single precision.
        active = self.active.unsqueeze(-2)
        best = torch.where(active, logit.detach(), torch.finfo(logit.dtype).min).amax(dim=-1, keepdim=True)
        sharpness = min(1.0 / self.temperature, limits.max)
        return ((logit - best) * sharpness).clamp(limits.min / 8, limits.max / 8).to(self.score.dtype)
