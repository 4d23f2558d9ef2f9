"""The order of slots, and straight-through selections."""

from __future__ import annotations

import warnings

import pytest
import torch

import knockout
from knockout.boost import Boost, Fixed
from knockout.functional import Order
from tests.cases import BOOSTS, randn, same_bits, separated


def test_order_by_position() -> None:
    scores, values = separated(3, 40), randn(3, 40, 2)
    by_score = knockout.topk(values, scores, 7)
    by_position = knockout.topk(values, scores, 7, order="position")
    positions, slots = by_score.indices.sort(dim=-1)
    assert torch.equal(by_position.indices, positions)
    same_bits(by_position.values, by_score.values.gather(1, slots.unsqueeze(-1).expand(-1, -1, 2)))
    same_bits(by_position.scores, by_score.scores.gather(1, slots))


def test_order_by_score_is_that_of_the_last_round() -> None:
    # No round: by score. One round: as folded, although the blends come out in another order.
    assert knockout.select(torch.tensor([1.0, 3.0, 2.0]), 3).indices.tolist() == [1, 2, 0]
    selection = knockout.select(torch.tensor([1.0, 0.98, 0.95, 0.0]), 2, Fixed(0.01))
    assert selection.indices.tolist() == [0, 1]
    assert selection.scores[0] < selection.scores[1]


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
def test_hard_returns_the_leaders_untouched_with_the_soft_gradient(boost: Boost) -> None:
    scores, values = randn(3, 20).requires_grad_(), randn(3, 20, 4).requires_grad_()
    with torch.no_grad():
        values[0, scores[0].argmax()] = torch.tensor([-0.0, 1e30, 5e-324, -1.0], dtype=torch.float64)
    soft, hard = knockout.topk(values, scores, 5, boost), knockout.topk(values, scores, 5, boost, hard=True)
    assert torch.equal(hard.indices, soft.indices)
    index = soft.indices.unsqueeze(-1).expand(-1, -1, 4)
    assert torch.equal(hard.values.view(torch.int64), values.gather(1, index).view(torch.int64))
    assert torch.equal(hard.scores, scores.gather(1, soft.indices))
    up = randn(3, 5, 4, seed=2)
    for one, other in zip(
        torch.autograd.grad([soft.values, soft.scores], (values, scores), [up, up[..., 0]]),
        torch.autograd.grad([hard.values, hard.scores], (values, scores), [up, up[..., 0]]),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_hard_weights_are_one_hot_with_the_soft_gradient() -> None:
    scores = randn(2, 20).requires_grad_()
    soft, hard = knockout.select(scores, 3, 1.0), knockout.select(scores, 3, 1.0, hard=True)
    assert torch.equal(hard.weights(), torch.nn.functional.one_hot(soft.indices, 20).double())
    assert torch.equal(hard.mass(), hard.weights().sum(-2))
    assert torch.equal(hard.support(), soft.support())  # of the blend behind it
    assert torch.equal(hard.perplexity(), soft.perplexity())
    up = randn(2, 3, 20, seed=3)
    (one,), (other,) = (torch.autograd.grad(x.weights(), scores, up) for x in (soft, hard))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("order", ["score", "position"])
@pytest.mark.parametrize("hard", [False, True])
def test_all_candidates_pass_in_order_and_their_scores_get_no_gradient_through_the_values(
    order: Order, hard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("knockout.no_gradient._warned", False)
    monkeypatch.setattr("knockout.functional.is_due", lambda: True)
    scores, values = randn(3, 8).requires_grad_(), randn(3, 8, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # where there is nothing to choose, there is nothing to warn of
        out = knockout.topk(values, scores, 8, order=order, hard=hard)
    expected = scores.argsort(dim=-1, descending=True) if order == "score" else torch.arange(8).expand(3, 8)
    assert torch.equal(out.indices, expected)
    same_bits(out.values, values.gather(1, expected.unsqueeze(-1).expand(-1, -1, 2)))
    same_bits(out.scores, scores.gather(1, expected))
    (gradient,) = torch.autograd.grad(out.values.sum(), scores, retain_graph=True)
    assert not gradient.any()
    (gradient,) = torch.autograd.grad(out.scores.sum(), scores)
    assert gradient.tolist() == [[1.0] * 8] * 3
