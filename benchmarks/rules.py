"""Other units of Relative with a schedule, and other ways to measure the gaps of a round.

The second are boosts with t = c gap / s, which differ from Relative in the scale s alone. They have no kernels and run
in the reference backend. The score is the fraction that a trained network gets right: mean and least over seeds."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.testing import assert_close

import knockout
from benchmarks.common import Size, draw
from benchmarks.registry import Benchmark, Effort, Row
from evals.arena.methods import Select
from evals.learning.conditions import CONDITIONS, possible
from evals.learning.tasks import train
from harness import fashion_mnist
from knockout import methods
from knockout.boost import Boost, Pairs, Relative
from knockout.nn import Sharpen, TopK

Scale = Callable[[Tensor, Tensor], Tensor]  # gaps (..., pairs), the scale of the round before (..., 1) -> (..., 1)


@dataclass(frozen=True, repr=False)
class Scaled(Boost):
    """t = c gap / s, with any scale s; it starts at 2, twice the unit."""

    scale: Scale
    c: float
    alpha: float = 1.5

    def start(self, scores: Tensor, active: Tensor, rounds: Tensor) -> Tensor:
        return super().start(scores, active, rounds) * 2.0

    def logit(self, pairs: Pairs, scale: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.scale(pairs.gap, scale)
        return self.c * pairs.gap / scale, scale


def floored(statistic: Callable[[Tensor], Tensor], gap: Tensor, before: Tensor) -> Tensor:
    """A statistic of the gaps, but not below half of the scale before."""
    return torch.maximum(statistic(gap), before / 2)


def mean(gap: Tensor) -> Tensor:
    """The mean gap, as in Relative."""
    return gap.mean(dim=-1, keepdim=True)


def detached(part: float, gap: Tensor) -> Tensor:
    """The mean gap, without a part of its gradient."""
    return (1.0 - part) * mean(gap) + part * mean(gap).detach()


SAME = "mean gap (Relative)"
SCALES: dict[str, Scale] = {
    SAME: partial(floored, mean),
    "median gap": partial(floored, lambda gap: gap.median(dim=-1, keepdim=True).values),
    "root mean square": partial(floored, lambda gap: gap.square().mean(dim=-1, keepdim=True).add(1e-30).sqrt()),
    "mean gap, detached": partial(floored, partial(detached, 1.0)),
    "mean gap, half detached": partial(floored, partial(detached, 0.5)),
    "mean gap, no floor": lambda gap, _: mean(gap) + 1e-12,
    "the first mean gap, halved": lambda gap, before: torch.where(before == 2.0, mean(gap).clamp(min=1.0), before / 2),
}
TASKS = ("planted", "planted x 100", "planted 64 of 256")
UNITS = (1.0, 3.0, 10.0, 30.0)
CLOSER = (1.0, 2.0, 3.0, 5.0)  # units measured again, with seeds that nothing was chosen by
SEEDS, FRESH = range(5), range(5, 15)


class Cell(NamedTuple):
    """A rule, which gives the boost at each part of the training, and a condition of ``python -m evals learning``."""

    rule: str
    boost_at: Callable[[float], Boost]
    task: str
    seeds: range
    steps: int | None = None  # None: those of the condition


class Rules(Benchmark[Cell]):
    """How well networks learn with other rules for the boost."""

    name = "rules"
    description = "how well networks learn with other rules for the boost than Relative (scores, not times)"
    threads = 1
    left_out = "it trains for hours"
    tiny = Cell(SAME, lambda _: Scaled(SCALES[SAME], 2.0), "planted", range(1), steps=2)

    def cells(self, options: argparse.Namespace) -> Sequence[Cell]:  # noqa: ARG002
        tasks = possible(CONDITIONS, _data() is not None)
        sharpened = [
            Cell(f"Sharpen, unit={unit:g}", partial(sharpen, unit), task, seeds)
            for units, seeds in ((UNITS, SEEDS), (CLOSER, FRESH))
            for unit in units
            for task in tasks
        ]
        scaled = [
            Cell(f"{name}, c={c:g}", partial(constant, Scaled(scale, c)), task, SEEDS)
            for name, scale in SCALES.items()
            for c in (1.0, 2.0, 4.0)
            for task in TASKS
        ]
        return sharpened + scaled

    def check(self, cell: Cell) -> None:
        """The scale of Relative gives the results of Relative, and the boosts of the cell give finite weights."""
        _, scores = draw(Size(2, 64, 8, 1))
        for c in (1.0, 4.0):
            found, expected = (knockout.select(scores * 10, 8, each) for each in (Scaled(SCALES[SAME], c), Relative(c)))
            assert_close(found.weights(), expected.weights(), rtol=1e-4, atol=1e-5)
        weights = knockout.select(scores, 8, cell.boost_at(0.5)).weights()
        assert_close(weights.sum(dim=-1), torch.ones(2, 8))

    def measure(self, cell: Cell, effort: Effort) -> list[Row]:  # noqa: ARG002
        def select_at(part: float) -> Select:
            return partial(knockout.select, boost=cell.boost_at(part))

        make, recipe, steps = CONDITIONS[cell.task]
        scores = [
            train(make(seed, _data()), select_at, cell.steps or steps, methods.hard, seed, recipe)
            for seed in cell.seeds
        ]
        row = {"rule": cell.rule, "task": cell.task, "seeds": len(scores)}
        return [{**row, "mean": statistics.fmean(scores), "least": min(scores), "scores": scores}]


def constant(boost: Boost, _: float) -> Boost:
    """The same boost all the time."""
    return boost


def sharpen(unit: float, part: float) -> Boost:
    """The boost that ``knockout.nn.Sharpen`` gives by default, with another unit."""
    return Relative(Sharpen(TopK(1, 4.0), steps=1).boost_at(part), unit)


def _data() -> Path | None:
    return fashion_mnist.DEBIAN if fashion_mnist.DEBIAN.exists() else None


BENCHMARK = Rules()
