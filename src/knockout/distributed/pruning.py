"""What need not travel: candidates that act through their sum alone.

A pair far enough apart is decided: its loser drops out, its winner goes on unchanged. A candidate that is decided in
each of its rounds, and loses one of them, has no weight anywhere; all that it does is to be counted, and added up, in
the mean gaps of its rounds. Many such candidates next to each other can be replaced by as many at their mean.

Which ones these are can be told from a coarse picture: how many candidates there are between some scores, and what
they add up to. Ranks follow from the counts, and every round's scale has an upper bound, so that no pair is taken for
decided that is not. Nothing here needs to be exact, but on the safe side: whoever is in doubt travels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from knockout.boost import Base, Boost, Fixed, Pairs, Power, Relative
from knockout.quota import Quota

BINS, CELLS = 256, 2**13
FROM = 2**14  # candidates; with less, looking takes longer than sending

# By alpha: the logit from which on a pair is decided (for 1: past the precision of float32 and float64), and an upper
# bound of (1 - w) t, the most that a winner loses of its score, in units of scale / c.
DECIDED = {1.0: (17.4, 37.0), 1.5: (2.0, 2.0), 2.0: (1.0, 1.0)}
LOSS = {1.0: 0.28, 1.5: 0.2, 2.0: 0.13}
SAFETY = 1.0 + 1e-5  # for what rounding may do
ROUNDING = 1e-9  # of the sum of all scores, at most: some ten million float64 added up one by one


@dataclass
class Bins:
    """Scores in bins, the best bin first: all (rows, BINS)."""

    count: Tensor  # float64, whole numbers
    total: Tensor  # float64: the sum of the scores
    low: Tensor  # float64: no score of the bin is lower; -inf in the last one
    high: Tensor  # float64: none is higher; +inf in the first one

    def __post_init__(self) -> None:
        self.end = self.count.cumsum(-1)  # ranks of the bin: from ``begin`` to before ``end``
        self.begin = self.end - self.count

    def at(self, rank: Tensor) -> Tensor:
        """The bins (rows, ...) that hold these ranks; the last one for ranks past the end."""
        return torch.searchsorted(self.end, rank, right=True).clamp(max=self.end.shape[-1] - 1)

    def best(self, count: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds, lower and upper, of the sum (rows, 1) of the best so many (rows, 1)."""
        whole = torch.where(self.end <= count, self.total, 0.0).sum(-1, keepdim=True)
        last = self.at(count)
        of, total, low, high = (x.gather(-1, last) for x in (self.count, self.total, self.low, self.high))
        part = (count - self.begin.gather(-1, last)).clamp(min=0.0)
        some = (part > 0) & (part < of)  # of the bin that the cut goes through
        least = torch.where(some, total / of.clamp(min=1.0) * part, 0.0)  # the best are above the average
        rest = torch.where(some & low.isfinite(), total - (of - part) * low, torch.inf)
        most = torch.where(some, torch.minimum(part * high, rest), 0.0)
        return whole + least, whole + most


@dataclass
class Grid:
    """Where the bins of each row lie: their edges are on a fine grid, so that to find a score's bin takes no search."""

    low: Tensor  # (rows, 1): where the grid begins
    scale: Tensor  # (rows, 1): cells per unit of the scores
    edges: Tensor  # (rows, BINS - 1) float64, ascending: cells at which a bin begins

    @staticmethod
    def among(samples: Tensor) -> Grid:
        """With as many of these scores (rows, any) in each bin, about; NaN is nobody's."""
        ordered = samples.sort(dim=-1).values  # NaN last
        there = (~ordered.isnan()).sum(-1, keepdim=True)
        place = torch.arange(1, BINS, device=samples.device) * there // BINS
        edges = ordered.gather(-1, place.clamp(max=samples.shape[-1] - 1)).nan_to_num(nan=0.0)
        low, width = edges[:, :1], edges[:, -1:] - edges[:, :1]
        usable = (width > 0) & width.isfinite()
        scale = torch.where(usable, CELLS / width, 0.0)
        return Grid(low, scale, ((edges - low) * scale).double().nan_to_num().ceil())

    def bins(self, scores: Tensor, alive: Tensor) -> Tensor:
        """The bin (rows, n) int64 of every score, the best one first; BINS for who takes no part."""
        cell = ((torch.where(alive, scores, self.low) - self.low) * self.scale).nan_to_num(nan=0.0)
        cell = cell.clamp_(-1.0, CELLS).floor_().long().add_(1)
        cells = torch.arange(-1, CELLS + 1, device=scores.device, dtype=torch.float64).expand(len(scores), -1)
        best_first = BINS - 1 - torch.searchsorted(self.edges, cells.contiguous(), right=True)
        return torch.where(alive, best_first.gather(1, cell), BINS)

    def of(self, rows: slice) -> Grid:
        """For some of the rows."""
        return Grid(self.low[rows], self.scale[rows], self.edges[rows])

    def filled(self, count: Tensor, total: Tensor) -> Bins:
        """The bins, with so many candidates in them (rows, BINS), and what these add up to."""
        # A score next to an edge may be on either side of it, by rounding.
        low, scale, epsilon = self.low.double(), self.scale.double(), torch.finfo(self.low.dtype).eps
        width = torch.where(scale > 0, 1.0 / scale, 0.0)
        doubt = 0.02 * width + 8.0 * epsilon * (low.abs() + CELLS * width)
        edges = (low + self.edges * width).flip(-1)
        infinity = torch.full_like(low, math.inf)
        return Bins(
            count, total, torch.cat([edges - doubt, -infinity], dim=-1), torch.cat([infinity, edges + doubt], dim=-1)
        )


