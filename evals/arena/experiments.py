"""The experiments of the arena."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import UnionType

from evals.arena import cost, fidelity, gradients, learning
from evals.arena.methods import METHODS
from harness.journal import Rows
from harness.runner import Experiment, rows_match


@dataclass(frozen=True)
class Settings:
    """All that the results depend on; results with other settings belong to another run."""

    program: str  # "full" or "quick"
    seed: int
    threads: int
    cells: tuple[tuple[int, int], ...]  # n and k of the cost measurements
    seconds: float  # limit for a call with backward; a method that takes longer is shown as too slow
    mebibytes: float  # likewise for memory
    patience: float  # seconds for timing one method in one cell
    n: int  # of fidelity and gradients
    k: int
    tasks: tuple[str, ...]
    temperatures: int  # how many of each method's temperatures are tried, from the middle of its list
    annealed: int  # how many of these are also annealed
    steps: int  # of training
    seeds: int


def settings_for(quick: bool, seed: int, threads: int, has_data: bool) -> Settings:
    """Make the settings of the full run, or of one that takes less than three minutes; without data, of fewer tasks."""
    tasks = tuple(name for name in learning.TASKS if has_data or name not in learning.NEEDS_DATA)
    if quick:
        return Settings(
            "quick", seed, threads,
            cells=((256, 8), (1024, 8), (1024, 64)), seconds=1.0, mebibytes=256.0, patience=0.2,
            n=256, k=8,
            tasks=tasks, temperatures=1, annealed=0, steps=60, seeds=2,
        )  # fmt: skip
    return Settings(
        "full", seed, threads,
        cells=tuple((n, k) for n in (256, 1024, 4096, 16384) for k in (8, 64, 512) if 2 * k <= n),
        seconds=10.0, mebibytes=2048.0, patience=2.0,
        n=1024, k=32,
        tasks=tasks, temperatures=4, annealed=1, steps=200, seeds=5,
    )  # fmt: skip


def learning_settings(name: str, temperatures: int, annealed: int) -> list[tuple[float, bool]]:
    """List the settings of a method in learning: temperature, and whether it is annealed."""
    every = METHODS[name].temperatures

    def middle(count: int) -> tuple[float, ...]:
        first = (len(every) - count + 1) // 2
        return every[first : first + count]

    return [*((t, False) for t in middle(temperatures)), *((t, True) for t in middle(annealed))]


def timings(settings: Settings) -> list[Experiment]:
    """List the experiments that must run alone on the machine."""
    listed = []
    for n, k in settings.cells:
        limits = settings.seconds, settings.mebibytes, settings.patience
        run = partial(cost.measure, n, k, settings.seed, *limits)
        listed.append(Experiment(f"cost n={n} k={k}", 10.0 + 60 * settings.patience + 2e-5 * n * k, run))
    return listed


def studies(settings: Settings, data: Path | None) -> list[Experiment]:
    """List the experiments that may run in parallel."""
    seed, n, k = settings.seed, settings.n, settings.k
    listed = [
        Experiment(f"fidelity {name}", 5.0, partial(fidelity.measure, name, n, k, seed))
        for name in fidelity.DISTRIBUTIONS
    ]
    for name in METHODS:
        listed.append(Experiment(f"agreement {name}", 0.5, partial(gradients.agreement, name, seed)))
        listed.append(Experiment(f"scales {name}", 0.5, partial(gradients.scales, name, n, k, seed)))
    training = settings.steps, settings.seeds, data
    size = settings.steps * settings.seeds / 200
    for task in settings.tasks:
        for name in METHODS:
            slow = {"sinkhorn": 12.0, "perturbed": 8.0}.get(name, 2.0)
            for temperature, annealed in learning_settings(name, settings.temperatures, settings.annealed):
                run = partial(learning.measure, task, name, temperature, annealed, *training)
                listed.append(Experiment(learning_name(task, name, temperature, annealed), slow * size, run))
    return listed


def learning_name(task: str, name: str, temperature: float, annealed: bool) -> str:
    """Name the training with one setting of a method."""
    return f"learning {task}, {name}, {temperature}{', annealed' if annealed else ''}"


# The fields of the rows of each kind of experiment.
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
}  # fmt: skip


def is_complete(name: str, rows: Rows) -> bool:
    """Whether these are the rows of the experiment with this name."""
    kind = name.split()[0]
    if kind not in FIELDS or not rows_match(rows, FIELDS[kind]):
        return False
    if kind == "cost":
        return [row["method"] for row in rows] == list(cost.MEASURED)
    if kind == "learning":
        parts = ("task", "method", "temperature", "annealed")
        return all(name == learning_name(*(row[part] for part in parts)) for row in rows)
    return True
