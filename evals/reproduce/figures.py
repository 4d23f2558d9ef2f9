"""The paper's figures and ours, drawn from recorded results.

Lines differ by marker and dash as well as by color, so that they can be read in black and white.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MultipleLocator

from evals.reproduce.claims import best_runs, quality_by_rounds
from evals.reproduce.experiments import PANELS
from evals.reproduce.published import published
from harness.figures import add_grid, add_legend, log2_axis
from harness.journal import Journal, Rows

# Color, dash, marker.
STYLES = {
    "halving": ("#b5442b", "-", "^"),
    "round by round": ("#b5442b", ":", "2"),
    "Relative(4)": ("#1f5fbf", "-", "o"),
    "Relative(16)": ("#0d2f66", "--", "s"),
    "Fixed(100)": ("#c58a1c", "-.", "D"),
    "iterative": ("#5a5f66", "-", "x"),
    "iterative, peaked": ("#5a5f66", ":", "+"),
    "hard": ("#111111", "--", "|"),
    "hard, gated": ("#111111", "--", "|"),
    "pairing: fold": ("#1f5fbf", "-", "o"),
    "pairing: adjacent": ("#b5442b", "--", "^"),
    "pairing: random": ("#5a5f66", ":", "x"),
}
LABELS = {
    "halving": "halving, Power(20)",
    "round by round": "the same, round by round",
    "Relative(4)": "Relative(4), our default",
    "iterative": "iterative, plain",
    "hard": "hard: torch.topk + gather",
}


def label(name: str) -> str:
    """Name a method in legends and tables."""
    return LABELS.get(name, name)


def panels(rows: Rows, methods: Iterable[str], field: str, theirs: str | None) -> Figure:
    """Draw some quantity over n, a panel for each k, as in the paper. ``theirs``: the published results to show."""
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    known = published()
    for axis, k in zip(axes.flat, PANELS, strict=True):
        axis.set_title(f"k = {k}")
        log2_axis(axis, LogLocator(base=2, numticks=6))
        add_grid(axis)
        if theirs:
            for method, marker in (("halving", "^"), ("iterative", "X")):
                points = sorted(
                    (n, getattr(each, theirs)) for (m, n, size), each in known.items() if (m, size) == (method, k)
                )
                axis.plot(
                    *zip(*points, strict=True),
                    linestyle="none",
                    marker=marker,
                    markersize=8,
                    markerfacecolor="#d8dade",
                    markeredgecolor="#aeb2b9",
                    label=f"published: {method}",
                    zorder=1,
                )
        for method in methods:
            draw(axis, method, [(row["n"], row[field]) for row in rows if (row["method"], row["k"]) == (method, k)])
    for axis in axes[-1]:
        axis.set_xlabel("n")
    add_legend(figure, axes.flat[0])
    return figure


def draw(axis: Axes, name: str, points: list[tuple[float, float]]) -> None:
    """Draw the line of a method."""
    color, dash, marker = STYLES[name]
    if points:
        x, y = zip(*sorted(points), strict=True)
        axis.plot(x, y, linestyle=dash, color=color, marker=marker, label=label(name), zorder=2)


def quality(results: Journal) -> Figure:
    """Draw nCCS over n, a panel for each k."""
    methods = ("halving", "Relative(4)", "Relative(16)", "iterative")
    figure = panels(results.of("cell"), methods, "nccs", "nccs")
    for axis in figure.axes:
        axis.set_ylim(-0.04, 1.03)
        axis.yaxis.set_major_locator(MultipleLocator(0.25))
    figure.supylabel("nCCS", fontsize=8)
    return figure


def _time(results: Journal, field: str, methods: Iterable[str], theirs: str | None, text: str) -> Figure:
    figure = panels(results.of("cell"), methods, field, theirs)
    for axis in figure.axes:
        axis.set_yscale("log")
        axis.minorticks_off()
    figure.supylabel(text, fontsize=8)
    return figure


TIMED = ("halving", "round by round", "Relative(4)", "iterative", "iterative, peaked", "hard")


def seconds(results: Journal) -> Figure:
    """Draw the time of a forward pass over n, a panel for each k."""
    return _time(results, "seconds", TIMED, "seconds", "seconds a batch of 16, forward")


def seconds_with_backward(results: Journal) -> Figure:
    """Draw the time with backward over n, a panel for each k. (The paper has no such figure.)"""
    return _time(results, "seconds_with_backward", TIMED, None, "seconds a batch of 16, forward and backward")


def rounds(results: Journal) -> Figure:
    """Draw mean nCCS over the number of rounds, for fixed and relative boosts."""
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axis = figure.subplots()
    cells = results.of("cell")
    for method in ("Relative(16)", "Relative(4)", "Fixed(100)", "halving"):
        draw(axis, method, list(quality_by_rounds(cells, method).items()))
    axis.set_ylim(0, 1.03)
    axis.set_xlabel("rounds")
    axis.set_ylabel("mean nCCS over the cells with so many rounds")
    add_grid(axis)
    axis.legend(frameon=False, loc="lower left")
    return figure


def learning(results: Journal) -> Figure:
    """Draw recall and loss of a hard selection while a scorer is trained through each method, by k; and by pairing."""
    runs = results.of("training")
    figure = Figure(figsize=(7.6, 4.8), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey="row")
    methods = ("halving", "Relative(4)", "Relative(16)", "iterative", "iterative, peaked", "hard, gated")
    pairings = ("pairing: fold", "pairing: adjacent", "pairing: random")
    columns = ((8, methods, "k = 8"), (64, methods, "k = 64"), (8, pairings, "k = 8, by pairing"))
    for column, (k, names, title) in enumerate(columns):
        for name in names:
            best = best_runs(runs, name, k)
            for axis, field in zip(axes[:, column], ("recall", "loss"), strict=True):
                by_step: dict[int, list[float]] = {}
                for row in best:
                    by_step.setdefault(row["step"], []).append(row[field])
                draw(axis, name, [(step, statistics.fmean(found)) for step, found in by_step.items()])
        axes[0, column].set_title(title)
        axes[1, column].set_xlabel("steps")
        axes[1, column].set_yscale("log")
    for axis in axes.flat:
        add_grid(axis)
    axes[0, 0].set_ylabel("recall, mean over seeds")
    axes[1, 0].set_ylabel("loss, mean over seeds")
    add_legend(figure, axes[0, 0], axes[0, 2])
    return figure


FIGURES: dict[str, Callable[[Journal], Figure]] = {
    "time": seconds,
    "quality": quality,
    "backward": seconds_with_backward,
    "rounds": rounds,
    "learning": learning,
}
