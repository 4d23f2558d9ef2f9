"""The paper's grid: random vectors with random scores, selected by each method, judged by nCCS."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import knockout
from knockout.boost import Power, Relative
from knockout.selection import Selection

BATCH, D = 16, 32
CELLS = [(2**i, 2**j) for i in range(4, 15) for j in range(1, 12) if 2**j < 2**i]

METHODS: dict[str, Callable[[Tensor, int], Selection]] = {
    "halving": lambda scores, k: knockout.select(scores, k, boost=Power(20)),
    "iterative": lambda scores, k: knockout.methods.iterative(scores, k, peaked=False, alpha=2.0),
    "Relative(4)": lambda scores, k: knockout.select(scores, k),
    "Relative(16)": lambda scores, k: knockout.select(scores, k, boost=Relative(16)),
}


class Quality(NamedTuple):
    """nCCS over batches."""

    mean: float
    std: float
    batches: int

    @property
    def standard_error(self) -> float:
        """Of the mean."""
        return self.std / math.sqrt(self.batches)


def batches(n: int, k: int, count: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The same ``count`` batches of values (16, n, 32) ~ U[-1, 1] and scores (16, n) ~ U[0, 1] whenever asked."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + n * 4096 + k)
    for _ in range(count):
        yield (
            torch.rand(BATCH, n, D, generator=generator) * 2 - 1,
            torch.rand(BATCH, n, generator=generator),
        )


@torch.inference_mode()
def quality(n: int, k: int, count: int = 16, seed: int = 0) -> dict[str, Quality]:
    """nCCS of every method in one cell, all on the same batches."""
    found: dict[str, list[float]] = {name: [] for name in METHODS}
    for values, scores in batches(n, k, count, seed):
        true = knockout.methods.hard(scores, k).apply(values)
        for name, method in METHODS.items():
            found[name].append(knockout.metrics.nccs(true, method(scores, k).apply(values)).mean().item())
    return {
        name: Quality(statistics.fmean(each), statistics.stdev(each) if count > 1 else 0.0, count)
        for name, each in found.items()
    }
