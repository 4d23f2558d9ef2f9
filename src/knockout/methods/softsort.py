"""SoftSort (Prillo and Eisenschlos 2020, arXiv 2006.16038)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from knockout.checks import check_choice, check_positive, check_whole
from knockout.functional import Order
from knockout.methods.softmax_plan import SoftmaxPlan, rank
from knockout.selection import Selection


def softsort(
    scores: Tensor,
    k: int | float | Tensor,
    temperature: float = 0.1,
    power: int = 1,
    mask: Tensor | None = None,
    order: Order = "score",
    max_k: int | None = None,
) -> Selection:
    """Slot i: a softmax of how close each score is to the i-th best, ``-|s_(i) - s_j|^power / temperature``.

    These are the first k rows of the paper's relaxed permutation matrix. A candidate may have weight in many slots;
    candidates with equal scores have equal weights in each.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.softsort(scores, k=2, temperature=0.5).weights()
    tensor([[0.0152, 0.8310, 0.0414, 0.1125],
            [0.0826, 0.0826, 0.2245, 0.6103]])

    Time O(k n d); memory O(n d) plus a few chunks of 2**22 weights, backward included.
    """
    check_positive(temperature, "temperature")
    check_choice(check_whole(power, "power"), "power", (1, 2))
    ranking = rank(scores, k, mask, order, max_k)
    return ranking.selection(SoftSortPlan, top_score=ranking.leader_score(), temperature=temperature, power=power)


@dataclass(eq=False)
class SoftSortPlan(SoftmaxPlan):
    """Softmaxes of the distances from the k best scores."""

    top_score: Tensor  # (*batch, k): the k best scores
    temperature: float
    power: int

    def logits(self, start: int, stop: int) -> Tensor:
        limits = torch.finfo(self.score.dtype)
        sharpness = min(1.0 / self.temperature, limits.max)
        # Clamped so that sharpness * distance ** power stays finite.
        farthest = math.pow(limits.max / max(sharpness, 1.0), 1.0 / self.power) / 2
        distance = (self.top_score[..., start:stop, None] - self.score.unsqueeze(-2)).clamp(-farthest, farthest)
        return -sharpness * (distance.square() if self.power == 2 else distance.abs())
