"""Hard top-k with gates: how a gradient is commonly got past ``torch.topk``."""

from __future__ import annotations

import torch
from torch import Tensor

from knockout.checks import check_positive
from knockout.methods.khot import Gates, best
from knockout.selection import Selection


def gated(
    scores: Tensor, k: int | float, temperature: float = 1.0, scale: float = 1.0, mask: Tensor | None = None
) -> Selection:
    """The top k rows, each scaled by ``scale * sigmoid(s / temperature)``.

    Routers and graph pooling do so. The scores of the k selected get a gradient, the others none: who is not selected
    cannot be found out to be better. Time O(n + k d), memory O(n + k d).

    The hard twin is ``torch.topk(scores, k).indices``:

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.gated(scores, k=2).weights()
    tensor([[0.0000, 0.8808, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.0000, 0.7311]])
    """
    top = best(scores, k, mask, temperature)
    check_positive(scale, "scale")
    most = torch.finfo(top.value.dtype).max
    gate = torch.sigmoid(top.value[..., : top.leader.shape[-1]] * min(1.0 / temperature, most))
    return top.selection(Gates, min(scale, most) * gate)
