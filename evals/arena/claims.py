"""What the results say about our method beside the others: whether it is the fastest, and what learns better."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from evals.arena.methods import METHODS, OURS, SOFT
from harness.journal import Journal, Rows


class Fastest(NamedTuple):
    """The number of cells with n >= 1024, and those in which another soft method was faster than ours."""

    cells: int
    slower: list[tuple[int, int, str, float]]  # n, k, the fastest other method, our time over its time


def fastest(rows: Rows, field: str) -> Fastest:
    """Compare one kind of time."""
    cells = sorted({(row["n"], row["k"]) for row in rows if row["n"] >= 1024})
    slower = []
    for n, k in cells:
        taken = {row["method"]: row[field] for row in rows if (row["n"], row["k"]) == (n, k) and row[field] is not None}
        other = min((name for name in SOFT if name != OURS and name in taken), key=taken.__getitem__, default=None)
        ours = taken.get(OURS, math.inf)  # infinite if it exceeded a limit
        if other is not None and taken[other] < ours:
            slower.append((n, k, other, ours / taken[other]))
    return Fastest(len(cells), slower)


def best_setting(rows: Rows, task: str, name: str) -> Rows:
    """Select the rows of a method's setting with the highest mean score in a task."""
    settings: dict[tuple[float, bool], Rows] = {}
    for row in rows:
        if (row["task"], row["method"]) == (task, name):
            settings.setdefault((row["temperature"], row["annealed"]), []).append(row)
    return max(settings.values(), key=lambda each: statistics.fmean(row["score"] for row in each), default=[])


# Two-sided 5 % quantiles of Student's t, by degrees of freedom from 1 on.
T_QUANTILES = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


def clearly_above(more: list[float], less: list[float]) -> bool | None:
    """Whether one method is above another, by a paired t-test over seeds at 5 %; None if neither is."""
    differences = [one - other for one, other in zip(more, less, strict=True)]
    if len(differences) < 2:
        return None
    mean, error = statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
    return None if abs(mean) <= T_QUANTILES[min(len(differences) - 2, len(T_QUANTILES) - 1)] * error else mean > 0


class Standing(NamedTuple):
    """The result of a method in a task with its best setting."""

    method: str
    scores: list[float]
    setting: str
    better: bool | None  # whether it is clearly above ours; None if neither is


def standings(rows: Rows, task: str) -> list[Standing]:
    """Rank all methods in a task, the best one first."""
    ours = [row["score"] for row in best_setting(rows, task, OURS)]
    found = []
    for name in METHODS:
        mine = best_setting(rows, task, name)
        if mine:
            setting = f"{mine[0]['temperature']:g}" + (", annealed" if mine[0]["annealed"] else "")
            each = [row["score"] for row in mine]
            found.append(Standing(name, each, setting, clearly_above(each, ours) if name != OURS else None))
    return sorted(found, key=lambda each: -statistics.fmean(each.scores))


def relative_score(rows: Rows, name: str) -> float:
    """Average over tasks the mean score of a method's best setting, relative to that of the best method."""
    shares = []
    for task in dict.fromkeys(row["task"] for row in rows):
        means = {each.method: statistics.fmean(each.scores) for each in standings(rows, task)}
        shares.append(means[name] / max(means.values()))
    return statistics.fmean(shares)


def mean_mass(rows: Rows, name: str) -> float:
    """Average over distributions the mass on the true top k, at a method's default temperature."""
    default = METHODS[name].default
    return statistics.fmean(r["mass"] for r in rows if r["method"] == name and r["temperature"] == default)


def typical_cell(rows: Rows) -> tuple[int, int]:
    """Choose the cell whose cost is shown: n = 4096, k = 64, or the largest that all methods completed."""
    cells = sorted({(row["n"], row["k"]) for row in rows})
    completed = [
        cell for cell in cells if all(row["seconds"] is not None for row in rows if (row["n"], row["k"]) == cell)
    ]
    return (4096, 64) if (4096, 64) in completed else max(completed, key=math.prod, default=cells[0])


def seconds_in(cell: tuple[int, int], rows: Rows) -> dict[str, float]:
    """Select the seconds with backward in one cell, of the methods that completed it."""
    return {
        row["method"]: row["seconds_with_backward"]
        for row in rows
        if (row["n"], row["k"]) == cell and row["seconds_with_backward"] is not None
    }


def findings(results: Journal) -> list[str]:
    """Say in which cells our method is the fastest, and what learns better."""
    lines = []
    for field, text in (("seconds", "forward"), ("seconds_with_backward", "forward and backward")):
        found = fastest(results.of("cost"), field)
        slower = "; ".join(f"n = {n}, k = {k}: {name}, {ratio:.2f} x" for n, k, name, ratio in found.slower)
        lines.append(
            f"Of the {found.cells} cells with n of 1024 and more, knockout is the fastest soft method, {text}, in "
            f"{found.cells - len(found.slower)}." + (f" It is slower than others at {slower}." if slower else "")
        )
    rows = results.of("learning") if results.header["settings"]["program"] == "full" else []
    for task in dict.fromkeys(row["task"] for row in rows):
        order = standings(rows, task)
        ours = next(each for each in order if each.method == OURS)
        better = [f"{each.method} ({statistics.fmean(each.scores):.3f})" for each in order if each.better]
        worse = sum(each.better is False for each in order)
        lines.append(
            f"Learning, {task}: knockout {statistics.fmean(ours.scores):.3f}, place {order.index(ours) + 1} of "
            f"{len(order)}; clearly better than {worse} methods, "
            + (f"clearly worse than {', '.join(better)}." if better else "clearly worse than none.")
        )
    return lines
