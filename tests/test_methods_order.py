"""The order of the slots of ``knockout.methods``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from knockout import Selection, methods, select
from knockout.plan import DensePlan
from tests.cases import randn, same_bits

INF, NAN = float("inf"), float("nan")


def selections(name: str, scores: Tensor, k: float, mask: Tensor | None) -> tuple[Selection, Selection]:
    """By score and by position; with the same noise."""
    by_score, by_position = (
        getattr(methods, name)(scores, k, mask=mask, order=order, **_noise(name)) for order in ("score", "position")
    )
    return by_score, by_position


def _noise(name: str) -> dict[str, Any]:
    return {"generator": torch.Generator().manual_seed(3)} if name in ("gumbel", "perturbed") else {}


def sorted_by_hand(leaders: Tensor) -> Tensor:
    """For each row of leaders (rows, k), the slots by leader, those without one, -1, last."""
    rows = [sorted(range(len(row)), key=lambda slot: (row[slot] < 0, row[slot])) for row in leaders.tolist()]
    return torch.tensor(rows).view(leaders.shape)


def check(name: str, scores: Tensor, k: float, mask: Tensor | None) -> None:
    by_score, by_position = selections(name, scores, k, mask)
    slot = sorted_by_hand(by_score.indices)
    same_bits(by_position.indices, by_score.indices.gather(1, slot))
    same_bits(by_position.mask, by_score.mask.gather(1, slot))
    for one, other in (
        (by_position.scores, by_score.scores),
        (by_position.perplexity(), by_score.perplexity()),
        (by_position.support(), by_score.support()),
    ):
        torch.testing.assert_close(one, other.gather(1, slot), equal_nan=True)
    each = slot.unsqueeze(-1)
    weights = by_score.weights()
    same_bits(by_position.weights(), weights.gather(1, each.expand(weights.shape)))
    values = randn(*scores.shape, 2, seed=1)
    values = values if mask is None else torch.where(mask.unsqueeze(-1), values, NAN)
    blended = by_score.apply(values)
    torch.testing.assert_close(by_position.apply(values), blended.gather(1, each.expand(blended.shape)), equal_nan=True)
    torch.testing.assert_close(by_position.mass(), by_score.mass(), equal_nan=True)


@pytest.mark.parametrize("name", methods.__all__)
def test_slots_by_position(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = randn(4, 9)
    scores[0, 3], scores[1, 4:] = NAN, -INF
    mask = torch.rand(4, 9, generator=torch.Generator().manual_seed(0)) > 0.3
    mask[2] = torch.arange(9) >= 7  # a row with empty slots
    by_score, by_position = selections(name, scores, 4, mask)
    assert by_position.indices[2, 2:].tolist() == [-1, -1]
    assert by_position.indices[2, :2].tolist() == [7, 8]
    assert not torch.equal(by_score.indices[3], by_position.indices[3])
    check(name, scores, 4, mask)
    monkeypatch.setattr(DensePlan, "CHUNK", 1)  # a slot at a time
    check(name, scores, 4, mask)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_slots_by_position_of_drawn_scores(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(methods.__all__))
    n = data.draw(st.integers(1, 12))
    seed = data.draw(st.integers(0, 2**32))
    scores = torch.round(2 * randn(3, n, seed=seed)) + 1e-3 * randn(3, n, seed=seed + 1)
    mask = data.draw(st.none() | st.just(randn(3, n, seed=seed + 2) > -0.5))
    check(name, scores, data.draw(st.integers(1, n) | st.floats(0.1, 0.9)), mask)


@pytest.mark.parametrize("name", ["hard", "gated", "softsort", "lapsum", "iterative"])
def test_gradients_of_slots_by_position(name: str) -> None:
    scores = randn(2, 9).requires_grad_()
    values = randn(2, 9, 3, seed=1).requires_grad_()
    by_score, by_position = selections(name, scores, 4, None)
    slot, up = sorted_by_hand(by_score.indices).unsqueeze(-1).expand(-1, -1, 3), randn(2, 4, 3, seed=2)
    found = torch.autograd.grad(by_position.apply(values), (scores, values), up.gather(1, slot), allow_unused=True)
    expected = torch.autograd.grad(by_score.apply(values), (scores, values), up, allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert name == "hard" or found[0] is not None


def test_the_order_of_hard_is_that_of_select() -> None:
    scores = randn(3, 12)
    sharp = select(scores, 5, 1e6, order="position")
    assert torch.equal(methods.hard(scores, 5, order="position").indices, sharp.indices)


@pytest.mark.parametrize("name", methods.__all__)
def test_what_the_order_may_be(name: str) -> None:
    with pytest.raises(ValueError, match="order must be one of 'score', 'position'; got 'index'"):
        getattr(methods, name)(randn(4), 2, order="index")
