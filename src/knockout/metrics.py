"""How close a soft selection comes to the hard one."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from knockout.checks import full_precision
from knockout.methods.hard import hard
from knockout.selection import Selection

__all__ = ["nccs", "topk_mass"]

CHUNK = 2**24


def nccs(true: Tensor, approx: Tensor) -> Tensor:
    """Normalised Chamfer cosine similarity (...), the paper's measure of quality; 1 is perfect.

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
            raise TypeError(
                f"{name} must be a floating-point tensor of shape (..., k, d); got {getattr(rows, 'dtype', type(rows))}"
            )
        if rows.dim() < 2 or rows.shape[-2] == 0:
            raise ValueError(f"{name} must have shape (..., k, d) with k of at least 1; got {tuple(rows.shape)}")
    if true.shape[-1] != approx.shape[-1]:
        raise ValueError(
            f"true and approx must have rows of one length d; got {tuple(true.shape)} and {tuple(approx.shape)}"
        )
    with full_precision(true.device):
        rows, columns = (normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1) for x in (true, approx))
        # A chunk of rows at a time: k x k cosines of a large k would not fit.
        step = max(1, CHUNK // max(1, math.prod(columns.shape[:-1])))
        best = [(chunk @ columns.mT).amax(dim=-1) for chunk in rows.split(step, dim=-2)]
        return torch.cat(best, dim=-1).mean(dim=-1)


def topk_mass(selection: Selection, scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """The share (...) of a selection's weight that lies on the true top k of scores (..., n); 1 is a hard selection.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.1, 0.9, 0.7, 0.3])
    >>> knockout.metrics.topk_mass(knockout.select(scores, k=2, boost=2.0), scores)
    tensor(0.8689)
    """
    if selection.n != scores.shape[-1]:
        raise ValueError(f"scores must be those selected from, n = {selection.n}; got shape {tuple(scores.shape)}")
    top = hard(scores, selection.k, mask)
    mass = selection.mass().gather(-1, top.indices.clamp(min=0))
    return torch.where(top.mask, mass, 0.0).sum(dim=-1) / top.mask.sum(dim=-1).clamp(min=1)
