"""The boost of knockout: which rule, sharpness, pair weight, unit and schedule learn best, and where they fail.

Each is tried under several conditions: tasks, sizes, initial weights, the scale of the scores, half precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import knockout
from evals.arena.learning import NEEDS_DATA, TASKS, Planted, Task, train
from evals.arena.methods import Select
from harness.journal import Rows
from knockout import methods
from knockout.boost import Boost, Fixed, Relative
from knockout.nn import BoostSchedule, Sharpen, TopK


class Rule(NamedTuple):
    """A boost, and the schedule that changes its sharpness during training, if there is one."""

    boost: Boost
    schedule: Callable[[TopK], BoostSchedule] | None = None
    hard: bool = False


def sharpened(start: float, end: float, unit: float = 1.0) -> Rule:
    """Make a rule with the schedule ``knockout.nn.Sharpen``."""
    return Rule(Relative(end, unit), partial(Sharpen, steps=1, start=start, end=end))


RULES: dict[str, Rule] = {
    **{f"Relative({c})": Rule(Relative(c)) for c in (1, 2, 4, 8)},
    "Relative(2, alpha=1)": Rule(Relative(2, alpha=1)),
    "Relative(2, alpha=2)": Rule(Relative(2, alpha=2)),
    "Relative(2, unit=0.1)": Rule(Relative(2, unit=0.1)),
    "Relative(2, unit=10)": Rule(Relative(2, unit=10)),
    "Relative(2), straight-through": Rule(Relative(2), hard=True),
    "Fixed(5)": Rule(Fixed(5)),
    "Sharpen 0.5 to 8": sharpened(0.5, 8.0),
    "Sharpen 0.5 to 8, unit=10": sharpened(0.5, 8.0, unit=10.0),
    "Sharpen 0.5 to 2": sharpened(0.5, 2.0),
    "Sharpen 1 to 4": sharpened(1.0, 4.0),
}

CONDITIONS: dict[str, Callable[[int, Path | None], Task]] = {
    "planted": Planted,
    "from zero": partial(Planted, start=0.0),
    "scores x 100": partial(Planted, scale=100.0),
    "scores x 0.01": partial(Planted, scale=0.01),
    "bfloat16 scores": partial(Planted, dtype=torch.bfloat16),
    "n = 1024": partial(Planted, n=1024),
    "k = 64": partial(Planted, k=64),
    "k = 1": partial(Planted, k=1),
    **{name: TASKS[name] for name in NEEDS_DATA},
}


def measure(condition: str, name: str, steps: int, seeds: int, data: Path | None) -> Rows:
    """Train with one rule under one condition, a row per seed."""
    rule = RULES[name]
    layer = TopK(1, rule.boost)
    schedule = rule.schedule(layer) if rule.schedule else None

    def at(progress: float) -> Select:
        boost = rule.boost
        if schedule is not None:
            assert isinstance(boost, Relative)
            boost = replace(boost, c=schedule.boost_at(progress))
        return lambda scores, k: knockout.select(scores, k, boost, hard=rule.hard)

    return [
        {
            "condition": condition, "rule": name, "seed": seed,
            "score": train(CONDITIONS[condition](seed, data), at, steps, methods.hard, seed),
        }
        for seed in range(seeds)
    ]  # fmt: skip


# Scores at which a gradient could blow up.
SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda noise: noise,
    **{f"normal x {spread:g}": partial(torch.mul, spread) for spread in (1e-1, 1e-2, 1e-4, 1e-6)},
    "all tied": lambda noise: 0.0 * noise,
    "two values": lambda noise: (noise > 0).to(noise.dtype),
    "bfloat16": lambda noise: noise.to(torch.bfloat16),
    "an outlier of 1000": lambda noise: noise.index_fill(-1, torch.tensor([7]), 1e3),
}


def stability(name: str, seed: int, n: int = 256, k: int = 8, batch: int = 16) -> Rows:
    """Measure the length of a row's gradient, mean and largest, for scores of many kinds; at the end of a schedule."""
    generator, rows = torch.Generator().manual_seed(seed), []
    noise, values = torch.randn(batch, n, generator=generator), torch.randn(batch, n, 8, generator=generator)
    for kind, make in SCORES.items():
        scores = make(noise).requires_grad_()
        mean = knockout.select(scores, k, RULES[name].boost).apply(values).mean(dim=1)
        (gradient,) = torch.autograd.grad(mean.sum(), scores)
        length = gradient.float().norm(dim=-1)
        rows.append({"rule": name, "field": kind, "mean": length.mean().item(), "largest": length.max().item()})
    return rows
