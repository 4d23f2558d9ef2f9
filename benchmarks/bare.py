"""The threshold sigmoid of DFTopK is the cheapest relaxation. Here it is in as few lines of PyTorch as it takes,
without checks, masks or handling of invalid rows, and compared with the same behind the interface of the library."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.testing import assert_close

from benchmarks.common import Size, check_against_reference, draw, pass_rows, soft
from benchmarks.registry import Benchmark, Effort, Row
from harness.timing import passes
from knockout import methods
from knockout.boost import Relative

BOOST = Relative(4)
BARE = "threshold, bare"


class Bare(Benchmark[Size]):
    """An operator with and without an interface."""

    name = "bare"
    description = (
        "what the interface costs: the threshold sigmoid in bare PyTorch and in the library, and knockout.topk"
    )
    seconds = 1.0
    all_cells = tuple(Size(16, n, k, 32) for n in (1024, 4096, 16384) for k in (8, 64, 512))
    tiny = Size(2, 64, 4, 3)

    def check(self, cell: Size) -> None:
        values, scores = draw(cell)
        assert_close(bare(values, scores, cell.k), threshold(values, scores, cell.k))
        check_against_reference(values, scores, cell.k, BOOST)

    def measure(self, cell: Size, effort: Effort) -> list[Row]:
        operators = {
            BARE: partial(bare, k=cell.k),
            "threshold": partial(threshold, k=cell.k),
            "knockout.topk": partial(soft, k=cell.k, boost=BOOST),
        }
        return pass_rows(cell._asdict(), passes(operators, *draw(cell), *effort), base=BARE)


def bare(values: Tensor, scores: Tensor, k: int) -> Tensor:
    """Value rows (batch, k, d), each scaled by its sigmoid."""
    best, index = scores.topk(k + 1)
    middle = (best[:, k - 1 : k] + best[:, k:]) / 2
    gate = torch.sigmoid((best[:, :k] - middle) / 0.1)
    return gate.unsqueeze(-1) * values.gather(1, index[:, :k, None].expand(-1, -1, values.shape[-1]))


def threshold(values: Tensor, scores: Tensor, k: int) -> Tensor:
    """The same, by the library."""
    return methods.threshold(scores, k).apply(values)


BENCHMARK = Bare()
