"""The methods are those of ``knockout.methods`` with their own defaults, batch 16, d = 32. Methods that make a matrix
(batch, k, n) are left out where that has more than 2^24 numbers: they are far behind there. So is lml, whose time
depends on how soon it converges."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.common import HARD, check_against_reference, pass_rows, soft
from benchmarks.registry import Benchmark, Effort, Row
from harness.timing import hard_topk, passes
from knockout import Selection, methods
from knockout.boost import DEFAULT, Relative
from knockout.cli.timing import Operator

BATCH, D = 16, 32
OURS = {"knockout, boost=4": Relative(4), "knockout, the default": DEFAULT}
SCORES: dict[str, Callable[..., Tensor]] = {"normal": torch.randn, "uniform": torch.rand}
Method = Callable[[Tensor, int], Selection]
MASKS: dict[str, Method] = {
    "threshold": methods.threshold,
    "lapsum": methods.lapsum,
    "projection": methods.projection,
    "coordinate descent": methods.coordinate_descent,
}
MATRICES: dict[str, Method] = {"iterative": methods.iterative, "softsort": methods.softsort}
MOST = 2**24


class Cell(NamedTuple):
    """Sizes, and how scores are drawn."""

    n: int
    k: int
    scores: str = "normal"

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Values (16, n, 32) in [-1, 1) and scores (16, n)."""
        generator = torch.Generator().manual_seed(self.n + self.k)
        values = torch.rand(BATCH, self.n, D, generator=generator) * 2 - 1
        return values, SCORES[self.scores](BATCH, self.n, generator=generator)

    def rivals(self) -> dict[str, Method]:
        """Soft methods other than ours."""
        return MASKS | (MATRICES if BATCH * self.n * self.k <= MOST else {})


class Rivals(Benchmark[Cell]):
    """Ours beside the other soft methods."""

    name = "rivals"
    description = "time of knockout.topk at boost=4 and at its default, as a ratio to the fastest other soft method"
    keeps_memory = True
    all_cells = tuple(Cell(n, k, scores) for scores in SCORES for n in (1024, 4096, 16384) for k in (8, 64, 512))
    tiny = Cell(64, 8)

    def check(self, cell: Cell) -> None:
        for boost in OURS.values():
            check_against_reference(*cell.inputs(), cell.k, boost)

    def measure(self, cell: Cell, effort: Effort) -> list[Row]:
        operators: dict[str, Operator] = {HARD: partial(hard_topk, k=cell.k)}
        operators |= {name: partial(soft, k=cell.k, boost=boost) for name, boost in OURS.items()}
        operators |= {name: partial(_applied, method, k=cell.k) for name, method in cell.rivals().items()}
        rows = pass_rows(cell._asdict(), passes(operators, *cell.inputs(), *effort))
        others = [row for row in rows if row["operator"] in cell.rivals()]
        for row in rows:
            for kind in ("forward", "with backward"):
                fastest = min(others, key=lambda other: other[f"{kind}, ms"])
                row[f"{kind}, fastest other"] = fastest["operator"]
                row[f"{kind}, ratio to it"] = row[f"{kind}, ms"] / fastest[f"{kind}, ms"]
        return rows

    def summary(self, rows: list[Row]) -> list[str]:
        lines = []
        for name in OURS:
            for kind in ("forward", "with backward"):
                ours = [row for row in rows if row["operator"] == name]
                slower = [row for row in ours if row[f"{kind}, ratio to it"] > 1]
                where = "".join(
                    f"; {row[f'{kind}, ratio to it']:.2f} x {row[f'{kind}, fastest other']} at n = {row['n']}, "
                    f"k = {row['k']}, {row['scores']} scores"
                    for row in slower
                )
                lines.append(
                    f"{name}, {kind}: the fastest soft method in {len(ours) - len(slower)} of {len(ours)}{where}"
                )
        return lines


def _applied(method: Method, values: Tensor, scores: Tensor, k: int) -> Tensor:
    return method(scores, k).apply(values)


BENCHMARK = Rivals()
