"""Sums whose bits do not depend on how they are computed."""

from __future__ import annotations

import torch
from torch import Tensor


def tree_sum(x: Tensor) -> Tensor:
    """Sum (..., 1) over the last dimension in a fixed tree: the same bits for any threads, memory layout and batch.

    ``torch.sum`` splits long rows among threads, and adds up short ones as it suits their layout.
    """
    size = 1
    while size < x.shape[-1]:
        size *= 2
    x = torch.nn.functional.pad(x, (0, size - x.shape[-1]))
    while size > 1:
        size //= 2
        x = x.reshape(*x.shape[:-1], 2, size).sum(dim=-2)
    return x
