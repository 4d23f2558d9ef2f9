"""Hard top-k, which the soft methods relax."""

from __future__ import annotations

from torch import Tensor

from knockout.checks import check_choice
from knockout.counts import check_selection
from knockout.functional import ORDERS, Order
from knockout.hard import hard_selection
from knockout.selection import Selection


def hard(
    scores: Tensor,
    k: int | float | Tensor,
    mask: Tensor | None = None,
    order: Order = "score",
    max_k: int | None = None,
) -> Selection:
    """``torch.topk`` as a Selection: values get gradients, scores get none.

    Among equal scores the lower index is the better one, which ``torch.topk`` does not promise. O(n) time and memory.

    >>> import torch, knockout
    >>> knockout.methods.hard(torch.tensor([0.1, 0.9, 0.7, 0.3]), k=2).weights()
    tensor([[0., 1., 0., 0.],
            [0., 0., 1., 0.]])
    """
    quota, mask = check_selection(scores, k, mask, max_k)
    check_choice(order, "order", ORDERS)
    return hard_selection(scores.detach(), quota, mask, order == "position")
