"""Straight-through top-k (Bengio et al. 2013, arXiv 1308.3432): hard choices forward, a softmax's gradient backward."""

from __future__ import annotations

import torch
from torch import Tensor

from knockout.functional import Order
from knockout.methods.khot_plan import hard_topk
from knockout.methods.threshold_solver import active_softmax
from knockout.plan import straight_through as with_gradient_of
from knockout.selection import Selection


def straight_through(
    scores: Tensor,
    k: int | float | Tensor,
    temperature: float = 1.0,
    mask: Tensor | None = None,
    order: Order = "score",
    max_k: int | None = None,
) -> Selection:
    """The top k value rows unchanged; backward as if their weights were those of ``softmax(scores / temperature)``.

    Forward, ``mass()`` is a hard k-hot mask; backward, it has the softmax's gradient at every candidate, and so have
    the weights of the top k. That is not the gradient of what is computed.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0], requires_grad=True)
    >>> knockout.methods.straight_through(scores, k=2).mass()[3].backward()
    >>> scores.grad
    tensor([-0.0167, -0.1234, -0.0275,  0.1677])

    Time O(n + k d), memory O(n + k d).
    """
    top = hard_topk(scores, k, mask, order, temperature, max_k)
    hard = torch.zeros_like(top.score).scatter(-1, top.leader, top.filled.to(top.score.dtype))
    soft = active_softmax(top.scaled(temperature), top.active)
    return top.selection(with_gradient_of(hard, soft))
