"""Hard top-k: what everybody uses, and what the soft methods relax."""

from __future__ import annotations

import torch
from torch import Tensor

from knockout.candidates import candidates, invalidate, sort_key
from knockout.checks import check_scores
from knockout.ops.choice import choose
from knockout.plan import SparsePlan
from knockout.selection import Selection


def hard(scores: Tensor, k: int | float, mask: Tensor | None = None) -> Selection:
    """``torch.topk`` as a Selection: values get gradients, scores get none.

    Ties are broken as ``torch.topk`` breaks them, which it does not specify. O(n) time and memory.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.1, 0.9, 0.7, 0.3])
    >>> knockout.methods.hard(scores, k=2).weights()
    tensor([[0., 1., 0., 0.],
            [0., 0., 1., 0.]])
    """
    quota = check_scores(scores, k, mask)
    entrants = candidates(scores.detach(), mask)
    n = scores.shape[-1]
    score, leader = sort_key(entrants.score, entrants.active).topk(quota.k, dim=-1)
    filled = quota.filled(entrants.active)
    plan = SparsePlan(
        n=n,
        valid=entrants.valid,
        member=torch.where(filled, leader, n).unsqueeze(-1),
        weight=invalidate(filled.to(score.dtype), entrants.valid).unsqueeze(-1),
        score=invalidate(torch.where(filled, score, 0.0), entrants.valid),
        backend=choose(scores),
        hard=True,
    )
    return Selection(plan, torch.where(filled, leader, -1), filled, scores.dtype)
