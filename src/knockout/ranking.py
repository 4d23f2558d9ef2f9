"""Who is better: by score, the lower place first among equals, and those who take no part last."""

from __future__ import annotations

import torch
from torch import Tensor


def sort_key(score: Tensor, alive: Tensor) -> Tensor:
    """Scores to rank by, without gradient: -inf for those who take no part, and all alike in a spoiled row."""
    return torch.where(alive, score.detach().nan_to_num(nan=0.0), -torch.inf)


def best_first(score: Tensor, alive: Tensor) -> Tensor:
    """Places (..., n) from best to worst."""
    return sort_key(score, alive).sort(dim=-1, descending=True, stable=True).indices
