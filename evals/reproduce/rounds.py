"""The paper's algorithm as printed: the vectors themselves are sorted, gathered, blended and halved in every round.

It returns what ``knockout.topk`` returns, and is here to compare times, and to measure how much of its time is sorting.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.journal import Rows
from harness.timing import timed
from knockout.boost import Boost, Fixed, Pairs, Power
from knockout.candidates import candidates
from knockout.ops.reference.tournament import rounds_of, tournament
from knockout.quota import Quota

Sort = Callable[[Tensor], tuple[Tensor, Tensor]]


def best_first(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return sorted scores and the order that sorts them."""
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    return ordered, order


def full_rounds(n: int, k: int) -> int:
    """Return the number of rounds; raise unless all of them are without byes."""
    rounds = rounds_of(n, k)
    if n != k * 2**rounds:
        raise ValueError(f"n must be k times a power of two; got n = {n}, k = {k}")
    return rounds


def round_by_round(values: Tensor, scores: Tensor, k: int, boost: Boost, sort: Sort = best_first) -> Tensor:
    """Blend values (batch, n, d) by scores (batch, n) into values (batch, k, d); n is k times a power of two."""
    rounds = full_rounds(scores.shape[-1], k)
    scale = boost.start(sort(scores)[0], torch.ones_like(scores, dtype=torch.bool), torch.tensor(rounds))
    for _ in range(rounds):
        scores, order = sort(scores)
        values = values.gather(1, order.unsqueeze(-1).expand_as(values))
        half = scores.shape[-1] // 2
        better, worse = scores[:, :half], scores[:, half:].flip(-1)
        real = torch.ones_like(better, dtype=torch.bool)
        share, scale = boost.share(Pairs(better, worse, better - worse, real), scale)
        scores = share * better + (1 - share) * worse
        share = share.unsqueeze(-1)
        values = share * values[:, :half] + (1 - share) * values[:, half:].flip(1)
    return values


@torch.inference_mode()
def sorting_share(n: int, k: int, batch: int, d: int, seed: int, device: str = "cpu") -> Rows:
    """Measure seconds of the whole and of its sorts: those of the run with the median time, out of seven."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(batch, n, d, generator=generator).to(device)
    scores = torch.rand(batch, n, generator=generator).to(device)
    spent: list[float] = []

    def sort(scores: Tensor) -> tuple[Tensor, Tensor]:
        out, seconds = timed(values.device, best_first, scores)
        spent[-1] += seconds
        return out

    whole = []
    for _ in range(7):
        spent.append(0.0)
        whole.append(timed(values.device, round_by_round, values, scores, k, Power(20), sort)[1])
    middle = sorted(range(7), key=whole.__getitem__)[3]
    return [{"n": n, "k": k, "batch": batch, "d": d, "seconds": whole[middle], "seconds_sorting": spent[middle]}]


class _Counting(Fixed):
    """A boost that counts its calls: one per round."""

    calls = 0

    def share(self, pairs: Pairs, scale: Tensor) -> tuple[Tensor, Tensor]:
        type(self).calls += 1
        return super().share(pairs, scale)


def count_rounds(n: int, k: int) -> int:
    """Count the rounds that the reference plays."""
    _Counting.calls = 0
    tournament(candidates(torch.rand(n), None), Quota(k), _Counting(1.0))
    return _Counting.calls
