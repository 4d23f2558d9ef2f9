"""Pruning: find the candidates that need not be sent, since nothing but the sum of their scores matters.

If the two scores of a pair are far enough apart, the pair is decided: the loser gets no weight, and the winner goes on
with its own score. A candidate whose pairs are all decided, and that loses one of them, has no weight in any slot. It
only adds its score to the mean gaps of its rounds. Neighboring candidates of this kind can be replaced by as many
candidates with their mean score.

A histogram of the scores is enough to find many of them. It gives the seed of each candidate, which is its place in the
order of scores before the first round, 0 for the best; in a round with 2 h entries, seeds s and 2 h - 1 - s meet. It
also gives an upper bound of the scale of each round, and so a lower bound of each pair's logit. The bounds may be
loose, but must hold: in doubt, a candidate is sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from knockout.boost import Base, Boost, Fixed, Pairs, Power, Relative
from knockout.quota import Quota

BINS, CELLS = 256, 2**13
MIN_CANDIDATES = 2**14  # with fewer, the histogram takes longer than to send all scores

# By alpha: the logit from which on a pair is decided (for alpha = 1, where the share rounds to 1), for float32 and for
# float64; and an upper bound of (1 - share) * logit, which is what a winner loses of its score, in units of scale / c.
DECIDED = {1.0: (17.4, 37.0), 1.5: (2.0, 2.0), 2.0: (1.0, 1.0)}
LOSS = {1.0: 0.28, 1.5: 0.2, 2.0: 0.13}
SAFETY = 1.0 + 1e-5  # margin for rounding errors
ROUNDING = 1e-9  # bound of the relative error of a sum of ten million float64 numbers


@dataclass
class Histogram:
    """The active candidates of each row in bins of similar scores, best bin first; all fields (rows, BINS) float64."""

    count: Tensor  # the number of candidates
    total: Tensor  # the sum of their scores
    low: Tensor  # a lower bound of their scores; -inf in the last bin
    high: Tensor  # an upper bound of their scores; +inf in the first bin

    def __post_init__(self) -> None:
        self.end = self.count.cumsum(-1)  # the seeds of a bin are begin, ..., end - 1
        self.begin = self.end - self.count

    def bin_of(self, seed: Tensor) -> Tensor:
        """The bins (rows, ...) of these seeds; the last bin for seeds past the end."""
        return torch.searchsorted(self.end, seed, right=True).clamp(max=self.end.shape[-1] - 1)

    def sum_of_best(self, count: Tensor) -> tuple[Tensor, Tensor]:
        """A lower and an upper bound (rows, 1) of the sum of the best ``count`` (rows, 1) scores."""
        whole = torch.where(self.end <= count, self.total, 0.0).sum(-1, keepdim=True)
        last = self.bin_of(count)
        size, total, low, high = (x.gather(-1, last) for x in (self.count, self.total, self.low, self.high))
        part = (count - self.begin.gather(-1, last)).clamp(min=0.0)
        cut = (part > 0) & (part < size)  # only the best ``part`` of the last bin count
        least = torch.where(cut, total / size.clamp(min=1.0) * part, 0.0)  # they are above the mean of the bin
        rest = torch.where(cut & low.isfinite(), total - (size - part) * low, torch.inf)
        most = torch.where(cut, torch.minimum(part * high, rest), 0.0)
        return whole + least, whole + most


@dataclass
class BinEdges:
    """The edges of the bins of each row. They lie on a fine grid, so that a table gives the bin of a score."""

    low: Tensor  # (rows, 1): the start of the grid
    scale: Tensor  # (rows, 1): grid cells per unit of the scores
    edges: Tensor  # (rows, BINS - 1) float64, ascending: the cells at which a bin begins

    @staticmethod
    def from_samples(samples: Tensor) -> BinEdges:
        """Edges between which lie about equally many of the samples (rows, any); NaN is a missing sample."""
        ordered = samples.sort(dim=-1).values  # NaN last
        count = (~ordered.isnan()).sum(-1, keepdim=True)
        place = torch.arange(1, BINS, device=samples.device) * count // BINS
        edges = ordered.gather(-1, place.clamp(max=samples.shape[-1] - 1)).nan_to_num(nan=0.0)
        low, width = edges[:, :1], edges[:, -1:] - edges[:, :1]
        usable = (width > 0) & width.isfinite()
        scale = torch.where(usable, CELLS / width, 0.0)
        return BinEdges(low, scale, ((edges - low) * scale).double().nan_to_num().ceil())

    def bins(self, scores: Tensor, active: Tensor) -> Tensor:
        """The bin (rows, n) int64 of every score, 0 for the best bin; BINS for inactive candidates."""
        cell = ((torch.where(active, scores, self.low) - self.low) * self.scale).nan_to_num(nan=0.0)
        cell = cell.clamp_(-1.0, CELLS).floor_().long().add_(1)
        cells = torch.arange(-1, CELLS + 1, device=scores.device, dtype=torch.float64).expand(len(scores), -1)
        bin_of_cell = BINS - 1 - torch.searchsorted(self.edges, cells.contiguous(), right=True)
        return torch.where(active, bin_of_cell.gather(1, cell), BINS)

    def rows(self, rows: slice) -> BinEdges:
        """The edges of some of the rows."""
        return BinEdges(self.low[rows], self.scale[rows], self.edges[rows])

    def histogram(self, count: Tensor, total: Tensor) -> Histogram:
        """The histogram with these numbers of candidates and sums of scores in its bins, each (rows, BINS)."""
        # A score next to an edge may be in either of the two bins, by rounding.
        low, scale, epsilon = self.low.double(), self.scale.double(), torch.finfo(self.low.dtype).eps
        width = torch.where(scale > 0, 1.0 / scale, 0.0)
        error = 0.02 * width + 8.0 * epsilon * (low.abs() + CELLS * width)
        edges = (low + self.edges * width).flip(-1)
        infinity = torch.full_like(low, math.inf)
        return Histogram(
            count, total, torch.cat([edges - error, -infinity], dim=-1), torch.cat([infinity, edges + error], dim=-1)
        )


def applies(boost: Boost, quota: Quota, n: int) -> bool:
    """Whether to prune: there must be enough candidates, and the boost must be one whose bounds are known here."""
    enough = n >= MIN_CANDIDATES and n > 4 * quota.k
    return enough and not quota.varies and type(boost) in (Relative, Fixed, Base, Power)


def prunable_bins(histogram: Histogram, k: int, boost: Boost, dtype: torch.dtype) -> Tensor:
    """The bins (rows, BINS), bool, whose candidates need not be sent; ``dtype`` is that of the tournament."""
    count, begin, end = histogram.count, histogram.begin, histogram.end
    active = end[:, -1:]  # the number of active candidates of a row
    prunable = torch.zeros_like(count, dtype=torch.bool)
    same_rounds = count > 0  # all candidates of the bin have had an opponent in the same rounds
    unblended = active.clone()  # entries with seeds below this one still have their own score
    scale, lost = _start_scale(boost, active), torch.zeros_like(active)
    for left in reversed(range(Quota(k).rounds(max([0, *active.flatten().long().tolist()])))):
        half = k * 2**left
        size = active.clamp(max=2 * half)  # the number of entries in this round
        byes = 2 * half - size  # the number of best entries that have no opponent
        played = size > half
        blends = (size - unblended).clamp(min=0.0)  # entries that may have lost some of their score
        bound = _scale_bound(histogram, boost, scale, half, size, byes, blends * lost)
        scale = torch.where(played, bound, scale)
        # All pairs of a bin are decided if the closest is: winners meet their best opponent, losers their worst one.
        best_opponent = 2 * half - end
        opponent_high = histogram.high.gather(-1, histogram.bin_of(best_opponent))
        wins = _decided(boost, histogram.low, opponent_high, scale, dtype) | (best_opponent >= size)
        worst_opponent = 2 * half - 1 - begin
        opponent_low = histogram.low.gather(-1, histogram.bin_of(worst_opponent))
        loses = _decided(boost, opponent_low, histogram.high, scale, dtype)
        # These losers are unblended, and so are the winners against them, whose seeds are lower.
        losers = (begin >= half) & (end <= unblended) & (begin < size)
        prunable |= played & same_rounds & losers & loses
        same_rounds &= ~(played & (begin < byes) & (byes < end))
        undecided = played & (count > 0) & (begin < half) & (~wins | (end > half))
        unblended = torch.minimum(unblended, torch.where(undecided, begin, math.inf).amin(-1, keepdim=True))
        lost = torch.where(played, lost + LOSS[boost.alpha] * scale, lost)
    # A row whose scores do not have a finite sum may be invalid: the owner rank gets all of it.
    return prunable & histogram.total.isfinite().all(-1, keepdim=True)


def _start_scale(boost: Boost, like: Tensor) -> Tensor:
    return torch.full_like(like, 2.0 * boost.unit if isinstance(boost, Relative) else 1.0)


def _scale_bound(
    histogram: Histogram, boost: Boost, before: Tensor, half: int, size: Tensor, byes: Tensor, lost: Tensor
) -> Tensor:
    """An upper bound (rows, 1) of the scale of a round.

    It adds up the gaps between the original scores of the pairs, and what blends have ``lost`` since (times c).
    """
    if not isinstance(boost, Relative):
        return before
    winners = histogram.sum_of_best(torch.full_like(size, half))[1]
    gaps = 2.0 * winners - histogram.sum_of_best(size)[0] - histogram.sum_of_best(byes)[0] + lost / float(boost.c)
    # The sums may cancel so far that only rounding errors remain, beside a score of 1e30, say.
    gaps = gaps + ROUNDING * histogram.total.abs().sum(-1, keepdim=True)
    return torch.maximum(gaps / (size - half).clamp(min=1.0), before / 2.0) * SAFETY


def _decided(boost: Boost, better: Tensor, worse: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether pairs are decided, given a lower bound of the better score, and an upper bound of the worse and scale."""
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
