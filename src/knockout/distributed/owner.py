"""The owner rank of a row: it collects the row's candidates from all ranks, and plays the tournament.

A row holds the candidates from rank 0, rank 1, and so on, each in their order, so that ties are broken as in one
process. After them come substitutes for the pruned candidates: as many, with the mean score of their bin.
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
from knockout.distributed.call import Call
from knockout.distributed.routing import Pruned, Routing
from knockout.dtypes import computing_dtype
from knockout.plan import SparsePlan

# The id of a candidate of a row is rank * ID_STRIDE + its number among those that this rank has sent for the row.
ID_STRIDE = 2**40


class FlatPlan(NamedTuple):
    """The plan of some rows, with all members in one list: row by row, slot by slot, the leader first."""

    member: Tensor  # (members,) int64: candidate ids
    weight: Tensor  # (members,)
    counts: Tensor  # (rows, k) int64: the number of members of each slot
    leader: Tensor  # (rows, k) int64: candidate ids; -1 in an empty slot
    score: Tensor  # (rows, k)
    valid: Tensor  # (rows, 1) bool: False for an invalid row, with a NaN or +inf score


class RowOwner:
    """The rows that this rank owns.

    ``received`` are the scores in the order of ``Routing.to_owners``.
    """

    def __init__(self, received: Tensor, routing: Routing, call: Call) -> None:
        self._call, self._pruned, self._own_rows = call, routing.pruned, routing.own_rows
        self._sent_counts = [counts[routing.own_rows] for counts in routing.sent_counts]  # [rank][row]
        self._rows = len(self._sent_counts[0])
        self._received_counts = [sum(counts) for counts in zip(*self._sent_counts, strict=True)]  # by row
        substitutes = [0] * self._rows
        if self._pruned is not None:
            substitutes = self._pruned.counts.sum(-1).long().tolist()
        # If k is a fraction, the number of slots depends on the number of all candidates, active or not.
        longest = max([0, *map(operator.add, self._received_counts, substitutes)])
        self._n = call.n if call.quota.numerator else max(call.quota.k, longest)
        dtype = computing_dtype(received.dtype)
        self._scores = torch.full((self._rows, self._n), -torch.inf, dtype=dtype, device=received.device)
        # Slice by slice: an index of every candidate would take more memory than the scores.
        for target, part in zip(
            self._slices(self._scores), received.split(list(itertools.chain(*self._sent_counts))), strict=True
        ):
            target.copy_(part)
        if self._pruned is not None:
            means = mean_scores(self._pruned, dtype).split(substitutes)
            for row, start, part in zip(self._scores, self._received_counts, means, strict=True):
                row[start : start + len(part)] = part
        counts = torch.tensor(self._sent_counts, dtype=torch.int64, device=received.device)
        self._starts = (counts.cumsum(0) - counts).T.contiguous()  # (rows, ranks): the first candidate from each rank

    def _slices(self, rows: Tensor) -> Iterator[Tensor]:
        """The parts of rows (rows, n) that belong to the candidates from each rank, rank by rank and row by row."""
        start = [0] * self._rows
        for counts in self._sent_counts:
            for row, count in enumerate(counts):
                yield rows[row, start[row] : start[row] + count]
                start[row] += count

    def play(self) -> FlatPlan:
        """Play the tournament of each row."""
        k, boost, order, hard, *_ = self._call.settings
        counts = self._call.quota.counts
        quota = {"k": k} if counts is None else {"k": counts[self._own_rows], "max_k": k}
        needs_grad = self._call.needs_grad
        # A graph of its own, which checkpoints must not see: in the backward pass they would recompute the call on this
        # rank alone, and it would wait for the others.
        with torch.set_grad_enabled(needs_grad), saved_tensors_hooks(lambda saved: saved.detach(), lambda saved: saved):
            picked = functional.select(
                self._scores.requires_grad_(needs_grad), **quota, boost=boost, order=order, hard=hard
            )
        plan = picked._plan
        assert isinstance(plan, SparsePlan)
        is_member = plan.member < self._n
        received = torch.tensor(self._received_counts, device=plan.member.device).view(-1, 1, 1)
        if bool((is_member & (plan.member >= received)).any()):
            raise RuntimeError(
                "pruned candidates are members of slots: a bound of knockout.distributed.pruning does not hold. "
                "This is a bug of knockout"
            )
        self._is_member, self._weight, self._score = is_member, plan.weight, plan.score
        return FlatPlan(
            self._ids(plan.member.long())[is_member],
            plan.weight.detach()[is_member],
            is_member.sum(-1),
            torch.where(picked.indices >= 0, self._ids(picked.indices), -1),
            plan.score.detach(),
            plan.valid,
        )

    def _ids(self, place: Tensor) -> Tensor:
        """The ids of candidates (rows, ...), given by their places in the rows; any id for padding."""
        flat = place.flatten(1).clamp(0, self._n - 1)
        rank = torch.searchsorted(self._starts, flat, right=True) - 1
        return (rank * ID_STRIDE + flat - self._starts.gather(1, rank)).view(place.shape)

    def backward(self, d_weight: Tensor, d_score: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients of the received scores, in their order, and of a pruned candidate of each bin (rows, BINS).

        From the gradients of the weights (members,) and the scores (rows, k) of the plan.
        """
        if not self._rows:
            return d_score.new_zeros(0), None if self._pruned is None else d_score.new_zeros(self._pruned.counts.shape)
        d_weight = torch.zeros_like(self._weight).masked_scatter(self._is_member, d_weight)
        outputs, gradients = [self._weight, self._score], [d_weight, d_score]
        # The graph is kept: there may be a second backward pass.
        (d_scores,) = torch.autograd.grad(outputs, self._scores, gradients, retain_graph=True)
        d_received = torch.cat(list(self._slices(d_scores)))
        if self._pruned is None:
            return d_received, None
        # The pruned candidates of a bin have the same part in all rounds, so the gradient of the first is that of all.
        counts = self._pruned.counts.long()
        first = counts.cumsum(1) - counts + torch.tensor(self._received_counts, device=counts.device).unsqueeze(1)
        return d_received, torch.where(counts > 0, d_scores.gather(1, first.clamp(max=self._n - 1)), 0.0)


def mean_scores(pruned: Pruned, dtype: torch.dtype) -> Tensor:
    """The scores of the substitutes of the pruned candidates, flat: row by row, bin by bin.

    The substitutes of a bin have its mean score, rounded down for some and up for others, so that their sum is right.
    """
    mean = pruned.totals / pruned.counts.clamp(min=1.0)
    rounded = mean.to(dtype)
    lower = torch.where(rounded > mean, torch.nextafter(rounded, torch.full_like(rounded, -torch.inf)), rounded)
    upper = torch.nextafter(lower, torch.full_like(lower, torch.inf))
    up = (pruned.totals - pruned.counts * lower) / (upper.double() - lower)  # how many are rounded up
    up = torch.minimum(up.round().clamp(min=0.0), pruned.counts)
    counts = torch.stack([pruned.counts - up, up], dim=-1).long()
    return torch.stack([lower, upper], dim=-1).flatten().repeat_interleave(counts.flatten())
