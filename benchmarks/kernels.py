"""Three lists of cells (--part): the grid of the paper (batch 16, d = 32, uniform scores, Relative(4)), wide values,
and every boost on every distribution of scores."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.common import HARD, check_against_reference, pass_rows, soft
from benchmarks.registry import Benchmark, Effort, Row
from harness.timing import hard_topk, passes
from knockout.boost import DEFAULT, Boost, Fixed, Power, Relative

SHARP = Relative(4)
BOOSTS: tuple[Boost, ...] = (DEFAULT, Relative(1), SHARP, Relative(16), Relative(4, alpha=1), Fixed(100), Power(20))
SCORES: dict[str, Callable[..., Tensor]] = {
    "uniform": torch.rand,  # as in the paper
    "normal": torch.randn,  # above the unit of Relative: the mean gap sets the scale
    "tied": lambda *shape, generator: torch.randint(16, shape, generator=generator) / 16,
}


class Cell(NamedTuple):
    """Sizes, boost, and how scores are drawn."""

    batch: int
    n: int
    k: int
    d: int
    scores: str = "uniform"
    boost: Boost = SHARP

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Values (batch, n, d) in [-1, 1) and scores (batch, n)."""
        generator = torch.Generator().manual_seed(self.n + self.k)
        values = torch.rand(self.batch, self.n, self.d, generator=generator) * 2 - 1
        return values, SCORES[self.scores](self.batch, self.n, generator=generator)


PARTS: dict[str, list[Cell]] = {
    "grid": [Cell(16, 2**i, 2**j, 32) for i in range(4, 15) for j in range(1, 12) if j < i],
    "wide": [
        Cell(4, n, k, d)
        for d in (512, 768)
        for n, k in ((1024, 2), (1024, 64), (4096, 64), (16384, 2), (16384, 64), (16384, 2048))
    ],
    "boosts": [
        Cell(16, n, k, 32, scores, boost)
        for scores in SCORES
        for n, k in ((256, 16), (4096, 64), (16384, 2), (16384, 512))
        for boost in BOOSTS
    ],
}


class Kernels(Benchmark[Cell]):
    """The C++ kernels beside the hard twin."""

    name = "kernels"
    description = "time of knockout.topk with the C++ kernels, as a ratio to torch.topk + gather"
    backend = "cpu"
    tiny = Cell(2, 64, 8, 4)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--part", choices=PARTS, action="append", help="a list of cells (all three)")

    def cells(self, options: argparse.Namespace) -> Sequence[Cell]:
        return [cell for part in options.part or PARTS for cell in PARTS[part]]

    def check(self, cell: Cell) -> None:
        check_against_reference(*cell.inputs(), cell.k, cell.boost)

    def measure(self, cell: Cell, effort: Effort) -> list[Row]:
        operators = {HARD: partial(hard_topk, k=cell.k), "knockout.topk": partial(soft, k=cell.k, boost=cell.boost)}
        taken = passes(operators, *cell.inputs(), *effort)
        _, row = pass_rows({**cell._asdict(), "boost": str(cell.boost)}, taken)  # that of the hard twin is all ones
        return [row]

    def summary(self, rows: list[Row]) -> list[str]:
        lines = []
        for kind in ("forward", "with backward"):
            ratios = [row[f"{kind}, ratio"] for row in rows]
            worst = rows[ratios.index(max(ratios))]
            above = sum(each > 2 for each in ratios)
            lines.append(
                f"{kind}: geometric mean of the ratios {geometric_mean(ratios):.2f}, largest {max(ratios):.2f} at "
                f"n = {worst['n']}, k = {worst['k']}; above 2 in {above} of {len(rows)} cells"
            )
        return lines


def geometric_mean(numbers: Iterable[float]) -> float:
    """The exponential of the mean logarithm."""
    logarithms = [math.log(each) for each in numbers]
    return math.exp(sum(logarithms) / len(logarithms))


BENCHMARK = Kernels()
