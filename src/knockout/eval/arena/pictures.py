"""The arena's pictures, drawn from results alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from knockout.eval.arena import verdicts
from knockout.eval.arena.contestants import COMMON, CONTESTANTS, KNOCKOUT, MASKS, SLOTS
from knockout.eval.arena.cost import HARD
from knockout.eval.arena.fidelity import DISTRIBUTIONS
from knockout.eval.figures import legend
from knockout.eval.journal import Journal, Rows

COLOURS = {KNOCKOUT: "#1f5fbf", SLOTS: "#b5442b", MASKS: "#2b8a57", COMMON: "#5a5f66", "": "#111111"}
MARKERS = "osD^vXP*h"
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 2)))
GRID = "#e4e6ea"


def style(name: str) -> dict[str, object]:
    """A family has a colour, a method within it a marker and a dash."""
    family = CONTESTANTS[name].family if name in CONTESTANTS else ""
    place = [each for each, who in CONTESTANTS.items() if who.family == family].index(name) if family else 0
    width = 2.2 if name == verdicts.US else 1.0
    return {
        "color": COLOURS[family], "marker": MARKERS[place], "linestyle": DASHES[place % len(DASHES)],
        "linewidth": width, "zorder": 3 if name == verdicts.US else 2,
    }  # fmt: skip


def over_n(rows: Rows, field: str, text: str) -> Figure:
    """Some cost over n, a panel for each k; a method that could not is missing there, and named in the table."""
    sizes = sorted({row["k"] for row in rows})
    figure = Figure(figsize=(2.6 * max(2, len(sizes)), 4.6), layout="constrained")
    axes = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axis, k in zip(axes, sizes, strict=True):
        axis.set_title(f"k = {k}")
        for name in (HARD, *CONTESTANTS):
            points = sorted(
                (row["n"], row[field]) for row in rows if (row["method"], row["k"]) == (name, k) and row[field]
            )
            if points:
                axis.plot(*zip(*points, strict=True), label=name, **style(name))
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.xaxis.set_major_locator(LogLocator(base=4))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:.0f}"))
        axis.grid(color=GRID, linewidth=0.6)
        axis.set_xlabel("n")
    axes[0].set_ylabel(text)
    legend(figure, axes[0])
    return figure


def cost(results: Journal) -> Figure:
    """Seconds with backward."""
    return over_n(results.of("cost"), "seconds_with_backward", "seconds a batch of 16, forward and backward")


def memory(results: Journal) -> Figure:
    """MiB of a call."""
    return over_n(results.of("cost"), "mebibytes", "MiB that a call with backward adds")


def heatmap(figure: Figure, axis: Axes, table: Mapping[str, Mapping[str, float]], digits: int = 2) -> None:
    """Rows and columns by name, shares from 0 to 1 written into them."""
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
    """Mass on the true top k, by distribution."""
    rows = results.of("fidelity")
    figure = Figure(layout="constrained")
    default = {(r["method"], r["distribution"]): r["mass"] for r in rows if r["temperature"] == _default(r["method"])}
    table = {
        name: {kind: default[name, kind] for kind in DISTRIBUTIONS if (name, kind) in default} for name in CONTESTANTS
    }
    heatmap(figure, figure.subplots(), table)
    return figure


def _default(name: str) -> float:
    return CONTESTANTS[name].default


def scales(results: Journal) -> Figure:
    """Mass on the true top k, and the share of candidates with a usable gradient, over the scale of the scores."""
    rows = results.of("scales")
    figure = Figure(figsize=(7.8, 4.4), layout="constrained")
    axes = figure.subplots(1, 2)
    for name in CONTESTANTS:
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
        axis.grid(color=GRID, linewidth=0.6)
    legend(figure, axes[0])
    return figure


def learning(results: Journal) -> Figure:
    """Every method's best setting in each task: mean and standard deviation over seeds, and every seed."""
    rows = results.of("learning")
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure = Figure(figsize=(2.9 * max(2, len(tasks)), 3.6), layout="constrained")
    axes = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axis, task in zip(axes, tasks, strict=True):
        order = verdicts.standings(rows, task)[::-1]
        for place, each in enumerate(order):
            look = style(each.method)
            spread = statistics.stdev(each.scores) if len(each.scores) > 1 else 0.0
            axis.errorbar(
                statistics.fmean(each.scores), place, xerr=spread, fmt=look["marker"], color=look["color"], capsize=2
            )
            axis.plot(each.scores, [place] * len(each.scores), "|", color=look["color"], alpha=0.6)
        axis.set_yticks(range(len(order)), [each.method for each in order])
        axis.set_title(task)
        axis.grid(color=GRID, linewidth=0.6)
    return figure


def pareto(results: Journal) -> Figure:
    """Cost against fidelity, and against learning: up and to the left is better."""
    taken, rows = results.of("cost"), results.of("learning")
    cell = verdicts.typical_cell(taken)
    seconds = verdicts.seconds(taken, cell)
    figure = Figure(figsize=(8.2, 3.8), layout="constrained")
    axes = figure.subplots(1, 2)
    panels: tuple[tuple[str, Callable[[str], float]], ...] = (
        ("mass on the true top k, mean over distributions", lambda name: verdicts.mass(results.of("fidelity"), name)),
        ("learning: share of the best, mean over tasks", lambda name: verdicts.learned(rows, name)),
    )
    for axis, (text, height) in zip(axes, panels, strict=True):
        shown = sorted((name for name in CONTESTANTS if name in seconds), key=seconds.__getitem__)
        for place, name in enumerate(shown):
            look, at = style(name), (1e3 * seconds[name], height(name))
            axis.plot(*at, marker=look["marker"], color=look["color"], linestyle="none")
            # Above and below in turn, so that neighbours can be told apart.
            beside = (4, 3 if place % 2 else -9)
            axis.annotate(name, at, xytext=beside, textcoords="offset points", fontsize=6, color=look["color"])
        axis.set_xscale("log")
        axis.set_xlabel(f"ms, forward and backward, n = {cell[0]}, k = {cell[1]}")
        axis.set_ylabel(text)
        axis.grid(color=GRID, linewidth=0.6)
    return figure


def boosts(results: Journal) -> Figure:
    """The mean score of each rule under each condition."""
    figure = Figure(layout="constrained")
    means = {
        rule: {condition: statistics.fmean(each) for condition, each in by.items()}
        for rule, by in verdicts.by_rule(results).items()
    }
    heatmap(figure, figure.subplots(), means)
    return figure


PICTURES: dict[str, Callable[[Journal], Figure]] = {
    "cost": cost,
    "memory": memory,
    "fidelity": fidelity,
    "scales": scales,
    "learning": learning,
    "pareto": pareto,
    "boosts": boosts,
}
