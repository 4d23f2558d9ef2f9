"""Who travels: from each rank to the homes of the rows, and back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from knockout.boost import Boost
from knockout.distributed import pruning
from knockout.distributed.ranks import Ranks
from knockout.dtypes import computing_dtype
from knockout.quota import Quota


class Stayed(NamedTuple):
    """Candidates that do not travel, by the bins of pruning.py."""

    bin: Tensor  # (rows, n): of each of this rank's candidates; BINS for who takes no part
    counts: Tensor  # (rows that live here, BINS): how many stayed, on all ranks together
    totals: Tensor  # and the sum of their scores


class Route(NamedTuple):
    """For scores (rows, n) of this rank's candidates."""

    ranks: Ranks
    homes: list[int]  # how many rows live on each rank, one after the other
    shape: torch.Size
    travels: Tensor  # (travellers,): who they are, out of rows times n
    sent: list[list[int]]  # by rank and row: how many travel
    stayed: Stayed | None

    @property
    def mine(self) -> slice:
        """The rows that live on this rank."""
        return self.ranks.own(self.homes)

    def to_homes(self, numbers: Tensor) -> Tensor:
        """A number for each of this rank's that travel, row by row: brought to where the rows live. Comes back as those
        of rank 0, row by row, then those of rank 1, ..."""
        return self.ranks.exchange(numbers, self._leaving(), self._coming(), "scores")

    def from_homes(self, numbers: Tensor) -> Tensor:
        """The other way round."""
        return self.ranks.exchange(numbers, self._coming(), self._leaving(), "gradients of scores")

    def _leaving(self) -> list[int]:
        return sums(self.sent[self.ranks.rank], self.homes)

    def _coming(self) -> list[int]:
        return [sum(counts[self.mine]) for counts in self.sent]


def sums(numbers: Sequence[int], runs: Sequence[int]) -> list[int]:
    """Of so many numbers, then of so many, ..."""
    rest = iter(numbers)
    return [sum(itertools.islice(rest, run)) for run in runs]


def find_route(scores: Tensor, alive: Tensor, n: int, quota: Quota, boost: Boost, ranks: Ranks) -> Route:
    """Find out who need not travel, and how many do; of n candidates on all ranks together."""
    homes, rows = ranks.portions(len(scores)), len(scores)
    if not pruning.applies(boost, quota, n):
        sent = ranks.gather(alive.sum(-1), "counts").tolist()
        return Route(ranks, homes, scores.shape, _places(alive), sent, None)
    known = scores.to(computing_dtype(scores.dtype))
    sample = _sample(torch.where(alive, known, torch.nan), 2 * pruning.BINS // ranks.size + 1)
    grid = pruning.Grid.among(ranks.gather(sample, "samples").transpose(0, 1).flatten(1))
    bins, size = grid.bins(known, alive), pruning.BINS + 1
    flat = (bins + size * torch.arange(rows, device=bins.device).unsqueeze(1)).flatten()
    count = torch.bincount(flat, minlength=rows * size).double()
    total = torch.bincount(flat, known.double().flatten(), minlength=rows * size)
    count, total = (each.view(rows, size)[:, :-1] for each in (count, total))
    heard = ranks.gather(torch.stack([count, total]), "counts")  # (ranks, 2, rows, BINS)
    # Each row's home decides: two ranks that differ in the last bit would wait for each other for ever.
    mine = ranks.own(homes)
    count, total = heard[:, :, mine].sum(0)
    here = pruning.prunable(grid.of(mine).filled(count, total), quota.k, boost, known.dtype)
    bulk = ranks.share(here.to(torch.uint8), homes, "who stays").bool()
    sent = torch.where(bulk, 0.0, heard[:, 0]).sum(-1).long().tolist()
    stayed = Stayed(bins, torch.where(here, count, 0.0), torch.where(here, total, 0.0))
    travels = _places(pad(~bulk, (0, 1)).gather(1, bins))
    return Route(ranks, homes, scores.shape, travels, sent, stayed)


def _places(there: Tensor) -> Tensor:
    return there.flatten().nonzero().squeeze(1)


def _sample(scores: Tensor, size: int) -> Tensor:
    """So many of the scores (rows, n), evenly spaced, (rows, size); NaN for what is missing."""
    rows, n = scores.shape
    some = min(size, n)
    place = torch.arange(some, device=scores.device) * n // max(1, some)
    return torch.cat([scores[:, place], scores.new_full((rows, size - some), torch.nan)], dim=1)
