"""What the arena's results say, in figures that the page and its pictures share."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from knockout.eval.arena.contestants import CONTESTANTS, SOFT
from knockout.eval.arena.learning import best
from knockout.eval.journal import Journal, Rows

US = "knockout"


class Fastest(NamedTuple):
    """Of the cells with n >= 1024, those in which some soft method was faster than ours, and by how much."""

    cells: int
    beaten: list[tuple[int, int, str, float]]  # n, k, by whom, our time over theirs


def fastest(rows: Rows, field: str) -> Fastest:
    """By one kind of time."""
    cells = sorted({(row["n"], row["k"]) for row in rows if row["n"] >= 1024})
    beaten = []
    for n, k in cells:
        taken = {row["method"]: row[field] for row in rows if (row["n"], row["k"]) == (n, k) and row[field] is not None}
        other = min((name for name in SOFT if name != US and name in taken), key=taken.__getitem__, default=None)
        ours = taken.get(US, math.inf)  # infinite if it was stopped
        if other is not None and taken[other] < ours:
            beaten.append((n, k, other, ours / taken[other]))
    return Fastest(len(cells), beaten)


def scores(rows: Rows, task: str, name: str) -> list[float]:
    """Of a method's best setting in a task, a number a seed."""
    return [row["score"] for row in best(rows, task, name)]


# Of Student's t, by degrees of freedom from 1 on: beyond it lie 5 %, on both sides together.
T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


def clearly(more: list[float], less: list[float]) -> bool | None:
    """Whether one is above another, seed by seed: by a t-test of the differences at 5 %; None if that is open."""
    differences = [one - other for one, other in zip(more, less, strict=True)]
    if len(differences) < 2:
        return None
    mean, error = statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
    return None if abs(mean) <= T[min(len(differences) - 2, len(T) - 1)] * error else mean > 0


class Standing(NamedTuple):
    """How a method does in a task with its best setting."""

    method: str
    scores: list[float]
    setting: str
    better: bool | None  # whether it is clearly above ours; None if that is open


def standings(rows: Rows, task: str) -> list[Standing]:
    """All methods, the best one first."""
    ours = scores(rows, task, US)
    found = []
    for name in CONTESTANTS:
        mine = best(rows, task, name)
        if mine:
            setting = f"{mine[0]['temperature']:g}" + (", annealed" if mine[0]["annealed"] else "")
            each = [row["score"] for row in mine]
            found.append(Standing(name, each, setting, clearly(each, ours) if name != US else None))
    return sorted(found, key=lambda each: -statistics.fmean(each.scores))


def learned(rows: Rows, name: str) -> float:
    """The mean over tasks of a method's best mean score, as a share of the best method's."""
    shares = []
    for task in dict.fromkeys(row["task"] for row in rows):
        means = {each.method: statistics.fmean(each.scores) for each in standings(rows, task)}
        shares.append(means[name] / max(means.values()))
    return statistics.fmean(shares)


def mass(rows: Rows, name: str) -> float:
    """The mean over distributions of the mass on the true top k, at a method's default temperature."""
    default = CONTESTANTS[name].default
    return statistics.fmean(r["mass"] for r in rows if r["method"] == name and r["temperature"] == default)


def typical_cell(rows: Rows) -> tuple[int, int]:
    """The one that stands for the cost of a method: n = 4096, k = 64, or the largest that everybody could do."""
    cells = sorted({(row["n"], row["k"]) for row in rows})
    able = [cell for cell in cells if all(row["seconds"] is not None for row in rows if (row["n"], row["k"]) == cell)]
    return (4096, 64) if (4096, 64) in able else max(able, key=math.prod, default=cells[0])


def seconds(rows: Rows, cell: tuple[int, int]) -> dict[str, float]:
    """With backward, in one cell, of those who could."""
    return {
        row["method"]: row["seconds_with_backward"]
        for row in rows
        if (row["n"], row["k"]) == cell and row["seconds_with_backward"] is not None
    }


def by_rule(results: Journal) -> dict[str, dict[str, list[float]]]:
    """The scores of each rule of the study of boosts, by condition."""
    settings, found = results.header["settings"], dict[str, dict[str, list[float]]]()
    for rule in settings["rules"]:  # in their order, whoever was done first
        found[rule] = {condition: [] for condition in settings["conditions"]}
    for row in results.of("boost"):
        found[row["rule"]][row["condition"]].append(row["score"])
    return found
