"""Attention within blocks: a long sequence is cut into short ones that any encoder layer takes as a batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def cut(x: Tensor, mask: Tensor | None, block: int) -> tuple[Tensor, Tensor | None]:
    """Tokens (batch, n, d) and mask (batch, n) as blocks (batch * blocks, block, d) and (batch * blocks, block).

    The last block is filled up with padding if it is shorter; without that and without a mask, there is none after.

    >>> import torch
    >>> blocks, mask = cut(torch.ones(2, 5, 1), None, 3)
    >>> blocks.shape, mask.int()
    (torch.Size([4, 3, 1]), tensor([[1, 1, 1],
            [1, 1, 0],
            [1, 1, 1],
            [1, 1, 0]], dtype=torch.int32))
    """
    missing = -x.shape[1] % block
    if missing:
        mask = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        x, mask = pad(x, (0, 0, 0, missing)), pad(mask, (0, missing))
    return x.reshape(-1, block, x.shape[-1]), None if mask is None else mask.reshape(-1, block)


def joined(blocks: Tensor, batch: int, n: int) -> Tensor:
    """Blocks (batch * blocks, block, d) as tokens (batch, n, d) again."""
    return blocks.reshape(batch, -1, blocks.shape[-1])[:, :n]
