"""The figure of the learning program, drawn from recorded results."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from evals.arena.figures import heatmap
from evals.learning.claims import Outcome
from harness.journal import Journal


def shares(results: Journal) -> Figure:
    """Draw the mean of every contestant under every condition, above chance, as a share of the best."""
    outcome, figure = Outcome(results), Figure(layout="constrained")
    table = {
        condition: {name: float("nan") if share is None else share for name, share in found.items()}
        for condition in outcome.conditions
        for found in [{name: outcome.share(condition, name) for name in outcome.contestants}]
    }
    heatmap(figure, figure.subplots(), table)
    return figure


FIGURES: dict[str, Callable[[Journal], Figure]] = {"shares": shares}
