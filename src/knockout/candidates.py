"""What every method starts from: scores, which candidates are active, which rows are valid, and how candidates rank."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from knockout.dtypes import computing_dtype


class Candidates(NamedTuple):
    """Scores after the arguments were checked."""

    score: Tensor  # (..., n) in the computing dtype; 0 where the candidate is inactive; NaN throughout an invalid row
    active: Tensor  # (..., n) bool: not masked out, and not -inf
    valid: Tensor  # (..., 1) bool: no active candidate of the row has a NaN or +inf score


def candidates(scores: Tensor, mask: Tensor | None) -> Candidates:
    """Candidates from scores (..., n) and a mask (..., n), both already checked."""
    score = scores.to(computing_dtype(scores.dtype))
    active = score != -torch.inf
    if mask is not None:
        active = active & mask
    score, active = torch.broadcast_tensors(score, active)
    score = torch.where(active, score, 0.0)
    valid = score.isfinite().all(dim=-1, keepdim=True)
    return Candidates(invalidate(score, valid), active, valid)


def invalidate(x: Tensor, valid: Tensor) -> Tensor:
    """x, with NaN where ``valid``, which must broadcast with it, is False.

    A product rather than ``torch.where``: the gradient of an invalid row must be NaN too, not 0.
    """
    return x * torch.where(valid, 1.0, torch.nan).to(x.dtype)


def sort_key(score: Tensor, active: Tensor) -> Tensor:
    """Scores to rank by, without gradient: -inf for inactive candidates, all equal in an invalid row."""
    return torch.where(active, score.detach().nan_to_num(nan=0.0), -torch.inf)


def position_order(leader: Tensor, filled: Tensor) -> Tensor:
    """The slots (..., k) by the position of their leaders (..., k), those that are not filled last."""
    return torch.where(filled, leader, torch.iinfo(leader.dtype).max).sort(dim=-1, stable=True).indices


def best_first(score: Tensor, active: Tensor) -> Tensor:
    """Indices (..., n) from best to worst: by score, the lower index first among equals, inactive candidates last."""
    return sort_key(score, active).sort(dim=-1, descending=True, stable=True).indices
