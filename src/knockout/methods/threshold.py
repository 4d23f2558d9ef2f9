"""The threshold sigmoid of DFTopK (Zhu et al. 2025, arXiv 2510.11472)."""

from __future__ import annotations

import torch
from torch import Tensor

from knockout.methods.khot import enter
from knockout.ranking import sort_key
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
    field = enter(scores, k, mask, temperature)
    z = field.scaled(temperature)
    # The best of those who are not in the top k: all others are struck out for that.
    k_or_less = torch.arange(field.leader.shape[-1], device=z.device) < field.own
    out = torch.zeros_like(field.alive).scatter(-1, field.leader, k_or_less)
    following = sort_key(field.score, field.alive & ~out).argmax(dim=-1, keepdim=True)
    last = field.leader.gather(-1, (field.own - 1).clamp(min=0))
    between = 0.5 * z.gather(-1, last) + 0.5 * z.gather(-1, following)
    return field.selection(torch.sigmoid(z - between))
