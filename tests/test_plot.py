"""Pictures of a selection: what is on them, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import knockout

SCORES = torch.tensor([0.1, 0.9, 0.7, 0.3, 0.8, 0.85, 0.2, 0.4])


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


def texts(axes: Axes) -> list[str]:
    return [text.get_text().strip() for text in axes.texts]


def test_a_bracket_shows_candidates_rounds_and_slots() -> None:
    picked = knockout.select(SCORES, k=2, boost=1.0)
    axes = knockout.plot.bracket(picked, names="abcdefgh")
    shown = texts(axes)
    for name, score in zip("abcdefgh", SCORES.tolist(), strict=True):
        assert f"{name}  {score:.3g}" in shown
    assert [label.get_text() for label in axes.get_xticklabels()] == ["candidates", "round 1", "round 2"]
    for slot in picked.weights():
        weight, who = slot.max(dim=0)
        assert any(text.startswith(f"{weight:.2f} {'abcdefgh'[who]} + ") for text in shown)
    # A line to every pair from each of the two: four pairs, then two.
    assert len(axes.lines) == 12


def test_what_is_decided_has_no_share() -> None:
    axes = knockout.plot.bracket(knockout.select(SCORES, k=2, boost=1000.0), names="abcdefgh")
    assert {"b", "f"} <= set(texts(axes))
    assert not any(text.startswith(".") for text in texts(axes))


def test_byes_and_those_who_take_no_part() -> None:
    mask = torch.ones(5, dtype=torch.bool)
    mask[3] = False
    axes = knockout.plot.bracket(knockout.select(SCORES[:5], k=2, mask=mask), names="abcde")
    assert sum("  " in text for text in texts(axes)) == 4
    assert not any(text.startswith("d ") for text in texts(axes))


def test_slots_in_the_order_of_the_selection() -> None:
    picked = knockout.select(SCORES, k=2, boost=1000.0, order="position")
    assert picked.indices.tolist() == [1, 5]
    by_height = sorted(
        (text.get_position()[1], text.get_text().strip()) for text in knockout.plot.bracket(picked).texts
    )
    assert [text for _, text in by_height if text in ("1", "5")] == ["1", "5"]


def test_a_row_of_a_batch_and_broadcast_masks() -> None:
    scores = torch.stack([SCORES, SCORES.flip(0)]).reshape(1, 2, 8)
    picked = knockout.select(scores, k=2, boost=1000.0, mask=torch.ones(8, dtype=torch.bool))
    assert {"6", "2"} <= set(texts(knockout.plot.bracket(picked, row=(0, 1))))
    assert knockout.plot.weights(picked, row=(0, 1)).images[0].get_array().shape == (2, 8)  # type: ignore[union-attr]


def test_weights_of_any_method() -> None:
    for picked in (knockout.select(SCORES, 2), knockout.methods.iterative(SCORES, 2), knockout.methods.hard(SCORES, 2)):
        axes = knockout.plot.weights(picked)
        torch.testing.assert_close(torch.tensor(axes.images[0].get_array()), picked.weights())


def test_into_axes_that_are_there() -> None:
    axes = Figure().subplots()
    assert knockout.plot.bracket(knockout.select(SCORES, 2), ax=axes) is axes
    assert knockout.plot.weights(knockout.select(SCORES, 2), ax=axes) is axes


def test_one_round_and_none() -> None:
    assert len(knockout.plot.bracket(knockout.select(SCORES, 4)).lines) == 8
    assert len(knockout.plot.bracket(knockout.select(SCORES, 8)).lines) == 0


def test_what_is_refused() -> None:
    picked = knockout.select(SCORES, 2)
    with pytest.raises(TypeError, match=r"selection must be a knockout\.Selection; got Tensor"):
        knockout.plot.bracket(SCORES)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 64 candidates, for a picture; got n = 65"):
        knockout.plot.bracket(knockout.select(torch.rand(65), 2))
    with pytest.raises(ValueError, match="names must be as many as candidates, n = 8; got 3"):
        knockout.plot.weights(picked, names="abc")
    with pytest.raises(ValueError, match=r"row must be an index into the batch \(2,\); got 5"):
        knockout.plot.weights(knockout.select(SCORES.expand(2, -1), 2), row=5)
    with pytest.raises(ValueError, match=r"must come straight from knockout\.select"):
        knockout.plot.bracket(knockout.methods.hard(SCORES, 2))


def test_scores_that_have_changed_since() -> None:
    scores = SCORES.clone()
    picked = knockout.select(scores, 2)
    scores.copy_(SCORES.flip(0))
    with pytest.raises(ValueError, match="have not changed since it was made: select again"):
        knockout.plot.bracket(picked)


def test_names_and_rows_of_any_kind() -> None:
    scores = SCORES.expand(2, -1)
    picked = knockout.select(scores, 2, boost=1000.0)
    shown = texts(knockout.plot.bracket(picked, row=np.int64(1), names=range(10, 18)))
    assert {"11", "15"} <= set(shown)
    knockout.plot.weights(picked, names=["$^$", *"abcdefg"]).figure.canvas.draw()
    with pytest.raises(TypeError, match=r"row must be an index into the batch \(2,\), or a tuple of them; got 1\.0"):
        knockout.plot.weights(picked, row=1.0)  # type: ignore[arg-type]
    invalid = knockout.select(torch.tensor([1.0, torch.nan, 2.0]), 2)
    with pytest.raises(ValueError, match="row must be one with finite scores"):
        knockout.plot.weights(invalid)


def test_without_matplotlib_a_call_says_what_to_install() -> None:
    code = """
import sys
sys.modules["matplotlib"] = None
import torch, knockout
picked = knockout.select(torch.rand(4), k=2)
for draw in (knockout.plot.bracket, knockout.plot.weights):
    try:
        draw(picked)
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "knockout.plot needs matplotlib: pip install 'knockout-topk[plot]'\n" * 2
