"""Attention within blocks: a long sequence is split into short ones, which any encoder layer takes as a batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def split_into_blocks(x: Tensor, mask: Tensor | None, block: int) -> tuple[Tensor, Tensor | None]:
    """Split tokens (batch, n, d) and mask (batch, n) into (batch * blocks, block, d) and (batch * blocks, block).

    A last block that is shorter is filled with padding. The mask returned is None if none was passed and no padding was
    needed.

    >>> import torch
    >>> blocks, mask = split_into_blocks(torch.ones(2, 5, 1), None, 3)
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


def join_blocks(blocks: Tensor, batch: int, n: int) -> Tensor:
    """Join blocks (batch * blocks, block, d) into tokens (batch, n, d), without the padding."""
    return blocks.reshape(batch, -1, blocks.shape[-1])[:, :n]
