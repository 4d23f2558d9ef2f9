"""Coordinate descent, as in CoLT5 (Ainslie et al. 2023, arXiv 2303.09752; Lei et al. 2023, arXiv 2304.04947)."""

from __future__ import annotations

import torch
from torch import Tensor

from knockout.checks import check_whole
from knockout.methods.khot import enter
from knockout.selection import Selection


def coordinate_descent(
    scores: Tensor, k: int | float, temperature: float = 0.1, steps: int = 50, mask: Tensor | None = None
) -> Selection:
    """A k-hot mask: ``min(1, exp(s_j / temperature - t))``, with a t at which the shares add up to about k.

    The mask of highest entropy for its total score, with shares of at most 1. So many ``steps`` of coordinate descent
    in the dual, which take t towards its value and are differentiated as they were taken; low temperatures need more of
    them. The Selection is the top k rows weighted by the mask, ``mass()`` all of it. Time O(steps n + k d), memory
    O(steps n + k d).

    The hard twin is ``torch.topk(scores, k).indices``:

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.coordinate_descent(scores, k=2, temperature=0.5).mass()
    tensor([0.0900, 1.0000, 0.2447, 0.6652])
    """
    field = enter(scores, k, mask, temperature)
    check_whole(steps, "steps")
    # Steps that have not converged depend on where the scores lie: so the k-th best, from which they are counted, is
    # differentiated too.
    z = field.scaled(temperature, from_where=field.last())
    wanted = torch.log(field.own.clamp(min=1).to(z.dtype))
    capped = torch.zeros_like(z)  # logarithms of the shares that are left, up to a constant: z, cut off at the top
    for _ in range(steps):
        offset = wanted - torch.logsumexp(field.masked(capped), dim=-1, keepdim=True)
        capped = torch.minimum(z, -offset)
    return field.selection(torch.exp(capped + offset))
