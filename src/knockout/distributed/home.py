"""The rows that live on a rank: their candidates from all ranks, and the tournament that is played with them.

A row holds the candidates of rank 0, rank 1, ..., each in their order, so that ties fall as they would in one process;
then, for those who did not travel, as many at their mean.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from knockout import functional
from knockout.boost import Boost
from knockout.distributed.route import Route, Stayed
from knockout.dtypes import computing_dtype
from knockout.plan import SparsePlan
from knockout.quota import Quota

SOURCE = 2**40  # a candidate is named by rank * SOURCE + its number among those that the rank has sent


class Plan(NamedTuple):
    """Of the rows that live here. Members that carry weight are listed slot by slot, row by row, each leader first."""

    member: Tensor  # (members,): by their names
    weight: Tensor  # (members,)
    counts: Tensor  # (rows, k): how many of them each slot has
    leader: Tensor  # (rows, k): by its name; -1 in an empty slot
    score: Tensor  # (rows, k): NaN in a spoiled row


class Home:
    """Made of what has come, in the order of ``Route.to_homes``."""

    def __init__(self, came: Tensor, route: Route, n: int, quota: Quota) -> None:
        sent = [counts[route.mine] for counts in route.sent]  # by rank and row
        self._rows, self._sent = len(sent[0]), sent
        self._travelled = [sum(counts) for counts in zip(*sent, strict=True)]  # by row
        self._stayed = route.stayed
        stayed = [0] * self._rows
        if route.stayed is not None:
            stayed = route.stayed.counts.sum(-1).long().tolist()
        # A share of the candidates is a share of all, whether they take part or not.
        longest = max([0, *map(operator.add, self._travelled, stayed)])
        self._n = n if quota.numerator else max(quota.k, longest)
        number = computing_dtype(came.dtype)
        self._field = torch.full((self._rows, self._n), -torch.inf, dtype=number, device=came.device)
        # Run by run, not by an index of every candidate: there may be more of these than fit in memory twice.
        for run, part in zip(self._runs(self._field), came.split(list(itertools.chain(*sent))), strict=True):
            run.copy_(part)
        if route.stayed is not None:
            means = _means(route.stayed, number).split(stayed)
            for row, start, part in zip(self._field, self._travelled, means, strict=True):
                row[start : start + len(part)] = part
        first = torch.tensor(sent, dtype=torch.int64, device=came.device)
        self._first = (first.cumsum(0) - first).T.contiguous()  # (rows, ranks): where those of each rank begin

    def _runs(self, numbers: Tensor) -> Iterator[Tensor]:
        """Of numbers (rows, n), those who came from each rank, row by row."""
        begin = [0] * self._rows
        for counts in self._sent:
            for row, count in enumerate(counts):
                yield numbers[row, begin[row] : begin[row] + count]
                begin[row] += count

    def play(self, k: int | float, boost: Boost, order: functional.Order, hard: bool, learns: bool) -> Plan:
        """The tournament of each row."""
        # A graph of its own: what a checkpoint around the call would recompute in the backward pass of the rows that
        # live here, it would recompute on this rank alone.
        with torch.set_grad_enabled(learns), saved_tensors_hooks(lambda kept: kept.detach(), lambda kept: kept):
            picked = functional.select(self._field.requires_grad_(learns), k, boost, order=order, hard=hard)
        plan = picked._plan
        assert isinstance(plan, SparsePlan)
        self._carried = plan.member < self._n
        real = torch.tensor(self._travelled, device=plan.member.device).view(-1, 1, 1)
        if bool((self._carried & (plan.member >= real)).any()):
            raise RuntimeError(
                "candidates that stayed where they are were taken for members: a bound of pruning.py fails"
            )
        self._weight, self._score = plan.weight, plan.score
        return Plan(
            self._named(plan.member.long())[self._carried],
            plan.weight.detach()[self._carried],
            self._carried.sum(-1),
            torch.where(picked.indices >= 0, self._named(picked.indices), -1),
            plan.score.detach(),
        )

    def _named(self, place: Tensor) -> Tensor:
        flat = place.flatten(1).clamp(0, self._n - 1)
        source = torch.searchsorted(self._first, flat, right=True) - 1
        return (source * SOURCE + flat - self._first.gather(1, source)).view(place.shape)

    def backward(self, d_weight: Tensor, d_score: Tensor) -> tuple[Tensor, Tensor | None]:
        """From those of the weights (members,) and scores (rows, k), the gradients of those who came, in their order,
        and of the bins (rows, BINS) of those who stayed."""
        if not self._rows:
            return d_score.new_zeros(0), None if self._stayed is None else d_score.new_zeros(self._stayed.counts.shape)
        d_weight = torch.zeros_like(self._weight).masked_scatter(self._carried, d_weight)
        # What was played is kept: somebody may want a second backward pass.
        wanted = [self._weight, self._score], self._field, [d_weight, d_score]
        (d_field,) = torch.autograd.grad(*wanted, retain_graph=True)
        d_came = torch.cat(list(self._runs(d_field)))
        if self._stayed is None:
            return d_came, None
        # All of a bin have done the same in each of their rounds, and have the same gradient: that of the first.
        counts = self._stayed.counts.long()
        first = counts.cumsum(1) - counts + torch.tensor(self._travelled, device=counts.device).unsqueeze(1)
        return d_came, torch.where(counts > 0, d_field.gather(1, first.clamp(max=self._n - 1)), 0.0)


def _means(stayed: Stayed, dtype: torch.dtype) -> Tensor:
    """The bins of those who stayed, row by row: as many as they are, at their mean, which is rounded down for some and
    up for others so that they add up to the same."""
    mean = stayed.totals / stayed.counts.clamp(min=1.0)
    rounded = mean.to(dtype)
    lower = torch.where(rounded > mean, torch.nextafter(rounded, torch.full_like(rounded, -torch.inf)), rounded)
    upper = torch.nextafter(lower, torch.full_like(lower, torch.inf))
    more = (stayed.totals - stayed.counts * lower) / (upper.double() - lower)
    more = torch.minimum(more.round().clamp(min=0.0), stayed.counts)
    counts = torch.stack([stayed.counts - more, more], dim=-1).long()
    return torch.stack([lower, upper], dim=-1).flatten().repeat_interleave(counts.flatten())
