"""Hard top-k, which the soft methods relax."""

from __future__ import annotations

import torch
from torch import Tensor

from knockout.candidates import candidates, invalidate, position_order, sort_key
from knockout.checks import check_choice
from knockout.counts import check_selection
from knockout.functional import ORDERS, Order
from knockout.ops.choice import choose
from knockout.plan import SparsePlan
from knockout.selection import Selection


def hard(
    scores: Tensor,
    k: int | float | Tensor,
    mask: Tensor | None = None,
    order: Order = "score",
    max_k: int | None = None,
) -> Selection:
    """``torch.topk`` as a Selection: values get gradients, scores get none.

    Ties are broken as ``torch.topk`` breaks them, which it does not specify. O(n) time and memory.

    >>> import torch, knockout
    >>> knockout.methods.hard(torch.tensor([0.1, 0.9, 0.7, 0.3]), k=2).weights()
    tensor([[0., 1., 0., 0.],
            [0., 0., 1., 0.]])
    """
    quota, mask = check_selection(scores, k, mask, max_k)
    check_choice(order, "order", ORDERS)
    score, active, valid = candidates(scores.detach(), mask)
    n = scores.shape[-1]
    top_score, leader = sort_key(score, active).topk(quota.k, dim=-1)
    filled = quota.filled(active)
    if order == "position":
        slot = position_order(leader, filled)
        top_score, leader = top_score.gather(-1, slot), leader.gather(-1, slot)
    plan = SparsePlan(
        n=n,
        valid=valid,
        member=torch.where(filled, leader, n).unsqueeze(-1),
        weight=invalidate(filled.to(score.dtype), valid).unsqueeze(-1),
        score=invalidate(torch.where(filled, top_score, 0.0), valid),
        backend=choose(scores),
        hard=True,
    )
    return Selection(plan, torch.where(filled, leader, -1), filled, scores.dtype)
