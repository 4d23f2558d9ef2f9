"""What the arena's results say, in figures that the page and its pictures share."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from knockout.eval.arena.contestants import CONTESTANTS, SOFT
from knockout.eval.arena.learning import best
from knockout.eval.claims import clearly
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
        if other is not None and taken[other] < taken[US]:
            beaten.append((n, k, other, taken[US] / taken[other]))
    return Fastest(len(cells), beaten)


def scores(rows: Rows, task: str, name: str) -> list[float]:
    """Of a method's best setting in a task, a number a seed."""
    return [row["score"] for row in best(rows, task, name)]


class Standing(NamedTuple):
    """How a method does in a task with its best setting."""

    method: str
    scores: list[float]
    setting: str
    better: bool | None  # whether it is above ours, by two standard errors of the difference; None if that is open


def standings(rows: Rows, task: str) -> list[Standing]:
    """All methods, the best one first."""
    ours = scores(rows, task, US)
    found = []
    for name in CONTESTANTS:
        mine = best(rows, task, name)
        if mine:
            setting = f"{mine[0]['temperature']:g}" + (", annealed" if mine[0]["annealed"] else "")
            each = [row["score"] for row in mine]
            found.append(Standing(name, each, setting, clearly(each, ours) if name != US and len(each) > 1 else None))
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
    found: dict[str, dict[str, list[float]]] = {}
    for row in results.of("boost"):
        found.setdefault(row["rule"], {}).setdefault(row["condition"], []).append(row["score"])
    return found
