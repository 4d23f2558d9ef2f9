"""The operator plays the tournament with scores alone and then blends the values once. The paper's algorithm blends the
values in every round."""

from __future__ import annotations

from functools import partial

from torch import Tensor
from torch.testing import assert_close

from benchmarks.common import HARD, Size, draw, pass_rows, soft
from benchmarks.registry import Benchmark, Effort, Row
from evals.reproduce.rounds import round_by_round
from harness.timing import hard_topk, passes
from knockout.boost import Relative

BOOST = Relative(4)
SOFT, ROUNDS = "knockout.topk", "round by round"


class Rounds(Benchmark[Size]):
    """Values blended once, or in every round."""

    name = "rounds"
    description = "knockout.topk beside blending the values in every round, and beside torch.topk + gather"
    seconds = 2.0
    all_cells = (
        Size(1, 16384, 64, 512),
        Size(4, 16384, 64, 512),
        Size(4, 16384, 2, 512),
        Size(4, 16384, 2048, 512),
        Size(16, 16384, 64, 32),
    )
    tiny = Size(2, 64, 4, 3)

    def check(self, cell: Size) -> None:
        values, scores = draw(cell)
        assert_close(soft(values, scores, cell.k, BOOST), _rounds(values, scores, cell.k), rtol=1e-3, atol=1e-4)

    def measure(self, cell: Size, effort: Effort) -> list[Row]:
        operators = {
            HARD: partial(hard_topk, k=cell.k),
            SOFT: partial(soft, k=cell.k, boost=BOOST),
            ROUNDS: partial(_rounds, k=cell.k),
        }
        return pass_rows(cell._asdict(), passes(operators, *draw(cell), *effort))


def _rounds(values: Tensor, scores: Tensor, k: int) -> Tensor:
    return round_by_round(values, scores, k, BOOST)


BENCHMARK = Rounds()
