"""Routing: which scores each rank sends to the owner ranks, and how their gradients come back.

The owner rank of a row is the rank that plays the row's tournament. The first rows belong to rank 0, and so on.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from knockout.distributed import pruning
from knockout.distributed.call import Call
from knockout.distributed.ranks import Ranks
from knockout.dtypes import computing_dtype


class Pruned(NamedTuple):
    """The candidates that are not sent, by the bins of pruning.py."""

    bin: Tensor  # (rows, n): the bin of each of this rank's candidates, pruned or not; BINS for inactive candidates
    counts: Tensor  # (own rows, BINS) float64: the number of pruned candidates of all ranks
    totals: Tensor  # (own rows, BINS) float64: the sum of their scores


class Routing(NamedTuple):
    """What this rank sends and receives, for scores (rows, n) of its candidates."""

    ranks: Ranks
    rows_per_owner: list[int]  # the number of rows that each rank owns
    shape: torch.Size  # of this rank's scores
    sent_index: Tensor  # (sent,): the candidates that this rank sends, as indices into its flattened scores
    sent_counts: list[list[int]]  # [rank][row]: the number of candidates sent
    pruned: Pruned | None  # None if all active candidates are sent

    @property
    def own_rows(self) -> slice:
        """The rows that this rank owns."""
        return self.ranks.own_slice(self.rows_per_owner)

    def to_owners(self, sent: Tensor) -> Tensor:
        """Send a number for each candidate of ``sent_index`` to the owners of their rows.

        Returns what this rank receives: the numbers from rank 0, row by row, then those from rank 1, and so on.
        """
        return self.ranks.all_to_all(sent, self._outgoing(), self._incoming(), "scores")

    def from_owners(self, received: Tensor) -> Tensor:
        """Send numbers back the same way: the transpose of ``to_owners``."""
        return self.ranks.all_to_all(received, self._incoming(), self._outgoing(), "gradients of scores")

    def _outgoing(self) -> list[int]:
        return _sum_runs(self.sent_counts[self.ranks.rank], self.rows_per_owner)

    def _incoming(self) -> list[int]:
        return [sum(counts[self.own_rows]) for counts in self.sent_counts]


def _sum_runs(numbers: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """The sums of consecutive runs of numbers, which have these lengths."""
    rest = iter(numbers)
    return [sum(itertools.islice(rest, length)) for length in lengths]


def find_routing(scores: Tensor, active: Tensor, call: Call) -> Routing:
    """Decide together with the other ranks which candidates are sent, given this rank's scores (rows, n)."""
    ranks, quota, boost = call.ranks, call.quota, call.settings.boost
    rows_per_owner, rows = ranks.chunk_sizes(len(scores)), len(scores)
    if not pruning.applies(boost, quota, call.n):
        sent_counts = ranks.all_gather(active.sum(-1), "counts").tolist()
        return Routing(ranks, rows_per_owner, scores.shape, _indices(active), sent_counts, None)
    wide = scores.to(computing_dtype(scores.dtype))
    samples = _sample(torch.where(active, wide, torch.nan), 2 * pruning.BINS // ranks.size + 1)
    edges = pruning.BinEdges.from_samples(ranks.all_gather(samples, "samples").transpose(0, 1).flatten(1))
    bins, size = edges.bins(wide, active), pruning.BINS + 1
    flat = (bins + size * torch.arange(rows, device=bins.device).unsqueeze(1)).flatten()
    count = torch.bincount(flat, minlength=rows * size).double()
    total = torch.bincount(flat, wide.double().flatten(), minlength=rows * size)
    count, total = (each.view(rows, size)[:, :-1] for each in (count, total))
    gathered = ranks.all_gather(torch.stack([count, total]), "counts")  # (ranks, 2, rows, BINS)
    # Only the owner decides: ranks whose sums differ in the last bit might disagree, and wait for each other forever.
    own_rows = ranks.own_slice(rows_per_owner)
    count, total = gathered[:, :, own_rows].sum(0)
    own_prunable = pruning.prunable_bins(edges.rows(own_rows).histogram(count, total), quota.k, boost, wide.dtype)
    prunable = ranks.concatenate(own_prunable.to(torch.uint8), rows_per_owner, "pruned bins").bool()
    sent_counts = torch.where(prunable, 0.0, gathered[:, 0]).sum(-1).long().tolist()
    pruned = Pruned(bins, torch.where(own_prunable, count, 0.0), torch.where(own_prunable, total, 0.0))
    sent_index = _indices(pad(~prunable, (0, 1)).gather(1, bins))
    return Routing(ranks, rows_per_owner, scores.shape, sent_index, sent_counts, pruned)


def _indices(chosen: Tensor) -> Tensor:
    """The indices of the True elements of the flattened tensor."""
    return chosen.flatten().nonzero().squeeze(1)


def _sample(scores: Tensor, size: int) -> Tensor:
    """``size`` of the scores (rows, n), evenly spaced, as (rows, size); filled up with NaN if there are fewer."""
    rows, n = scores.shape
    some = min(size, n)
    place = torch.arange(some, device=scores.device) * n // max(1, some)
    return torch.cat([scores[:, place], scores.new_full((rows, size - some), torch.nan)], dim=1)
