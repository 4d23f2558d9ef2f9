"""Hard top-k: what everybody uses, and what the soft methods relax."""

from __future__ import annotations

import torch
from torch import Tensor

from knockout.checks import candidates, check_scores
from knockout.plan import Bracket
from knockout.ranking import sort_key
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
    score, leader = sort_key(entrants.score, entrants.alive).topk(quota.k, dim=-1)
    filled = quota.filled(entrants.alive)
    bracket = Bracket(
        n=n,
        member=torch.where(filled, leader, n).unsqueeze(-1),
        weight=(filled * entrants.poison).unsqueeze(-1),
        score=torch.where(filled, score, 0.0) * entrants.poison,
        hard=True,
    )
    return Selection(bracket, torch.where(filled, leader, -1), filled, scores.dtype)
