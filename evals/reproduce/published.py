"""The published results of the paper, cell by cell.

Source: the log that the authors of "Successive Halving Top-k Operator" (Pietruszka, Borchmann, Graliński, AAAI 2021,
arXiv 2010.15552) published with their code (repository applicaai/successive-halving-topk, file
benchmark_log_16003623822_cuda:0.csv), averaged over batches: mean and standard deviation of nCCS, median seconds per
batch, number of batches.

Settings behind them: batch 16, d = 32, values ~ U[-1, 1], scores ~ U[0, 1]. Halving: pair weights softmax(20^a,
20^b), here ``boost.Power(20)``. Iterative: the plain softmax, not the peaked one that the paper prints. Seconds were
taken on an A100 with a Python loop over the batch and no synchronization: only their shape over n and k means
anything.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import NamedTuple


class Published(NamedTuple):
    """The published results of one method at one n and k."""

    nccs: float
    nccs_std: float
    seconds: float
    batches: int

    @property
    def standard_error(self) -> float:
        """Standard error of the mean nCCS."""
        return self.nccs_std / math.sqrt(self.batches)


def published() -> dict[tuple[str, int, int], Published]:
    """Read all cells, by method ("halving" or "iterative"), n and k."""
    with (Path(__file__).parent / "published.csv").open() as file:
        return {
            (row["method"], int(row["n"]), int(row["k"])): Published(
                float(row["nccs"]), float(row["nccs_std"]), float(row["seconds"]), int(row["batches"])
            )
            for row in csv.DictReader(file)
        }
