"""The experiments: every contestant under every condition, and the lengths of gradients."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import UnionType

import torch

from evals.learning.conditions import CONDITIONS, SLOW, possible
from evals.learning.contestants import DEFAULT, DEFAULTS, OURS, TUNED, Start, grid
from evals.learning.stability import stability
from evals.learning.tasks import optimize
from harness.journal import Rows
from harness.runner import Experiment, rows_match


@dataclass(frozen=True)
class Settings:
    """All that the results depend on; results with other settings belong to another run."""

    program: str  # "full" or "quick"
    threads: int
    conditions: tuple[str, ...]
    part: float  # of each condition's steps that are run
    chosen_by: tuple[int, ...]  # the seeds by which settings are chosen
    seeds: tuple[int, ...]  # those by which contestants are judged: nothing is chosen by them


def settings_for(quick: bool, seed: int, threads: int, has_data: bool) -> Settings:
    """Make the settings of the full run, or of one that takes less than a minute; without data, of fewer conditions."""
    first = 1000 * seed
    if quick:
        names = possible(("planted", "needle", "digits", "router"), has_data)
        return Settings("quick", threads, names, 0.04, (first + 100,), (first + 200, first + 201))
    names = possible(CONDITIONS, has_data)
    return Settings(
        "full", threads, names, 1.0, (first + 100,), tuple(range(first + 200, first + 210))
    )  # fmt: skip


def run(condition: str, start: Start, part: float, seed: int, data: Path | None) -> dict[str, float | None]:
    """Train once and evaluate: with the hard choice, and with the soft one where the score has such."""
    made = CONDITIONS[condition]
    task = made.task(seed, data)
    selections = start(task.k)
    optimize(task, selections.at, max(1, round(part * made.steps)), seed, made.recipe)
    with torch.no_grad():
        score = task.evaluate(selections.hard)
        soft = task.evaluate_soft(selections.soft) if selections.soft else None
    return {"chance": task.chance, "score": score, "soft": soft}


def judge(condition: str, contestant: str, part: float, seeds: Iterable[int], data: Path | None) -> Rows:
    """Train with a contestant that has nothing to choose, a row per seed."""
    named = {"condition": condition, "contestant": contestant, "setting": DEFAULT}
    return [{**named, "seed": seed, **run(condition, DEFAULTS[contestant], part, seed, data)} for seed in seeds]


def tune_and_judge(
    condition: str, contestant: str, part: float, chosen_by: Iterable[int], seeds: Iterable[int], data: Path | None
) -> Rows:
    """Train with all settings of a rival, a row per seed; then with the best one, by other seeds."""
    starts = grid(TUNED[contestant])

    def rows_of(setting: str, seeds: Iterable[int]) -> Rows:
        named = {"condition": condition, "contestant": contestant, "setting": setting}
        return [
            {**named, "seed": seed, **run(condition, starts[setting], part, seed, data)} for seed in seeds
        ]  # fmt: skip

    tried = {setting: rows_of(setting, chosen_by) for setting in starts}
    best = max(tried, key=lambda setting: statistics.fmean(row["score"] for row in tried[setting]))
    return [row for rows in tried.values() for row in rows] + rows_of(best, seeds)


def experiments(settings: Settings, data: Path | None) -> list[Experiment]:
    """List all experiments: first those with nothing to choose, condition by condition; then the tuned ones."""
    listed = [Experiment(f"stability {name}", 0.1, partial(stability, name)) for name in OURS]
    for condition in settings.conditions:
        for name in DEFAULTS:
            if condition in SLOW.get(name, ()):
                continue
            measure = partial(judge, condition, name, settings.part, settings.seeds, data)
            listed.append(Experiment(run_name(condition, name), _cost(name) * len(settings.seeds), measure))
    for condition in settings.conditions:
        for name, of in TUNED.items():
            measure = partial(
                tune_and_judge, condition, name, settings.part, settings.chosen_by, settings.seeds, data
            )  # fmt: skip
            runs = len(settings.seeds) + len(grid(of)) * len(settings.chosen_by)
            listed.append(Experiment(run_name(condition, name), _cost(of) * runs, measure))
    return listed


def _cost(contestant: str) -> float:
    return {"sinkhorn": 8.0, "coordinate descent": 4.0, "gumbel": 3.0, "iterative": 2.0}.get(contestant, 1.0)


def run_name(condition: str, contestant: str) -> str:
    """Name the runs of a contestant under a condition."""
    return f"run {condition}: {contestant}"


def is_wanted(experiment: str, conditions: Collection[str], contestants: Collection[str]) -> bool:
    """Whether an experiment belongs to these conditions and contestants; to all, if there are none."""
    kind, name = experiment.split(" ", 1)
    condition, _, contestant = name.rpartition(": ")
    fits = not contestants or contestant in contestants
    return fits and (kind == "stability" or not conditions or condition in conditions)


# The fields of the rows of each kind of experiment.
FIELDS: dict[str, dict[str, type | UnionType]] = {
    "stability": {"contestant": str, "field": str, "mean": float, "largest": float},
    "run": {
        "condition": str, "contestant": str, "setting": str, "seed": int, "chance": float, "score": float,
        "soft": float | None,
    },
}  # fmt: skip


def is_complete(name: str, rows: Rows) -> bool:
    """Whether these are the rows of the experiment with this name."""
    kind = name.split()[0]
    if kind not in FIELDS or not rows_match(rows, FIELDS[kind]):
        return False
    if kind == "stability":
        return all(name == f"stability {row['contestant']}" for row in rows)
    return all(name == run_name(row["condition"], row["contestant"]) for row in rows)
