"""SoftSort (Prillo and Eisenschlos 2020, arXiv 2006.16038)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from knockout.candidates import candidates
from knockout.checks import check_choice, check_positive, check_scores, check_whole
from knockout.methods.slots import Slots, in_order, selection
from knockout.selection import Selection


def softsort(
    scores: Tensor, k: int | float, temperature: float = 0.1, power: int = 1, mask: Tensor | None = None
) -> Selection:
    """Slot i: a softmax of how close each score is to the i-th best, ``-|s_(i) - s_j|^power / temperature``.

    The first k rows of the paper's relaxed permutation matrix. Candidates may be in many slots, in all with the same
    weight if they tie. Time O(k n d); memory O(n d) plus a few chunks of 2**22 weights, backward included.

    The hard twin is ``torch.topk(scores, k).indices``:

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.softsort(scores, k=2, temperature=0.5).weights()
    tensor([[0.0152, 0.8310, 0.0414, 0.1125],
            [0.0826, 0.0826, 0.2245, 0.6103]])
    """
    quota = check_scores(scores, k, mask)
    check_positive(temperature, "temperature")
    check_choice(check_whole(power, "power"), "power", (1, 2))
    entrants = candidates(scores, mask)
    order = in_order(entrants, quota)
    plan = SoftSort(
        n=scores.shape[-1],
        k=quota.k,
        valid=entrants.valid,
        score=entrants.score,
        active=entrants.active,
        filled=order.filled,
        masked=mask is not None,
        best=entrants.score.gather(-1, order.leader),
        temperature=temperature,
        power=power,
    )
    return selection(plan, order, scores.dtype)


@dataclass(eq=False)
class SoftSort(Slots):
    """Distances from the k best scores."""

    best: Tensor  # (*batch, k)
    temperature: float
    power: int

    def logits(self, start: int, stop: int) -> Tensor:
        limits = torch.finfo(self.score.dtype)
        sharpness = min(1.0 / self.temperature, limits.max)
        # The power must stay finite, times the sharpness.
        farthest = math.pow(limits.max / max(sharpness, 1.0), 1.0 / self.power) / 2
        distance = (self.best[..., start:stop, None] - self.score.unsqueeze(-2)).clamp(-farthest, farthest)
        return -sharpness * (distance.square() if self.power == 2 else distance.abs())
