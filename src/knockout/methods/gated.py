"""Hard top-k with gates, the common way to get a gradient past ``torch.topk``."""

from __future__ import annotations

import torch
from torch import Tensor

from knockout.checks import check_positive
from knockout.functional import Order
from knockout.methods.khot_plan import GatedPlan, top_scores
from knockout.selection import Selection


def gated(
    scores: Tensor,
    k: int | float | Tensor,
    temperature: float = 1.0,
    scale: float = 1.0,
    mask: Tensor | None = None,
    order: Order = "score",
    max_k: int | None = None,
) -> Selection:
    """The top k value rows, each scaled by ``scale * sigmoid(s / temperature)``.

    Routers and graph pooling do so. Only the scores of the k selected candidates get a gradient: training cannot find
    out that another candidate would have been better.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.gated(scores, k=2).weights()
    tensor([[0.0000, 0.8808, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.0000, 0.7311]])

    Time O(n + k d), memory O(n + k d).
    """
    check_positive(scale, "scale")
    top = top_scores(scores, k, mask, order, temperature, max_k)
    most = torch.finfo(top.key.dtype).max
    gate = torch.sigmoid(top.leader_score() * min(1.0 / temperature, most))
    return top.selection(GatedPlan, min(scale, most) * gate)
