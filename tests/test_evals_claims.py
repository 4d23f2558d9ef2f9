"""Claims and figures of ``evals reproduce``, from made-up results whose verdicts are known."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.lines import Line2D

from evals.reproduce.claims import FAILS, HOLDS, PARTLY, UNKNOWN, claims, clearly_above
from evals.reproduce.experiments import PANELS
from evals.reproduce.figures import FIGURES
from evals.reproduce.grid import CELLS, METHODS
from evals.reproduce.published import published
from harness.figures import draw_all, figure_style, png
from harness.journal import Journal, Rows
from knockout.ops.reference.tournament import rounds_of

QUALITY = {"halving": -0.07, "Fixed(100)": -0.05, "iterative": None}  # change per round; None: low everywhere
SECONDS = {"round by round": -0.1, "halving": -0.1, "Relative(4)": -0.1}  # change with log k; all others get slower


def cell(method: str, n: int, k: int) -> dict[str, Any]:
    rounds = rounds_of(n, k)
    slope = QUALITY.get(method, 0.0)
    time_slope = SECONDS.get(method, 0.2)
    return {
        "method": method,
        "n": n,
        "k": k,
        "rounds": rounds,
        "nccs": 0.05 if slope is None else 0.98 + slope * rounds,
        "nccs_std": 0.01,
        "batches": 4,
        "seconds": 1e-6 * n * k**time_slope,
        "seconds_with_backward": 3e-6 * n * k**time_slope,
    }


def training(layer: str, k: int, recall: float, loss: float) -> Rows:
    run = {"layer": layer, "k": k, "chain": 5, "rate": 0.1}
    return [
        {**run, "seed": seed, "step": step, "recall": recall * step / 8, "loss": loss + seed / 1e3}
        for seed in range(3)
        for step in (0, 4, 8)
    ]


def results() -> dict[str, Rows]:
    made: dict[str, Rows] = {f"cell n={n} k={k}": [cell(method, n, k) for method in METHODS] for n, k in CELLS}
    made["rounds"] = [{"n": 16, "k": 3, "played": 3, "said": 3, "rounds": 3}]
    made["sorting a"] = [{"n": 64, "k": 8, "batch": 1, "d": 32, "seconds": 1.0, "seconds_sorting": 0.05}]
    made["pairing a"] = [
        {"pairing": name, "boost": "Relative(4)", "n": 64, "k": 8, "nccs": nccs, "batches": 2}
        for name, nccs in (("fold", 0.9), ("adjacent", 0.3), ("random", 0.5))
    ]
    for k in (8, 64):
        made[f"training k={k}"] = [
            *training("halving", k, 0.9, 0.1),
            *training("Relative(4)", k, 0.9, 0.1),
            *training("iterative", k, 0.8, 0.2),
        ]
    for name, recall in (("fold", 0.9), ("adjacent", 0.5), ("random", 0.6)):
        made[f"training pairing {name}"] = training(f"pairing: {name}", 8, recall, 0.1)
    return made


def journal(made: dict[str, Rows]) -> Journal:
    return Journal(Path("nowhere"), {"settings": {"batches": 4}, "environment": {}}, made)


def verdicts(made: dict[str, Rows]) -> list[str]:
    return [claim.verdict for claim in claims(journal(made))]


def test_all_claims_hold_where_they_do() -> None:
    assert verdicts(results()) == [HOLDS] * 7


def test_without_measurements_there_is_no_verdict() -> None:
    assert verdicts({}) == [UNKNOWN] * 7


def test_a_single_worse_cell_is_enough() -> None:
    made = results()
    for row in made["cell n=64 k=8"]:
        if row["method"] == "iterative":
            row["nccs"] = 0.99
    assert verdicts(made)[0] == FAILS


@pytest.mark.parametrize(("method", "number"), [("round by round", 1), ("iterative", 1)])
def test_half_of_the_claim_about_time(method: str, number: int) -> None:
    made = results()
    for rows in made.values():
        for row in rows:
            if row.get("method") == method:
                row["seconds"] = 1e-3 * row["k"] ** (1 if method == "round by round" else -1)
    assert verdicts(made)[number] == PARTLY


def test_a_relative_boost_that_falls_too() -> None:
    made = results()
    for rows in made.values():
        for row in rows:
            if row.get("method") == "Relative(4)":
                row["nccs"] = 0.98 - 0.05 * row["rounds"]
    assert verdicts(made)[2] == PARTLY


def test_other_claims_that_fail() -> None:
    made = results()
    made["rounds"][0]["played"] = 4
    made["sorting a"][0]["seconds_sorting"] = 0.4
    made["pairing a"][2]["nccs"] = 0.95
    for row in made["training k=8"]:
        if row["layer"] == "iterative":
            row["loss"] = 0.05
    assert verdicts(made)[3:] == [FAILS, FAILS, PARTLY, PARTLY]
    made["sorting b"] = [{**made["sorting a"][0], "seconds_sorting": 0.01}]
    assert verdicts(made)[4] == PARTLY


def test_clearly_above_means_two_standard_errors() -> None:
    assert clearly_above([1.0, 1.1], [0.5, 0.6])
    assert not clearly_above([0.56, 1.1], [0.5, 0.6])
    assert not clearly_above([0.5, 0.6], [1.0, 1.1])


def data(line: Line2D) -> tuple[list[float], list[float]]:
    x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    return x.tolist(), y.tolist()


def test_every_panel_shows_ours_and_the_published_points() -> None:
    with figure_style():
        figure = FIGURES["quality"](journal(results()))
    assert [axis.get_title() for axis in figure.axes] == [f"k = {k}" for k in PANELS]
    for axis, k in zip(figure.axes, PANELS, strict=True):
        lines = {str(line.get_label()): line for line in axis.lines}
        assert {"published: halving", "published: iterative", "halving, Power(20)", "Relative(16)"} <= lines.keys()
        x, y = data(lines["published: halving"])
        assert dict(zip(x, y, strict=True)) == {
            n: p.nccs for (m, n, size), p in published().items() if (m, size) == ("halving", k)
        }
        x, y = data(lines["halving, Power(20)"])
        assert list(x) == [n for n, size in CELLS if size == k]
        assert list(y) == [cell("halving", int(n), k)["nccs"] for n in x]


def test_figures_are_drawn_from_results_alone_and_always_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_clock() -> float:
        raise AssertionError("a figure was timing something")

    monkeypatch.setattr(time, "perf_counter", no_clock)
    draw_all(FIGURES, journal(results()), tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(first) == {f"{name}.png" for name in FIGURES}
    draw_all(FIGURES, journal(results()), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    assert all(content[:8] == b"\x89PNG\r\n\x1a\n" for content in first.values())


def test_lines_differ_without_color() -> None:
    for name, figure in FIGURES.items():
        with figure_style():
            drawn = figure(journal(results()))
        assert png(drawn)
        for axis in drawn.axes:
            looks = [(line.get_linestyle(), line.get_marker(), line.get_markersize()) for line in axis.lines]
            assert len(set(looks)) == len(looks), name
