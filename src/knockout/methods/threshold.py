"""The threshold sigmoid of DFTopK (Zhu et al. 2025, arXiv 2510.11472)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from knockout.candidates import invalidate
from knockout.functional import Order
from knockout.methods.khot_plan import GatedPlan, difference, top_scores
from knockout.selection import Selection


def threshold(
    scores: Tensor,
    k: int | float | Tensor,
    temperature: float = 0.1,
    mask: Tensor | None = None,
    order: Order = "score",
    max_k: int | None = None,
) -> Selection:
    """A mask of sigmoids of ``(s_j - t) / temperature``, t halfway between the k-th and the next score.

    Nothing is sorted or solved, and the mask sums to k only roughly.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.threshold(scores, k=2, temperature=0.5).mass()
    tensor([0.1824, 0.9241, 0.3775, 0.6225])

    The Selection is the top k value rows scaled by the mask. The whole mask, ``mass()``, takes one more pass over the
    scores. Time and memory O(n + k d).
    """
    top = top_scores(scores, k, mask, order, temperature, max_k)
    last = top.best.gather(-1, (top.slot_count - 1).clamp(min=0))
    following = top.best.gather(-1, top.slot_count.clamp(max=top.best.shape[-1] - 1))
    halfway = torch.where(top.all_selected, last, 0.5 * last + 0.5 * following)
    weight = torch.sigmoid(difference(top.leader_score(), halfway, temperature))
    return top.selection(
        ThresholdPlan,
        torch.where(top.all_selected, 1.0, weight),
        key=top.key,
        threshold=halfway,
        all_selected=top.all_selected,
        temperature=temperature,
    )


@dataclass(eq=False, kw_only=True)
class ThresholdPlan(GatedPlan):
    """One candidate per slot, scaled by its sigmoid; the rest of the mask is computed only by ``mass``."""

    key: Tensor  # (*batch, n): scores; -inf for inactive candidates
    threshold: Tensor  # (*batch, 1)
    all_selected: Tensor  # (*batch, 1) bool: whether the top k are all active candidates
    temperature: float

    def mass(self) -> Tensor:
        active = self.key != -torch.inf
        weight = torch.sigmoid(difference(torch.where(active, self.key, 0.0), self.threshold, self.temperature))
        return invalidate(torch.where(active, torch.where(self.all_selected, 1.0, weight), 0.0), self.valid)
