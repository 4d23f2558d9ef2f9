"""Is there a better rule than ``Relative``? Other units with a schedule; and other ways to measure the gaps of a round.

The second are boosts of their own with t = c gap / s, which differ from Relative in the scale s alone, through the
plain PyTorch reference, so that times say nothing here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import knockout
from benchmarks.timing import save
from knockout import methods
from knockout.boost import Boost, Pairs, Relative
from knockout.eval import fashion
from knockout.eval.arena.boosts import CONDITIONS
from knockout.eval.arena.contestants import Select
from knockout.eval.arena.learning import NEEDS_DATA, train
from knockout.eval.journal import Rows
from knockout.nn import Sharpen, TopK

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
UNITS = (1.0, 3.0, 10.0, 30.0)
CLOSER = (1.0, 2.0, 3.0, 5.0)  # looked at again, by seeds that nothing was chosen by
STEPS, SEEDS, FRESH = 200, range(5), range(5, 15)


def constant(boost: Boost) -> Callable[[float], Select]:
    """The same all the time."""
    return lambda _: partial(knockout.select, boost=boost)


def sharpened(unit: float) -> Callable[[float], Select]:
    """As ``knockout.nn.Sharpen`` does by default, with another unit."""
    schedule = Sharpen(TopK(1), steps=1)
    return lambda progress: partial(knockout.select, boost=Relative(schedule.boost_at(progress), unit))


def compare(rules: dict[str, Callable[[float], Select]], tasks: Sequence[str], seeds: range, data: Path | None) -> Rows:
    """Mean and least score of each rule in each task."""
    table, rows = Table("rule", *tasks), []
    for name, at in rules.items():
        found = {
            task: [train(CONDITIONS[task](seed, data), at, STEPS, methods.hard, seed) for seed in seeds]
            for task in tasks
        }
        rows += [{"rule": name, "task": task, "scores": scores} for task, scores in found.items()]
        table.add_row(name, *(f"{statistics.fmean(scores):.3f} ({min(scores):.2f})" for scores in found.values()))
        print(f"{name}: done", flush=True)
    Console(width=200).print(table)
    return rows


def main() -> None:
    """Both comparisons."""
    torch.set_num_threads(1)
    data = fashion.DEBIAN if fashion.DEBIAN.exists() else None
    tasks = [name for name in CONDITIONS if data or name not in NEEDS_DATA]
    rows = []
    for units, seeds in ((UNITS, SEEDS), (CLOSER, FRESH)):
        rows += compare({f"Sharpen, unit={unit:g}": sharpened(unit) for unit in units}, tasks, seeds, data)
    measured = {
        f"{name}, c={c:g}": constant(Measured(scale, c)) for name, scale in RULES.items() for c in (1.0, 2.0, 4.0)
    }
    rows += compare(measured, TASKS, SEEDS, None)
    print(f"written to {save('rules', rows)}")


if __name__ == "__main__":
    main()
