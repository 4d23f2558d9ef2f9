"""What there is to measure in the arena, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any

from knockout.eval.arena import boosts, cost, fidelity, gradients, learning
from knockout.eval.arena.contestants import CONTESTANTS
from knockout.eval.journal import Rows
from knockout.eval.works import Work, fit


@dataclass(frozen=True)
class Settings:
    """What decides the figures; results with other settings are of another run."""

    program: str
    seed: int
    threads: int
    cells: tuple[tuple[int, int], ...]  # n and k, for cost
    seconds: float  # that a method may take for a call with backward, or it is shown as too slow
    mebibytes: float  # that it may take
    patience: float  # seconds for the time of one method in one cell
    n: int  # candidates, for fidelity and gradients
    k: int
    tasks: tuple[str, ...]
    temperatures: int  # of each method's grid, from the middle
    annealed: int  # of these, how many are also tried with annealing
    steps: int  # of training
    seeds: int
    conditions: tuple[str, ...]  # for the study of boosts
    rules: tuple[str, ...]


def settings_for(quick: bool, seed: int, threads: int, has_data: bool) -> Settings:
    """All of it, or what can be done in less than three minutes; without Fashion-MNIST, less."""

    def there(names: Any) -> tuple[str, ...]:
        return tuple(name for name in names if has_data or name not in learning.NEEDS_DATA)

    if quick:
        return Settings(
            "quick", seed, threads,
            cells=((256, 8), (1024, 8), (1024, 64)), seconds=1.0, mebibytes=256.0, patience=0.2,
            n=256, k=8,
            tasks=there(learning.TASKS), temperatures=1, annealed=0, steps=60, seeds=2,
            conditions=("planted",), rules=("Relative(2)", "Relative(4)", "Sharpen 0.5 to 8"),
        )  # fmt: skip
    return Settings(
        "full", seed, threads,
        cells=tuple((n, k) for n in (256, 1024, 4096, 16384) for k in (8, 64, 512) if 2 * k <= n),
        seconds=10.0, mebibytes=2048.0, patience=2.0,
        n=1024, k=32,
        tasks=there(learning.TASKS), temperatures=4, annealed=1, steps=200, seeds=5,
        conditions=there(boosts.CONDITIONS), rules=tuple(boosts.RULES),
    )  # fmt: skip


def grid(name: str, temperatures: int, annealed: int) -> list[tuple[float, bool]]:
    """The settings of a method in learning: temperatures from the middle of its grid, some of them also annealed."""
    every = CONTESTANTS[name].temperatures

    def middle(count: int) -> tuple[float, ...]:
        first = (len(every) - count + 1) // 2
        return every[first : first + count]

    return [*((t, False) for t in middle(temperatures)), *((t, True) for t in middle(annealed))]


def timing(settings: Settings) -> list[Work]:
    """Pieces that must be alone on the machine."""
    work = []
    for n, k in settings.cells:
        limits = settings.seconds, settings.mebibytes, settings.patience
        run = partial(cost.measure, n, k, settings.seed, *limits)
        work.append(Work(f"cost n={n} k={k}", 10.0 + 60 * settings.patience + 2e-5 * n * k, run))
    return work


def studies(settings: Settings, data: Path | None) -> list[Work]:
    """Pieces that may be done side by side."""
    seed, n, k = settings.seed, settings.n, settings.k
    work = [
        Work(f"fidelity {name}", 5.0, partial(fidelity.measure, name, n, k, seed)) for name in fidelity.DISTRIBUTIONS
    ]
    for name in CONTESTANTS:
        work.append(Work(f"agreement {name}", 0.5, partial(gradients.agreement, name, seed)))
        work.append(Work(f"scales {name}", 0.5, partial(gradients.scales, name, n, k, seed)))
    training = settings.steps, settings.seeds, data
    share = settings.steps * settings.seeds / 200
    for task in settings.tasks:
        for name in CONTESTANTS:
            slow = {"sinkhorn": 12.0, "perturbed": 8.0}.get(name, 2.0)
            for temperature, annealed in grid(name, settings.temperatures, settings.annealed):
                run = partial(learning.measure, task, name, temperature, annealed, *training)
                work.append(Work(name_of_learning(task, name, temperature, annealed), slow * share, run))
    for condition in settings.conditions:
        for rule in settings.rules:
            run = partial(boosts.measure, condition, rule, *training)
            work.append(Work(name_of_boost(condition, rule), 2.0 * share, run))
    for rule in settings.rules:
        work.append(Work(f"stability {rule}", 0.2, partial(boosts.stability, rule, seed)))
    return work


def name_of_learning(task: str, name: str, temperature: float, annealed: bool) -> str:
    """Of the training with one setting of a method."""
    return f"learning {task}, {name}, {temperature}{', annealed' if annealed else ''}"


def name_of_boost(condition: str, rule: str) -> str:
    """Of the training with one boost."""
    return f"boost {condition}, {rule}"


# What the rows of each kind of work hold.
FIELDS: dict[str, dict[str, type | UnionType]] = {
    "cost": {
        "method": str, "n": int, "k": int, "status": str, "seconds": float | None,
        "seconds_with_backward": float | None, "mebibytes": float | None,
    },
    "fidelity": {
        "distribution": str, "method": str, "temperature": float, "n": int, "k": int, "nccs": float, "mass": float,
    },
    "agreement": {"method": str, "cosine": float, "distance": float | None},
    "scales": {
        "method": str, "n": int, "k": int, "scale": float, "mass": float, "rows": float, "mask": float,
        "length": float | None,
    },
    "learning": {
        "task": str, "method": str, "temperature": float, "annealed": bool, "seed": int, "score": float,
    },
    "boost": {"condition": str, "rule": str, "seed": int, "score": float},
    "stability": {"rule": str, "field": str, "mean": float, "largest": float},
}  # fmt: skip


def are_whole(name: str, rows: Rows) -> bool:
    """Whether rows are what a piece of work with this name finds."""
    kind = name.split()[0]
    if kind not in FIELDS or not fit(rows, FIELDS[kind]):
        return False
    if kind == "cost":
        return [row["method"] for row in rows] == list(cost.EVERYBODY)
    if kind == "learning":
        parts = ("task", "method", "temperature", "annealed")
        return all(name == name_of_learning(*(row[part] for part in parts)) for row in rows)
    if kind == "boost":
        return all(name == name_of_boost(row["condition"], row["rule"]) for row in rows)
    return True
