"""What the methods share that give a soft k-hot mask rather than k rows.

Such a method says of each candidate how much of it is selected, a share from 0 to 1; the shares add up to k. To become
a ``Selection``, it passes on the top k rows, each weighted by its share. So the values of the others are not read, and
``weights()`` has one entry a slot, at most 1; but the shares of the top k depend on other scores too, and gradients
reach these. ``mass()`` is the whole mask, that of the others included: for what need not be k rows, a weighted sum over
all candidates, say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from knockout.candidates import candidates, invalidate, sort_key
from knockout.checks import check_positive, check_scores
from knockout.dtypes import computing_dtype
from knockout.ops.choice import choose
from knockout.plan import SparsePlan
from knockout.selection import Selection


@dataclass(eq=False)
class Gates(SparsePlan):
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
    active: Tensor  # (*batch, n) bool
    valid: Tensor  # (*batch, 1) bool: False for a row with a NaN or +inf score
    leader: Tensor  # (*batch, k): the top k, best first
    filled: Tensor  # (*batch, k) bool: whether the slot has a candidate
    own: Tensor  # (*batch, 1) int64: how many slots have
    total: Tensor  # (*batch, 1) int64: how many candidates take part
    dtype: torch.dtype  # of the scores as they came

    def last(self) -> Tensor:
        """The score (*batch, 1) of the last of the top k."""
        return self.score.gather(-1, self.leader.gather(-1, (self.own - 1).clamp(min=0)))

    def scaled(self, temperature: float, from_where: Tensor | None = None) -> Tensor:
        """Scores as differences in units of the temperature, from the last of the top k if not from elsewhere."""
        return difference(self.score, self.last().detach() if from_where is None else from_where, temperature)

    def masked(self, numbers: Tensor) -> Tensor:
        """Numbers (*batch, n) to be compared or exponentiated: the lowest there is for who takes no part."""
        return torch.where(self.active, numbers, torch.finfo(numbers.dtype).min)

    def selection(self, share: Tensor) -> Selection:
        """The top k, weighted by a mask (*batch, n). Where all fit in, all have a share of 1."""
        share = torch.where(self.active, torch.where(self.own < self.total, share, 1.0), 0.0)
        share = invalidate(share, self.valid)
        weight = invalidate(torch.where(self.filled, share.gather(-1, self.leader), 0.0), self.valid)
        score = weight * self.score.gather(-1, self.leader)
        member, gates = members(self.leader, weight, self.score.shape[-1]), weight.unsqueeze(-1)
        plan = KHot(self.score.shape[-1], self.valid, member, gates, score, backend=choose(self.score), share=share)
        return Selection(plan, torch.where(self.filled, self.leader, -1), self.filled, self.dtype)


def members(leader: Tensor, weight: Tensor, n: int) -> Tensor:
    """The leader (*batch, k, 1) of every slot; nobody where it has no weight."""
    return torch.where(weight.detach() != 0, leader, n).unsqueeze(-1)


def difference(score: Tensor, from_where: Tensor, temperature: float) -> Tensor:
    """``(score - from_where) / temperature``, finite for finite scores."""
    limits = torch.finfo(score.dtype)
    # By halves, since the difference of two large numbers may be too large.
    halves = 0.5 * score - 0.5 * from_where
    return (halves * min(2.0 / temperature, limits.max)).clamp(limits.min / 8, limits.max / 8)


class Best(NamedTuple):
    """The best k + 1 scores, for methods that need not look at the others."""

    key: Tensor  # (*batch, n): scores, -inf for who takes no part
    value: Tensor  # (*batch, k + 1, or k if that is all), best first, 0 where there is nobody
    leader: Tensor  # (*batch, k)
    filled: Tensor  # (*batch, k) bool
    own: Tensor  # (*batch, 1) int64: how many slots are filled
    fits: Tensor  # (*batch, 1) bool: whether these are all who take part
    valid: Tensor  # (*batch, 1) bool: False for a row with a NaN or +inf score
    dtype: torch.dtype  # of the scores as they came

    def selection(self, plan: type[Gates], weight: Tensor, **fields: Any) -> Selection:
        """The top k with these weights (*batch, k)."""
        k, n = self.leader.shape[-1], self.key.shape[-1]
        weight = invalidate(torch.where(self.filled, weight, 0.0), self.valid)
        member, score = members(self.leader, weight, n), weight * self.value[..., :k]
        made = plan(n, self.valid, member, weight.unsqueeze(-1), score, backend=choose(self.key), **fields)
        return Selection(made, torch.where(self.filled, self.leader, -1), self.filled, self.dtype)


def best(scores: Tensor, k: int | float, mask: Tensor | None, temperature: float) -> Best:
    """Check what these methods are called with, and find the best; one look at the scores, by ``torch.topk``."""
    quota = check_scores(scores, k, mask)
    check_positive(temperature, "temperature")
    key = scores.to(computing_dtype(scores.dtype))
    if mask is not None:
        key = torch.where(mask, key, -torch.inf)
    n = key.shape[-1]
    value, place = key.topk(min(quota.k + 1, n), dim=-1)  # a NaN comes first
    there = value != -torch.inf
    own = quota.slots(key != -torch.inf) if quota.numerator else there[..., : quota.k].sum(dim=-1, keepdim=True)
    filled = torch.arange(quota.k, device=key.device) < own
    following = there.gather(-1, own.clamp(max=value.shape[-1] - 1))
    fits = (own == n) | ~following
    valid = value[..., :1] < torch.inf
    return Best(key, torch.where(there, value, 0.0), place[..., : quota.k], filled, own, fits, valid, scores.dtype)


def enter(scores: Tensor, k: int | float, mask: Tensor | None, temperature: float) -> Field:
    """Check what every one of these methods is called with, and find the top k."""
    quota = check_scores(scores, k, mask)
    check_positive(temperature, "temperature")
    score, active, valid = candidates(scores, mask)
    leader = sort_key(score, active).topk(quota.k, dim=-1).indices
    total = active.sum(dim=-1, keepdim=True)
    return Field(score, active, valid, leader, quota.filled(active), quota.slots(active), total, scores.dtype)
