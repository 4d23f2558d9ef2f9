"""Straight-through top-k (Bengio et al. 2013, arXiv 1308.3432): hard choices forward, a softmax's gradient backward."""

from __future__ import annotations

import torch
from torch import Tensor

from knockout.methods.balance import softmax_of
from knockout.methods.khot import enter
from knockout.plan import straight_through as shown_as
from knockout.selection import Selection


def straight_through(scores: Tensor, k: int | float, temperature: float = 1.0, mask: Tensor | None = None) -> Selection:
    """The top k rows untouched; backward as if their weights were those of ``softmax(scores / temperature)``.

    Forward, ``mass()`` is a hard k-hot mask; backward, it has the softmax's gradient at every candidate, and so have
    the weights of the top k rows. That is not the gradient of what is computed. Time O(n + k d), memory O(n + k d).

    The hard twin is ``torch.topk(scores, k).indices``, which has no gradient:

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0], requires_grad=True)
    >>> knockout.methods.straight_through(scores, k=2).mass()[3].backward()
    >>> scores.grad
    tensor([-0.0167, -0.1234, -0.0275,  0.1677])
    """
    field = enter(scores, k, mask, temperature)
    chosen = torch.zeros_like(field.score).scatter(-1, field.leader, field.filled.to(field.score.dtype))
    return field.selection(shown_as(chosen, softmax_of(field.scaled(temperature), field.active)))