def applies(boost: Boost, quota: Quota, n: int) -> bool:
    """Whether it is worth looking: what a boost of somebody else's does is not known here."""
    return n >= FROM and n > 4 * quota.k and not quota.numerator and type(boost) in (Relative, Fixed, Base, Power)


def prunable(bins: Bins, k: int, boost: Boost, dtype: torch.dtype) -> Tensor:
    """The bins (rows, BINS), bool, whose candidates act through their sum alone."""
    field = bins.end[:, -1:]
    rounds = Quota(k).rounds(max([0, *field.flatten().long().tolist()]))
    bulk = torch.zeros_like(bins.count, dtype=torch.bool)
    sound = bins.count > 0
    untouched = field.clone()  # ranks before this one have the scores that they began with
    scale, lost = _start(boost, field), torch.zeros_like(field)
    for left in reversed(range(rounds)):
        half = k * 2**left
        size = field.clamp(max=2 * half)  # who plays in this round, and how many of the best have no opponent
        byes = 2 * half - size
        played = size > half
        blended = (size - untouched).clamp(min=0.0)
        scale = torch.where(played, _scale(bins, boost, scale, half, size, byes, blended * lost), scale)
        # The opponent that is nearest: of winners the best one they meet, of losers the worst one.
        met = 2 * half - bins.end
        wins = _decided(boost, bins.low, bins.high.gather(-1, bins.at(met)), scale, dtype) | (met >= size)
        meets = 2 * half - 1 - bins.begin
        falls = _decided(boost, bins.low.gather(-1, bins.at(meets)), bins.high, scale, dtype)
        # Losers that are untouched, and so are those who beat them, who rank before them.
        losers = (bins.begin >= half) & (bins.end <= untouched) & (bins.begin < size)
        bulk |= played & sound & losers & falls
        sound &= ~(played & (bins.begin < byes) & (byes < bins.end))  # some with an opponent, some without
        open_ = played & (bins.count > 0) & (bins.begin < half) & (~wins | (bins.end > half))
        first = torch.where(open_, bins.begin, math.inf).amin(-1, keepdim=True)
        untouched = torch.minimum(untouched, first)
        lost = torch.where(played, lost + LOSS[boost.alpha] * scale, lost)
    return bulk & bins.total.isfinite().all(-1, keepdim=True)


def _start(boost: Boost, like: Tensor) -> Tensor:
    return torch.full_like(like, 2.0 * boost.unit if isinstance(boost, Relative) else 1.0)


def _scale(bins: Bins, boost: Boost, before: Tensor, half: int, size: Tensor, byes: Tensor, lost: Tensor) -> Tensor:
    """An upper bound of the scale of a round: the gaps of its pairs, added up from the ranks that the field began with,
    and what blends have ``lost`` since, in units of 1 / c."""
    if not isinstance(boost, Relative):
        return before
    upper = bins.best(torch.full_like(size, half))[1]
    gaps = 2.0 * upper - bins.best(size)[0] - bins.best(byes)[0] + lost / float(boost.c)
    # What is left of sums that cancel may be rounding: beside a score of 1e30, say, nothing is known of the others.
    gaps = gaps + ROUNDING * bins.total.abs().sum(-1, keepdim=True)
    return torch.maximum(gaps / (size - half).clamp(min=1.0), before / 2.0) * SAFETY


def _decided(boost: Boost, better: Tensor, worse: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether pairs at least as far apart as these are decided; the scale is at most so large."""
    better, worse = better.nan_to_num(nan=-math.inf), worse.nan_to_num(nan=math.inf)
    known = better.isfinite() & worse.isfinite() & (better > worse)
    better, worse = torch.where(known, better, 0.0), torch.where(known, worse, 0.0)
    gap = better - worse
    if isinstance(boost, Relative):
        logit = float(boost.c) * gap / scale
    else:
        logit = boost.logit(Pairs(better, worse, gap, known), scale)[0]
    least = DECIDED[boost.alpha][dtype == torch.float64]
    return known & (logit >= least * SAFETY)
