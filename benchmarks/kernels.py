"""Four lists of cells (--part): the grid of the paper (batch 16, d = 32, uniform scores, Relative(4)), wide values,
every boost on every distribution of scores, and training: soft to sharp boosts, and ``nn.TopK`` with nothing set, whose
boost is None in the table."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.common import HARD, check_operator, pass_rows, soft
from benchmarks.registry import Benchmark, Effort, Row
from harness.timing import hard_topk, passes
from knockout.boost import DEFAULT, Boost, Fixed, Power, Relative
from knockout.cli.timing import Operator
from knockout.nn import TopK

SHARP = Relative(4)
BOOSTS: tuple[Boost, ...] = (DEFAULT, Relative(1), SHARP, Relative(16), Relative(4, alpha=1), Fixed(100), Power(20))
SCORES: dict[str, Callable[..., Tensor]] = {
    "uniform": torch.rand,  # as in the paper
    "normal": torch.randn,  # above the unit of Relative: the mean gap sets the scale
    "tied": lambda *shape, generator: torch.randint(16, shape, generator=generator) / 16,
}


class Cell(NamedTuple):
    """Sizes, how scores are drawn, and the boost; None for the layer with nothing set."""

    batch: int
    n: int
    k: int
    d: int
    scores: str = "uniform"
    boost: Boost | None = SHARP

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Values (batch, n, d) in [-1, 1) and scores (batch, n)."""
        generator = torch.Generator().manual_seed(self.n + self.k)
        values = torch.rand(self.batch, self.n, self.d, generator=generator) * 2 - 1
        return values, SCORES[self.scores](self.batch, self.n, generator=generator)

    def operator(self) -> Operator:
        """Blended values (batch, k, d) of values and scores."""
        if self.boost is not None:
            return partial(soft, k=self.k, boost=self.boost)
        layer = TopK(self.k)
        layer.calibrate(self.inputs()[1])
        return lambda values, scores: layer(values, scores).values


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
    "training": [
        Cell(*sizes, scores, boost)
        for scores in ("normal", "uniform")
        for boost in (*map(Relative, (0.5, 1, 2, 4, 8)), None)
        for sizes in (
            *((16, n, k, 32) for n, k in ((64, 8), (256, 8), (1024, 64), (4096, 8), (4096, 64), (4096, 512))),
            *((16, n, k, 32) for n, k in ((16384, 8), (16384, 64), (16384, 2048))),
            *((8, 512, 128, 384), (8, 2048, 256, 768)),
        )
    ],
}


class Kernels(Benchmark[Cell]):
    """The C++ kernels beside the hard twin."""

    name = "kernels"
    description = "time of knockout.topk with the C++ kernels, as a ratio to torch.topk + gather"
    backend = "cpu"
    keeps_memory = True
    tiny = Cell(2, 64, 8, 4)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--part", choices=PARTS, action="append", help="a list of cells (all four)")

    def cells(self, options: argparse.Namespace) -> Sequence[Cell]:
        return [cell for part in options.part or PARTS for cell in PARTS[part]]

    def check(self, cell: Cell) -> None:
        check_operator(cell.operator(), *cell.inputs())

    def measure(self, cell: Cell, effort: Effort) -> list[Row]:
        operators: dict[str, Operator] = {HARD: partial(hard_topk, k=cell.k), "knockout.topk": cell.operator()}
        taken = passes(operators, *cell.inputs(), *effort)
        _, row = pass_rows({**cell._asdict(), "boost": str(cell.boost)}, taken)  # that of the hard twin is all ones
        return [row]

    def summary(self, rows: list[Row]) -> list[str]:
        kinds = dict.fromkeys((row["scores"], row["boost"]) for row in rows)
        lines = [f"{boost}, {scores} scores: {_ratios(rows, scores, boost)}" for scores, boost in kinds]
        return lines if len(kinds) == 1 else [*lines, f"all: {_ratios(rows)}"]


def _ratios(rows: list[Row], scores: str | None = None, boost: str | None = None) -> str:
    """The ratios of the rows of these scores and this boost, or of all, in words."""
    rows = [row for row in rows if boost is None or (row["scores"], row["boost"]) == (scores, boost)]
    parts = []
    for kind in ("forward", "with backward"):
        ratios = [row[f"{kind}, ratio"] for row in rows]
        worst = rows[ratios.index(max(ratios))]
        parts.append(
            f"{kind} {geometric_mean(ratios):.2f} (geometric mean), at most {max(ratios):.2f} "
            f"(n = {worst['n']}, k = {worst['k']}), above 2 in {sum(each > 2 for each in ratios)} of {len(rows)}"
        )
    return "; ".join(parts)


def geometric_mean(numbers: Iterable[float]) -> float:
    """The exponential of the mean logarithm."""
    logarithms = [math.log(each) for each in numbers]
    return math.exp(sum(logarithms) / len(logarithms))


BENCHMARK = Kernels()
