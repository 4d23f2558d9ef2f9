"""Is there a better rule than ``Relative``? Other ways to measure the gaps of a round, on the arena's tasks.

Each is a boost of its own with t = c gap / s, and differs from Relative in the scale s alone. Through the plain PyTorch
reference, so that times say nothing here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import knockout
from benchmarks.timing import save
from knockout import methods
from knockout.boost import Boost, Pairs
from knockout.eval.arena.boosts import CONDITIONS
from knockout.eval.arena.contestants import Select
from knockout.eval.arena.learning import train

Scale = Callable[[Tensor, Tensor], Tensor]  # gaps (..., pairs), the scale of the round before (..., 1) -> (..., 1)


@dataclass(frozen=True, repr=False)
class Measured(Boost):
    """t = c gap / s, with a scale of one's own, from unit on."""

    scale: Scale
    c: float
    alpha: float = 1.5

    def start(self, scores: Tensor) -> Tensor:
        return super().start(scores) * 2.0

    def logit(self, pairs: Pairs, scale: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.scale(pairs.gap, scale)
        return self.c * pairs.gap / scale, scale


def floored(statistic: Callable[[Tensor], Tensor], gap: Tensor, before: Tensor) -> Tensor:
    """Some statistic of the gaps, but not below half of what the scale was."""
    return torch.maximum(statistic(gap), before / 2)


def mean(gap: Tensor) -> Tensor:
    """As Relative has it."""
    return gap.mean(dim=-1, keepdim=True)


def detached(share: float, gap: Tensor) -> Tensor:
    """The mean gap, of whose gradient a share is left out."""
    return (1.0 - share) * mean(gap) + share * mean(gap).detach()


RULES: dict[str, Scale] = {
    "mean gap (Relative)": partial(floored, mean),
    "median gap": partial(floored, lambda gap: gap.median(dim=-1, keepdim=True).values),
    "root mean square": partial(floored, lambda gap: gap.square().mean(dim=-1, keepdim=True).add(1e-30).sqrt()),
    "mean gap, detached": partial(floored, partial(detached, 1.0)),
    "mean gap, half detached": partial(floored, partial(detached, 0.5)),
    "mean gap, no floor": lambda gap, _: mean(gap) + 1e-12,
    "the first mean gap, halved": lambda gap, before: torch.where(before == 2.0, mean(gap).clamp(min=1.0), before / 2),
}
TASKS = ("planted", "scores x 100", "k = 64")
STEPS, SEEDS = 200, 5


def constant(select: Select) -> Callable[[float], Select]:
    """The same all the time."""
    return lambda _: select


def main() -> None:
    """Mean and least score of each rule at three boosts."""
    torch.set_num_threads(1)
    table = Table("rule", "boost", *TASKS)
    rows = []
    for name, scale in RULES.items():
        for c in (1.0, 2.0, 4.0):
            at = constant(partial(knockout.select, boost=Measured(scale, c)))
            line = []
            for task in TASKS:
                found = [train(CONDITIONS[task](s, None), at, STEPS, methods.hard, s) for s in range(SEEDS)]
                rows.append({"rule": name, "c": c, "task": task, "scores": found})
                line.append(f"{statistics.fmean(found):.3f} ({min(found):.2f})")
            table.add_row(name, f"{c:g}", *line)
            print(name, c, *line, sep="  ", flush=True)
    Console().print(table)
    print(f"written to {save('rules', rows)}")


if __name__ == "__main__":
    main()
