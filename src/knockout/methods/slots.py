"""What the methods share that weigh all candidates in each of k slots: SoftSort, NeuralSort, Sinkhorn and the like."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from knockout.candidates import Candidates, best_first, invalidate
from knockout.plan import DensePlan
from knockout.quota import Quota
from knockout.selection import Selection


class Order(NamedTuple):
    """Who comes first, by score; among equals the lower index."""

    place: Tensor  # (*batch, n): candidates from best to worst, those who take no part last
    rank: Tensor  # (*batch, n): where each candidate stands in that; -1 for those who take no part
    leader: Tensor  # (*batch, k): the first k places
    filled: Tensor  # (*batch, k) bool: whether there is somebody to lead the slot


def in_order(entrants: Candidates, quota: Quota, key: Tensor | None = None) -> Order:
    """The order of candidates, by another key (*batch, n) than their scores if one is given."""
    place = best_first(entrants.score if key is None else key, entrants.active)
    step = torch.arange(place.shape[-1], device=place.device).expand(place.shape)
    rank = torch.empty_like(place).scatter(-1, place, step)
    return Order(place, torch.where(entrants.active, rank, -1), place[..., : quota.k], quota.filled(entrants.active))


def selection(plan: Slots, order: Order, dtype: torch.dtype) -> Selection:
    """A plan with the leaders of its slots."""
    return Selection(plan, torch.where(order.filled, order.leader, -1), order.filled, dtype)


@dataclass(eq=False)
class Slots(DensePlan):
    """A softmax over the candidates in each slot."""

    score: Tensor  # (*batch, n)
    active: Tensor  # (*batch, n) bool
    filled: Tensor  # (*batch, k) bool: whether anybody is left for the slot
    masked: bool  # whether the caller gave a mask, so that values may hold anything at the places it left out

    @abstractmethod
    def logits(self, start: int, stop: int) -> Tensor:
        """Of the softmaxes (*batch, stop - start, n); those of candidates who take no part are not looked at."""

    def slot_weights(self, start: int, stop: int) -> Tensor:
        # The lowest number rather than -inf keeps a row with nobody left finite.
        lowest = torch.finfo(self.score.dtype).min
        logit = torch.where(self.active.unsqueeze(-2), self.logits(start, stop), lowest)
        return self.kept(torch.softmax(logit, dim=-1), start, stop)

    def kept(self, weight: Tensor, start: int, stop: int) -> Tensor:
        """Weights (*batch, stop - start, n), 0 in empty slots and NaN in spoiled rows."""
        return invalidate(weight * self.filled[..., start:stop, None], self.valid.unsqueeze(-1))

    def scores(self) -> Tensor:
        return self.apply(self.score.unsqueeze(-1)).squeeze(-1)

    def apply(self, values: Tensor) -> Tensor:
        if self.masked:
            values = torch.where(self.active.unsqueeze(-1), values, 0.0)
        return super().apply(values)

    def _members(self, rows: Tensor) -> Tensor:
        return torch.where(self.active.unsqueeze(-2), super()._members(rows), self.n)

    def _batch_size(self) -> int:
        return math.prod(self.score.shape[:-1])
