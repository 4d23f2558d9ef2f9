"""The shared part of the methods that give a soft k-hot mask, or scale the top k value rows by gates.

A k-hot mask has a weight from 0 to 1 for each candidate, how much of it is selected; the weights sum to k, or nearly.
The ``Selection`` passes on the top k value rows, each scaled by its weight in the mask, so the other value rows are not
read, and ``weights()`` has one entry per slot, at most 1. Gradients reach all scores that those weights depend on.
``mass()`` is the whole mask: for a weighted sum over all candidates, say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from knockout.candidates import candidates, invalidate, position_order, sort_key
from knockout.checks import check_choice, check_positive
from knockout.counts import check_selection
from knockout.dtypes import computing_dtype
from knockout.functional import ORDERS, Order
from knockout.ops.choice import choose
from knockout.plan import SparsePlan
from knockout.selection import Selection


@dataclass(eq=False)
class GatedPlan(SparsePlan):
    """One candidate per slot, scaled by a gate."""

    def entropy(self) -> Tensor:
        return 0.0 * self.weight.squeeze(-1)  # that of a single candidate; NaN in an invalid row


@dataclass(eq=False, kw_only=True)
class KHotPlan(GatedPlan):
    """One candidate per slot, scaled by its weight in a mask over all candidates."""

    khot: Tensor  # (*batch, n): the mask; NaN throughout an invalid row

    def mass(self) -> Tensor:
        return self.khot


class HardTopK(NamedTuple):
    """All scores and their top k; ties are broken as ``torch.topk`` breaks them."""

    scores: Tensor  # (..., n) as they were passed
    score: Tensor  # (*batch, n) in the computing dtype; 0 for inactive candidates
    active: Tensor  # (*batch, n) bool
    valid: Tensor  # (*batch, 1) bool: False for a row with a NaN or +inf score
    leader: Tensor  # (*batch, k): the top k, best first
    filled: Tensor  # (*batch, k) bool: which slots have a candidate
    slot_count: Tensor  # (*batch, 1) int64: how many slots are filled
    active_count: Tensor  # (*batch, 1) int64: how many candidates are active
    order: Order  # of the slots of the selection

    def last_score(self) -> Tensor:
        """The lowest score (*batch, 1) of the top k."""
        return self.score.gather(-1, self.leader.gather(-1, (self.slot_count - 1).clamp(min=0)))

    def scaled(self, temperature: float, origin: Tensor | None = None) -> Tensor:
        """Scores as differences from ``origin``, by default the last of the top k, in units of the temperature."""
        return difference(self.score, self.last_score().detach() if origin is None else origin, temperature)

    def selection(self, khot: Tensor) -> Selection:
        """The top k, scaled by a mask (*batch, n). Where all active candidates are selected, each has weight 1."""
        khot = torch.where(self.active, torch.where(self.slot_count < self.active_count, khot, 1.0), 0.0)
        khot = invalidate(khot, self.valid)
        weight, leader_score = khot.gather(-1, self.leader), self.score.gather(-1, self.leader)
        return _gated_selection(self, KHotPlan, weight, leader_score, khot=khot)


def hard_topk(
    scores: Tensor, k: int | float | Tensor, mask: Tensor | None, order: Order, temperature: float, max_k: int | None
) -> HardTopK:
    """Check the arguments that the methods have in common, and find the top k."""
    quota, mask = check_selection(scores, k, mask, max_k)
    check_choice(order, "order", ORDERS)
    check_positive(temperature, "temperature")
    score, active, valid = candidates(scores, mask)
    leader = sort_key(score, active).topk(quota.k, dim=-1).indices
    active_count = active.sum(dim=-1, keepdim=True)
    filled, slot_count = quota.filled(active), quota.slot_count(active)
    return HardTopK(scores, score, active, valid, leader, filled, slot_count, active_count, order)


class TopScores(NamedTuple):
    """The best k + 1 scores, for methods that do not depend on the others."""

    scores: Tensor  # (..., n) as they were passed
    key: Tensor  # (*batch, n): scores in the computing dtype; -inf for inactive candidates
    best: Tensor  # (*batch, k + 1, or n if k = n): the highest scores, best first; 0 in place of missing candidates
    valid: Tensor  # (*batch, 1) bool: False for a row with a NaN or +inf score
    leader: Tensor  # (*batch, k): the top k, best first
    filled: Tensor  # (*batch, k) bool: which slots have a candidate
    slot_count: Tensor  # (*batch, 1) int64: how many slots are filled
    all_selected: Tensor  # (*batch, 1) bool: whether the top k are all active candidates
    order: Order  # of the slots of the selection

    def leader_score(self) -> Tensor:
        """The scores (*batch, k) of the leaders."""
        return self.best[..., : self.leader.shape[-1]]

    def selection(self, plan: type[GatedPlan], weight: Tensor, **fields: Any) -> Selection:
        """The top k with these weights (*batch, k), as a plan of this class with these further fields."""
        return _gated_selection(self, plan, weight, self.leader_score(), **fields)


def top_scores(
    scores: Tensor, k: int | float | Tensor, mask: Tensor | None, order: Order, temperature: float, max_k: int | None
) -> TopScores:
    """Check the arguments that the methods have in common, and find the best k + 1 scores, in one pass over them."""
    quota, mask = check_selection(scores, k, mask, max_k)
    check_choice(order, "order", ORDERS)
    check_positive(temperature, "temperature")
    key = scores.to(computing_dtype(scores.dtype))
    if mask is not None:
        key = torch.where(mask, key, -torch.inf)
    n = key.shape[-1]
    best, index = key.topk(min(quota.k + 1, n), dim=-1)  # torch.topk puts NaN first
    active = best != -torch.inf
    slots = quota.slot_count(key != -torch.inf) if quota.varies else active[..., : quota.k].sum(dim=-1, keepdim=True)
    filled = torch.arange(quota.k, device=key.device) < slots
    all_selected = (slots == n) | ~active.gather(-1, slots.clamp(max=best.shape[-1] - 1))
    valid = best[..., :1] < torch.inf
    best = torch.where(active, best, 0.0)
    return TopScores(scores, key, best, valid, index[..., : quota.k], filled, slots, all_selected, order)


def _gated_selection(
    top: HardTopK | TopScores, plan: type[GatedPlan], weight: Tensor, leader_score: Tensor, **fields: Any
) -> Selection:
    """A selection of the top k, each scaled by its weight (*batch, k)."""
    n, leader = top.scores.shape[-1], top.leader
    if top.order == "position":
        slot = position_order(leader, top.filled)
        leader, weight, leader_score = (x.gather(-1, slot) for x in (leader, weight, leader_score))
    weight = invalidate(torch.where(top.filled, weight, 0.0), top.valid)
    member = torch.where(weight.detach() != 0, leader, n)
    made = plan(
        n,
        top.valid,
        member.unsqueeze(-1),
        weight.unsqueeze(-1),
        score=weight * leader_score,
        backend=choose(top.scores),
        **fields,
    )
    return Selection(made, torch.where(top.filled, leader, -1), top.filled, top.scores.dtype)


def difference(score: Tensor, origin: Tensor, temperature: float) -> Tensor:
    """``(score - origin) / temperature``, finite for finite scores."""
    limits = torch.finfo(score.dtype)
    # Halved before the subtraction: the difference of two large numbers may overflow.
    halves = 0.5 * score - 0.5 * origin
    return (halves * min(2.0 / temperature, limits.max)).clamp(limits.min / 8, limits.max / 8)


def fill_inactive(x: Tensor, active: Tensor) -> Tensor:
    """x (..., n), with the lowest finite number for inactive candidates: a row of -inf alone would become NaN."""
    return torch.where(active, x, torch.finfo(x.dtype).min)
