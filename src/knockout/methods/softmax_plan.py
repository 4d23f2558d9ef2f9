"""The shared part of the methods that weigh all candidates in each of k slots: SoftSort, NeuralSort, Sinkhorn, ...

``rank`` checks the arguments that all of them have and ranks the candidates; the ranking then makes the selection from
the plan of the method, a subclass of ``RankedPlan``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from knockout.candidates import best_first, candidates, invalidate, position_order
from knockout.checks import check_choice
from knockout.counts import check_selection
from knockout.functional import ORDERS, Order
from knockout.plan import DensePlan
from knockout.selection import Selection


@dataclass(eq=False)
class RankedPlan(DensePlan):
    """Weights of all active candidates in each slot, made by ``Ranking.selection``."""

    score: Tensor  # (*batch, n); 0 for inactive candidates
    active: Tensor  # (*batch, n) bool
    filled: Tensor  # (*batch, k) bool: which slots have a candidate
    masked: bool  # whether the caller passed a mask; values of candidates that are masked out may be NaN

    @abstractmethod
    def raw_weights(self, start: int, stop: int) -> Tensor:
        """Weights (*batch, stop - start, n) of the slots from start to stop.

        In empty slots they may be any finite numbers, in invalid rows anything: ``slot_weights`` makes these 0 and NaN.
        """

    def slot_weights(self, start: int, stop: int) -> Tensor:
        weight = self.raw_weights(start, stop) * self.filled[..., start:stop, None]
        return invalidate(weight, self.valid.unsqueeze(-1))

    def scores(self) -> Tensor:
        return self.apply(self.score.unsqueeze(-1)).squeeze(-1)

    def apply(self, values: Tensor) -> Tensor:
        if self.masked:
            values = torch.where(self.active.unsqueeze(-1), values, 0.0)
        return super().apply(values)

    def spread(self, y: Tensor) -> Tensor:
        # What an empty slot holds is not read, and inactive candidates get nothing: it may be NaN, and 0 * NaN is NaN.
        spread = super().spread(torch.where(self.filled.unsqueeze(-1), y, 0.0))
        return invalidate(torch.where(self.active.unsqueeze(-1), spread, 0.0), self.valid.unsqueeze(-1))

    def _members(self, weight: Tensor) -> Tensor:
        return torch.where(self.active.unsqueeze(-2), super()._members(weight), self.n)

    def _batch_size(self) -> int:
        return math.prod(self.score.shape[:-1])


@dataclass(eq=False)
class SoftmaxPlan(RankedPlan):
    """A softmax over all active candidates in each slot."""

    @abstractmethod
    def logits(self, start: int, stop: int) -> Tensor:
        """Logits (*batch, stop - start, n) of the slots from start to stop; arbitrary for inactive candidates."""

    def raw_weights(self, start: int, stop: int) -> Tensor:
        # The lowest finite number rather than -inf: a row without active candidates must not become NaN.
        lowest = torch.finfo(self.score.dtype).min
        return torch.softmax(torch.where(self.active.unsqueeze(-2), self.logits(start, stop), lowest), dim=-1)


class Ranking(NamedTuple):
    """Checked scores, and their candidates from best to worst; among equal scores the lower index comes first."""

    score: Tensor  # (*batch, n); 0 for inactive candidates
    active: Tensor  # (*batch, n) bool
    valid: Tensor  # (*batch, 1) bool: False for a row with a NaN or +inf score
    key: Tensor  # (*batch, n): ranked by this, the scores or scores with noise
    order: Tensor  # (*batch, n) int64: candidates from best to worst, inactive ones last
    slot: Tensor  # (*batch, k) int64: the rank of the leader of each slot: 0, 1, ..., or another order
    filled: Tensor  # (*batch, k) bool: which slots have a candidate
    masked: bool  # whether the caller passed a mask
    dtype: torch.dtype  # of the scores as they were passed

    @property
    def k(self) -> int:
        """The number of slots, filled or empty."""
        return self.filled.shape[-1]

    @property
    def leader(self) -> Tensor:
        """The leaders (*batch, k) of the slots: the first k candidates."""
        return self.order.gather(-1, self.slot)

    @property
    def slot_count(self) -> Tensor:
        """The number of filled slots (*batch, 1)."""
        return self.filled.sum(dim=-1, keepdim=True)

    @property
    def active_count(self) -> Tensor:
        """The number of active candidates (*batch, 1)."""
        return self.active.sum(dim=-1, keepdim=True)

    def leader_score(self) -> Tensor:
        """The scores (*batch, k) of the leaders."""
        return self.score.gather(-1, self.leader)

    def arranged(self, by_rank: Tensor) -> Tensor:
        """What is known of the first k candidates (*batch, k, m), best first, in the order of the slots."""
        return by_rank.gather(-2, self.slot.unsqueeze(-1).expand(by_rank.shape))

    def selection(self, plan: type[RankedPlan], **fields: Any) -> Selection:
        """The selection by a plan of this class, with these fields beside those that all such plans have."""
        made = plan(
            n=self.score.shape[-1],
            valid=self.valid,
            k=self.k,
            score=self.score,
            active=self.active,
            filled=self.filled,
            masked=self.masked,
            **fields,
        )
        return Selection(made, torch.where(self.filled, self.leader, -1), self.filled, self.dtype)


def rank(
    scores: Tensor,
    k: int | float | Tensor,
    mask: Tensor | None,
    slots: Order,
    max_k: int | None,
    add_noise: Callable[[Tensor], Tensor] | None = None,
) -> Ranking:
    """Check scores, k, mask and the order of the slots, and rank the candidates by their scores.

    If ``add_noise`` is given, they are ranked by what it makes of the scores.
    """
    quota, mask = check_selection(scores, k, mask, max_k)
    check_choice(slots, "order", ORDERS)
    score, active, valid = candidates(scores, mask)
    key = score if add_noise is None else add_noise(score)
    order, filled = best_first(key, active), quota.filled(active)
    slot = torch.arange(quota.k, device=score.device).expand(filled.shape)
    if slots == "position":
        slot = position_order(order[..., : quota.k], filled)
    return Ranking(score, active, valid, key, order, slot, filled, mask is not None, scores.dtype)
