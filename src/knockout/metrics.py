"""Metrics: how close a soft selection comes to the hard one."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from knockout.candidates import candidates, sort_key
from knockout.checks import check_scores
from knockout.dtypes import full_precision
from knockout.selection import Selection
from knockout.shapes import check_broadcast

__all__ = ["nccs", "topk_mass"]

CHUNK = 2**24


def nccs(true: Tensor, approx: Tensor) -> Tensor:
    """Normalized Chamfer cosine similarity (...), the paper's measure of quality; 1 is perfect.

    For every row of ``true`` (..., k, d), the highest cosine with any row of ``approx`` (..., k, d); averaged over
    the rows.

    >>> import torch, knockout
    >>> true = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> knockout.metrics.nccs(true, true.flip(0))
    tensor(1.)
    >>> knockout.metrics.nccs(true, torch.tensor([[1.0, 1.0], [1.0, 1.0]]))
    tensor(0.7071)
    """
    for name, rows in (("true", true), ("approx", approx)):
        if not isinstance(rows, Tensor) or not rows.is_floating_point():
            got = getattr(rows, "dtype", type(rows).__name__)
            raise TypeError(f"{name} must be a floating-point tensor of shape (..., k, d); got {got}")
        if rows.dim() < 2 or rows.shape[-2] == 0:
            raise ValueError(f"{name} must have shape (..., k, d) with k of at least 1; got {tuple(rows.shape)}")
    if true.shape[-1] != approx.shape[-1]:
        raise ValueError(
            f"true and approx must have rows of one length d; got shapes {tuple(true.shape)} and {tuple(approx.shape)}"
        )
    check_broadcast(approx.shape[:-2], "approx", true.shape[:-2], "true")
    with full_precision(true.device):
        dtype = torch.promote_types(torch.promote_types(true.dtype, approx.dtype), torch.float32)
        rows, columns = (_unit_rows(x.to(dtype)) for x in (true, approx))
        # A chunk of rows at a time: for a large k, k x k cosines would not fit into memory.
        step = max(1, CHUNK // max(1, math.prod(columns.shape[:-1])))
        best = [(chunk @ columns.mT).amax(dim=-1) for chunk in rows.split(step, dim=-2)]
        return torch.cat(best, dim=-1).mean(dim=-1)


def _unit_rows(rows: Tensor) -> Tensor:
    """Rows scaled to length 1, or of zeros; first divided by their largest entry, lest squares overflow or vanish."""
    largest = rows.abs().amax(dim=-1, keepdim=True) if rows.shape[-1] else rows.new_ones(())
    return normalize(rows / torch.where(largest > 0, largest, 1.0), dim=-1)


def topk_mass(selection: Selection, scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """The fraction (...) of a selection's weight that is on the true top k of scores (..., n); 1 for a hard selection.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.1, 0.9, 0.7, 0.3])
    >>> knockout.metrics.topk_mass(knockout.select(scores, k=2, boost=2.0), scores)
    tensor(0.8689)
    """
    if not isinstance(selection, Selection):
        raise TypeError(f"selection must be a knockout.Selection; got {type(selection).__name__}")
    check_scores(scores, selection.k, mask)
    if selection.n != scores.shape[-1]:
        raise ValueError(f"scores must be those selected from, n = {selection.n}; got shape {tuple(scores.shape)}")
    check_broadcast(scores.shape[:-1], "scores", selection.indices.shape[:-1], "the selection")
    score, active, _ = candidates(scores, mask)
    key = sort_key(score, active)
    # Candidates that tie with the last of the true top k count as well. If k is a fraction, rows fill different numbers
    # of slots.
    last = (selection.mask.sum(dim=-1, keepdim=True) - 1).clamp(min=0)
    top = key.topk(selection.k, dim=-1).values.expand(*last.shape[:-1], -1)
    is_top = active & (key >= top.gather(-1, last))
    mass = selection.mass()
    total = mass.sum(dim=-1)
    return torch.where(is_top, mass, 0.0).sum(dim=-1) / torch.where(total == 0, 1.0, total)
