"""Figures in one style, saved as PNG files that depend on their content alone."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from harness.journal import Journal, write_file

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "lines.markersize": 4,
    "lines.linewidth": 1.2,
}
GRID_COLOR = "#e4e6ea"


def figure_style() -> AbstractContextManager[None]:
    """Use our style instead of the user's own matplotlib settings."""
    return style.context(STYLE, after_reset=True)


def add_grid(axis: Axes) -> None:
    """Draw light grid lines."""
    axis.grid(color=GRID_COLOR, linewidth=0.6)


def log2_axis(axis: Axes, locator: LogLocator) -> None:
    """Make x logarithmic, with whole numbers at its ticks."""
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:.0f}"))


def add_legend(figure: Figure, *axes: Axes) -> None:
    """Draw one legend for all panels below them, with the lines of these."""
    handles = [handle for axis in axes for handle in axis.get_legend_handles_labels()[0]]
    figure.legend(
        handles, [str(each.get_label()) for each in handles], loc="outside lower center", ncols=4, frameon=False
    )


def draw_all(figures: Mapping[str, Callable[[Journal], Figure]], results: Journal, folder: Path) -> None:
    """Draw each figure from the results and save it as ``folder``/name.png."""
    folder.mkdir(parents=True, exist_ok=True)
    with figure_style():
        for name, draw in figures.items():
            write_file(folder / f"{name}.png", png(draw(results)))


def png(figure: Figure) -> bytes:
    """Render a figure; without the version of matplotlib, so that the same figure gives the same bytes."""
    figure.draw_without_rendering()  # the layout settles at the second drawing
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120, metadata={"Software": None})
    return file.getvalue()
