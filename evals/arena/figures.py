"""The figures of the arena, drawn from recorded results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from evals.arena import claims
from evals.arena.cost import MEASURED
from evals.arena.fidelity import DISTRIBUTIONS
from evals.arena.methods import HARD_CHOICE, KNOCKOUT, MASKS, METHODS, OURS, SLOTS
from harness.figures import add_grid, add_legend, log2_axis
from harness.journal import Journal, Rows

COLORS = {KNOCKOUT: "#1f5fbf", SLOTS: "#b5442b", MASKS: "#2b8a57", HARD_CHOICE: "#5a5f66", "": "#111111"}
MARKERS = "osD^vXP*h"
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 2)))


def style(name: str) -> dict[str, object]:
    """Style the line of a method: the color is that of its family, marker and dash differ within it."""
    family = MEASURED[name].family
    place = [each for each, method in MEASURED.items() if method.family == family].index(name)
    width = 2.2 if name == OURS else 1.0
    return {
        "color": COLORS[family], "marker": MARKERS[place], "linestyle": DASHES[place % len(DASHES)],
        "linewidth": width, "zorder": 3 if name == OURS else 2,
    }  # fmt: skip


def over_n(rows: Rows, field: str, text: str) -> Figure:
    """Draw some cost over n, a panel for each k, without the cells in which a method exceeded a limit."""
    sizes = sorted({row["k"] for row in rows})
    figure = Figure(figsize=(2.6 * max(2, len(sizes)), 4.6), layout="constrained")
    axes = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axis, k in zip(axes, sizes, strict=True):
        axis.set_title(f"k = {k}")
        for name in MEASURED:
            points = sorted(
                (row["n"], row[field]) for row in rows if (row["method"], row["k"]) == (name, k) and row[field]
            )
            if points:
                axis.plot(*zip(*points, strict=True), label=name, **style(name))
        axis.set_yscale("log")
        log2_axis(axis, LogLocator(base=4))
        add_grid(axis)
        axis.set_xlabel("n")
    axes[0].set_ylabel(text)
    add_legend(figure, axes[0])
    return figure


def cost(results: Journal) -> Figure:
    """Draw seconds with backward over n."""
    return over_n(results.of("cost"), "seconds_with_backward", "seconds a batch of 16, forward and backward")


def memory(results: Journal) -> Figure:
    """Draw MiB of a call over n."""
    return over_n(results.of("cost"), "mebibytes", "MiB that a call with backward adds")


def heatmap(figure: Figure, axis: Axes, table: Mapping[str, Mapping[str, float]], digits: int = 2) -> None:
    """Draw a table of numbers from 0 to 1, with row and column names, as colors and digits."""
    columns = list(dict.fromkeys(column for row in table.values() for column in row))
    numbers = [[row.get(column, float("nan")) for column in columns] for row in table.values()]
    axis.imshow(numbers, cmap="Blues", vmin=0.0, vmax=1.25, aspect="auto")
    for i, row in enumerate(numbers):
        for j, number in enumerate(row):
            if number == number:
                axis.text(
                    j, i, f"{number:.{digits}f}".lstrip("0"), ha="center", va="center", fontsize=7,
                    color="white" if number > 0.75 else "#16325c",
                )  # fmt: skip
    axis.set_xticks(range(len(columns)), columns, rotation=35, ha="right")
    axis.set_yticks(range(len(table)), list(table))
    axis.tick_params(length=0)
    figure.set_size_inches(2.4 + 0.62 * len(columns), 1.4 + 0.26 * len(table))


def fidelity(results: Journal) -> Figure:
    """Draw the mass on the true top k by distribution."""
    rows = results.of("fidelity")
    figure = Figure(layout="constrained")
    default = {
        (row["method"], row["distribution"]): row["mass"]
        for row in rows
        if row["temperature"] == METHODS[row["method"]].default
    }
    table = {name: {kind: default[name, kind] for kind in DISTRIBUTIONS if (name, kind) in default} for name in METHODS}
    heatmap(figure, figure.subplots(), table)
    return figure


def scales(results: Journal) -> Figure:
    """Draw the mass on the true top k, and the share of candidates with a usable gradient, over the scale of scores."""
    rows = results.of("scales")
    figure = Figure(figsize=(7.8, 4.4), layout="constrained")
    axes = figure.subplots(1, 2)
    for name in METHODS:
        mine = [row for row in rows if row["method"] == name]
        where = [row["scale"] for row in mine]
        axes[0].plot(where, [row["mass"] for row in mine], label=name, **style(name))
        axes[1].plot(where, [max(row["rows"], row["mask"], 1e-4) for row in mine], label=name, **style(name))
    axes[1].set_yscale("log")
    axes[0].set_ylabel("mass on the true top k")
    axes[1].set_ylabel("share of candidates with a usable gradient")
    for axis in axes:
        axis.set_xscale("log")
        axis.set_xlabel("scale of the scores")
        add_grid(axis)
    add_legend(figure, axes[0])
    return figure


def learning(results: Journal) -> Figure:
    """Draw every method's best setting in each task: mean and standard deviation over seeds, and every seed."""
    rows = results.of("learning")
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure = Figure(figsize=(2.9 * max(2, len(tasks)), 3.6), layout="constrained")
    axes = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axis, task in zip(axes, tasks, strict=True):
        order = claims.standings(rows, task)[::-1]
        for place, each in enumerate(order):
            look = style(each.method)
            spread = statistics.stdev(each.scores) if len(each.scores) > 1 else 0.0
            axis.errorbar(
                statistics.fmean(each.scores), place, xerr=spread, fmt=look["marker"], color=look["color"], capsize=2
            )
            axis.plot(each.scores, [place] * len(each.scores), "|", color=look["color"], alpha=0.6)
        axis.set_yticks(range(len(order)), [each.method for each in order])
        axis.set_title(task)
        add_grid(axis)
    return figure


def pareto(results: Journal) -> Figure:
    """Draw fidelity and learning over cost: up and to the left is better."""
    taken, rows = results.of("cost"), results.of("learning")
    cell = claims.typical_cell(taken)
    seconds = claims.seconds_in(cell, taken)
    figure = Figure(figsize=(8.2, 3.8), layout="constrained")
    axes = figure.subplots(1, 2)
    panels: tuple[tuple[str, Callable[[str], float]], ...] = (
        (
            "mass on the true top k, mean over distributions",
            lambda name: claims.mean_mass(results.of("fidelity"), name),
        ),
        ("learning: share of the best, mean over tasks", lambda name: claims.relative_score(rows, name)),
    )
    for axis, (text, height) in zip(axes, panels, strict=True):
        shown = sorted((name for name in METHODS if name in seconds), key=seconds.__getitem__)
        for place, name in enumerate(shown):
            look, at = style(name), (1e3 * seconds[name], height(name))
            axis.plot(*at, marker=look["marker"], color=look["color"], linestyle="none")
            # Above and below in turn, so that neighboring labels do not overlap.
            beside = (4, 3 if place % 2 else -9)
            axis.annotate(name, at, xytext=beside, textcoords="offset points", fontsize=6, color=look["color"])
        axis.set_xscale("log")
        axis.set_xlabel(f"ms, forward and backward, n = {cell[0]}, k = {cell[1]}")
        axis.set_ylabel(text)
        add_grid(axis)
    return figure


FIGURES: dict[str, Callable[[Journal], Figure]] = {
    "cost": cost,
    "memory": memory,
    "fidelity": fidelity,
    "scales": scales,
    "learning": learning,
    "pareto": pareto,
}
