"""The threshold sigmoid of DFTopK (Zhu et al. 2025, arXiv 2510.11472)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from knockout.candidates import invalidate
from knockout.methods.khot import Gates, best, difference
from knockout.selection import Selection


def threshold(scores: Tensor, k: int | float, temperature: float = 0.1, mask: Tensor | None = None) -> Selection:
    """A mask of sigmoids of ``(s_j - t) / temperature``, t halfway between the k-th and the next score.

    No sorting and no solving; but the shares add up to k only roughly. The Selection is the top k rows weighted by the
    mask, ``mass()`` all of it. Time O(n + k d), memory O(n + k d).

    The hard twin is ``torch.topk(scores, k).indices``:

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.threshold(scores, k=2, temperature=0.5).mass()
    tensor([0.1824, 0.9241, 0.3775, 0.6225])
    """
    top = best(scores, k, mask, temperature)
    last = top.value.gather(-1, (top.own - 1).clamp(min=0))
    following = top.value.gather(-1, top.own.clamp(max=top.value.shape[-1] - 1))
    between = torch.where(top.fits, last, 0.5 * last + 0.5 * following)
    weight = torch.sigmoid(difference(top.value[..., : top.leader.shape[-1]], between, temperature))
    return top.selection(
        Sigmoids,
        torch.where(top.fits, 1.0, weight),
        key=top.key,
        between=between,
        fits=top.fits,
        temperature=temperature,
    )


@dataclass(eq=False, kw_only=True)
class Sigmoids(Gates):
    """One candidate a slot, scaled by its sigmoid; those of the others are computed when somebody asks."""

    key: Tensor  # (*batch, n): scores, -inf for who takes no part
    between: Tensor  # (*batch, 1): the threshold
    fits: Tensor  # (*batch, 1) bool: whether the top k are all who take part
    temperature: float

    def mass(self) -> Tensor:
        active = self.key != -torch.inf
        share = torch.sigmoid(difference(torch.where(active, self.key, 0.0), self.between, self.temperature))
        return invalidate(torch.where(active, torch.where(self.fits, 1.0, share), 0.0), self.valid)
