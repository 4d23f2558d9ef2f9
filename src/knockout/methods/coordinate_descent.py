"""Coordinate descent, as in CoLT5 (Ainslie et al. 2023, arXiv 2303.09752; Lei et al. 2023, arXiv 2304.04947)."""

from __future__ import annotations

import torch
from torch import Tensor

from knockout.checks import check_whole
from knockout.functional import Order
from knockout.methods.khot_plan import fill_inactive, hard_topk
from knockout.selection import Selection


def coordinate_descent(
    scores: Tensor,
    k: int | float | Tensor,
    temperature: float = 0.1,
    steps: int = 50,
    mask: Tensor | None = None,
    order: Order = "score",
    max_k: int | None = None,
) -> Selection:
    """A k-hot mask: ``min(1, exp(s_j / temperature - t))``, with a t at which it sums to about k.

    At convergence it has the highest entropy of all masks with its total score and weights of at most 1. ``steps``
    steps of coordinate descent in the dual bring t close to its value; low temperatures need more. Gradients are those
    of the steps as they were run.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.coordinate_descent(scores, k=2, temperature=0.5).mass()
    tensor([0.0900, 1.0000, 0.2447, 0.6652])

    The Selection is the top k value rows scaled by the mask, ``mass()`` the whole mask. Time and memory
    O(steps n + k d).
    """
    check_whole(steps, "steps")
    top = hard_topk(scores, k, mask, order, temperature, max_k)
    # Before convergence the mask depends on where the scores lie; so the origin, the k-th best, is differentiated too.
    z = top.scaled(temperature, origin=top.last_score())
    log_count = torch.log(top.slot_count.clamp(min=1).to(z.dtype))
    capped = torch.zeros_like(z)  # logarithms of the weights, up to a constant: z, capped from above
    for _ in range(steps):
        offset = log_count - torch.logsumexp(fill_inactive(capped, top.active), dim=-1, keepdim=True)
        capped = torch.minimum(z, -offset)
    return top.selection(torch.exp(capped + offset))
