"""What the methods share that give a soft k-hot mask rather than k rows.

Such a method says of each candidate how much of it is selected, a share from 0 to 1; the shares add up to k. To become
a ``Selection``, it passes on the top k rows, each weighted by its share. So the values of the others are not read, and
``weights()`` has one entry a slot, at most 1; but the shares of the top k depend on all scores, and their gradients
reach all. ``mass()`` is the whole mask, that of the others included: for what need not be k rows, a weighted sum over
all candidates, say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from knockout.checks import candidates, check_positive, check_scores
from knockout.plan import Bracket
from knockout.ranking import sort_key
from knockout.selection import Selection


@dataclass(eq=False)
class Gates(Bracket):
    """One candidate a slot, scaled by a gate."""

    def entropy(self) -> Tensor:
        return 0.0 * self.weight.squeeze(-1)  # of one candidate; NaN in a spoiled row


@dataclass(eq=False, kw_only=True)
class KHot(Gates):
    """One candidate a slot, scaled by its share in a mask over all candidates."""

    share: Tensor  # (*batch, n); NaN throughout a spoiled row

    def mass(self) -> Tensor:
        return self.share


class Field(NamedTuple):
    """Scores that passed the border, and their top k; ties are broken as ``torch.topk`` breaks them."""

    score: Tensor  # (*batch, n), 0 where the candidate takes no part
    alive: Tensor  # (*batch, n) bool
    poison: Tensor  # (*batch, 1): 1, or NaN for a row with a NaN or +inf score
    leader: Tensor  # (*batch, k): the top k, best first
    filled: Tensor  # (*batch, k) bool: whether the slot has a candidate
    own: Tensor  # (*batch, 1) int64: how many slots have
    total: Tensor  # (*batch, 1) int64: how many candidates take part
    dtype: torch.dtype  # of the scores as they came

    def scaled(self, temperature: float) -> Tensor:
        """Scores as differences from the last of the top k, in units of the temperature; finite for finite scores."""
        limits = torch.finfo(self.score.dtype)
        last = (self.own - 1).clamp(min=0)
        pivot = self.score.gather(-1, self.leader).gather(-1, last).detach()
        # By halves, since the difference of two large numbers may be too large.
        halves = 0.5 * self.score - 0.5 * pivot
        return (halves * min(2.0 / temperature, limits.max)).clamp(limits.min / 8, limits.max / 8)

    def masked(self, numbers: Tensor) -> Tensor:
        """Numbers (*batch, n) to be compared or exponentiated: the lowest there is for who takes no part."""
        return torch.where(self.alive, numbers, torch.finfo(numbers.dtype).min)

    def selection(self, share: Tensor) -> Selection:
        """The top k, weighted by a mask (*batch, n). Where all fit in, all have a share of 1."""
        share = torch.where(self.alive, torch.where(self.own < self.total, share, 1.0), 0.0) * self.poison
        weight = torch.where(self.filled, share.gather(-1, self.leader), 0.0) * self.poison
        return self._selection(weight, share)

    def gated(self, gate: Tensor) -> Selection:
        """The top k, weighted by gates (*batch, k); the others have no share."""
        return self._selection(torch.where(self.filled, gate, 0.0) * self.poison, None)

    def _selection(self, weight: Tensor, share: Tensor | None) -> Selection:
        n = self.score.shape[-1]
        member = torch.where(self.filled, self.leader, n).unsqueeze(-1)
        score = weight * self.score.gather(-1, self.leader)
        gates = weight.unsqueeze(-1)
        plan = Gates(n, member, gates, score) if share is None else KHot(n, member, gates, score, share=share)
        return Selection(plan, torch.where(self.filled, self.leader, -1), self.filled, self.dtype)


def enter(scores: Tensor, k: int | float, mask: Tensor | None, temperature: float) -> Field:
    """Check what every one of these methods is called with, and find the top k."""
    quota = check_scores(scores, k, mask)
    check_positive(temperature, "temperature")
    score, alive, poison = candidates(scores, mask)
    leader = sort_key(score, alive).topk(quota.k, dim=-1).indices
    total = alive.sum(dim=-1, keepdim=True)
    return Field(score, alive, poison, leader, quota.filled(alive), quota.own(alive), total, scores.dtype)
