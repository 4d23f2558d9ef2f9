"""A k for each row: the check of every argument, where k may be a tensor of counts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from knockout.checks import check_device, check_scores, check_scores_and_mask, check_whole
from knockout.quota import Quota
from knockout.shapes import check_broadcast
from knockout.torch_private import is_transforming

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
MAX_K_NEEDS_COUNTS = (
    "max_k must come with a tensor k, a count for each row; got max_k = {!r} and k = {!r}. For counts pass k as a "
    "tensor of integers, for one count for all rows pass k alone"
)


def check_selection(
    scores: Tensor, k: int | float | Tensor, mask: Tensor | None, max_k: int | None = None
) -> tuple[Quota, Tensor | None]:
    """Check scores (..., n), mask (..., n) and k: an int, a fraction, or with ``max_k`` counts (...,).

    Returns the quota and the mask to select with. A row that is to fill no slot has no active candidates in it, so all
    counts of the quota are at least 1. They have the batch dimensions of scores, mask and counts together.
    """
    if not isinstance(k, Tensor):
        if max_k is not None:
            raise TypeError(MAX_K_NEEDS_COUNTS.format(max_k, k))
        return check_scores(scores, k, mask), mask
    check_scores_and_mask(scores, mask)
    max_k = check_max_k(k, max_k)
    check_most(max_k, scores.shape)
    counts, mask = counts_of(scores, k, mask, max_k)
    return Quota(max_k, counts=counts), mask


def counts_of(scores: Tensor, k: Tensor, mask: Tensor | None, max_k: int) -> tuple[Tensor, Tensor | None]:
    """Check counts (...,) against scores (..., n) and mask. Returns counts and mask as ``check_selection`` says."""
    may_be_zero = check_counts(k, max_k, "max_k")
    check_device(k, "k", scores.device)
    batch = scores.shape[:-1] if mask is None else torch.broadcast_shapes(scores.shape[:-1], mask.shape[:-1])
    check_broadcast(k.shape, "k", batch)
    whole = torch.broadcast_shapes(batch, k.shape)
    if may_be_zero or whole != batch:
        wanted = (k > 0).unsqueeze(-1)
        mask = (wanted if mask is None else wanted & mask).expand(*whole, scores.shape[-1])
    return k.long().clamp(1, max_k).expand(whole), mask  # a copy: the backward pass must not see it change


def check_max_k(k: Tensor, max_k: int | None) -> int:
    """Check ``max_k``, which counts need. Returns it as an int."""
    check_counts(k, None, "")
    if max_k is None:
        raise TypeError(
            "k as a tensor, a count for each row, needs max_k, the number of slots of the result; got none. Pass "
            "max_k=..., an int, the largest count that there may be"
        )
    return check_whole(max_k, "max_k")


def check_most(max_k: int, shape: Sequence[int]) -> None:
    """Check that there are candidates for ``max_k`` slots, given the shape of scores (..., n)."""
    if max_k > shape[-1]:
        raise ValueError(
            f"max_k must be at most n, the number of candidates; got max_k = {max_k} with scores of shape "
            f"{tuple(shape)}, n = {shape[-1]}"
        )


def check_counts(k: Tensor, most: int | None, what: str) -> bool:
    """Check counts: integers, and from 0 to ``most``, which is ``what``. Returns whether one of them may be 0.

    Their range is checked only on the CPU and outside of tracing: elsewhere reading them means to wait.
    """
    if not isinstance(k, Tensor):
        raise TypeError(f"k must be a tensor of integers, a count for each row; got {k!r} of type {type(k).__name__}")
    if k.dtype not in INTEGERS:
        raise TypeError(
            f"k as a tensor must have integers, how many candidates each row selects; got {k.dtype}. "
            + ("For a number of all rows pass an int or a float" if k.dim() == 0 else "Pass k.long()")
        )
    if k.is_nested or k.layout != torch.strided:
        raise TypeError(f"k must be a dense tensor; got layout {k.layout}")
    traced = torch.compiler.is_compiling() or is_transforming()
    if most is None or traced or type(k) not in (Tensor, torch.nn.Parameter) or not k.is_cpu:
        return True
    least, largest = (int(x) for x in k.long().aminmax()) if k.numel() else (1, 1)
    if least < 0 or largest > most:
        raise ValueError(
            f"k must be from 0 to {most}, which is {what}, in each row; got {least if least < 0 else largest}. Pass "
            f"k.clamp(0, {most})"
        )
    return least == 0
