"""Masks, invalid rows and empty slots."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import knockout
from knockout.boost import Boost, Fixed, Relative
from tests.cases import BOOSTS, INF, NAN, boosts, randn, same_bits, score, separated


@given(st.data(), boosts, st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_masked_candidate_is_as_good_as_deleted_to_the_last_bit(
    data: st.DataObject, boost: Boost, by_score: bool
) -> None:
    scores = torch.tensor(data.draw(st.lists(score, min_size=2, max_size=40), label="scores"))
    n = len(scores)
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n).filter(any), label="mask"))
    k = data.draw(st.integers(1, int(mask.sum())), label="k")
    values = randn(n, 3, dtype=torch.float32)
    deleted = knockout.topk(values[mask], scores[mask], k, boost)

    garbage = torch.where(mask.unsqueeze(-1), values, NAN)
    if by_score:
        masked = knockout.topk(garbage, torch.where(mask, scores, -INF), k, boost)
    else:
        masked = knockout.topk(garbage, torch.where(mask, scores, NAN), k, boost, mask=mask)
    same_bits(masked.values, deleted.values)
    same_bits(masked.scores, deleted.scores)
    assert torch.equal(masked.indices, mask.nonzero().flatten()[deleted.indices])


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
@pytest.mark.parametrize("hard", [False, True])
def test_masked_candidates_get_a_gradient_of_exactly_zero(boost: Boost, hard: bool) -> None:
    mask = torch.rand(3, 30, generator=torch.Generator().manual_seed(0)) > 0.4
    scores = torch.where(mask, randn(3, 30), NAN).requires_grad_()
    values = torch.where(mask.unsqueeze(-1), randn(3, 30, 2), INF).requires_grad_()
    out = knockout.topk(values, scores, 5, boost, mask=mask, hard=hard)
    (out.values.square().sum() + out.scores.square().sum()).backward()
    assert scores.grad is not None
    assert values.grad is not None
    assert scores.grad.isfinite().all()
    assert values.grad.isfinite().all()
    assert (scores.grad[~mask] == 0).all()
    assert (values.grad[~mask] == 0).all()
    assert (scores.grad[mask] != 0).any()


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("order", ["score", "position"])
def test_empty_slots(order: knockout.functional.Order, hard: bool) -> None:
    scores = torch.tensor([[3.0, -INF, 1.0, 2.0], [-INF] * 4]).requires_grad_()
    values = torch.full((2, 4, 2), NAN)
    values[0, [0, 2, 3]] = torch.tensor([[1.0, 1.0], [3.0, 3.0], [2.0, 2.0]])
    values.requires_grad_()
    out = knockout.topk(values, scores, 4, order=order, hard=hard)
    leaders = [0, 3, 2, -1] if order == "score" else [0, 2, 3, -1]
    assert out.indices.tolist() == [leaders, [-1] * 4]
    assert out.mask.tolist() == [[True, True, True, False], [False] * 4]
    assert out.scores[0].tolist() == [scores[0, i].item() if i >= 0 else 0.0 for i in leaders]
    assert out.values[0, 3].tolist() == [0.0, 0.0]
    assert not out.values[1].any()
    assert not out.scores[1].any()
    (out.values.sum() + out.scores.sum()).backward()
    assert scores.grad is not None
    assert values.grad is not None
    assert scores.grad.isfinite().all()
    assert values.grad.isfinite().all()


def test_rows_may_have_different_numbers_of_candidates() -> None:
    scores, values = randn(4, 64), randn(4, 64, 3)
    lengths = torch.tensor([64, 33, 9, 2])
    mask = torch.arange(64) < lengths.unsqueeze(-1)
    out = knockout.topk(values, scores, 4, mask=mask)
    for row, length in enumerate(lengths.tolist()):
        alone = knockout.topk(values[row, :length], scores[row, :length], min(4, length))
        same_bits(out.values[row, : min(4, length)], alone.values)
        assert out.mask[row].sum() == min(4, length)


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("n", [2, 5, 40])
def test_a_nan_or_infinite_score_invalidates_its_row_and_no_other(n: int, hard: bool, bad: float, boost: Boost) -> None:
    scores, values = randn(3, n), randn(3, n, 2)
    invalid = scores.clone()
    invalid[1, n // 2] = bad
    clean = knockout.topk(values, scores, 2, boost, hard=hard)
    invalid.requires_grad_()
    selection = knockout.select(invalid, 2, boost, hard=hard)
    blended = selection.apply(values)
    for out in (blended, selection.scores, selection.weights(), selection.mass(), selection.perplexity()):
        assert out[1].isnan().all()
        assert out[[0, 2]].isfinite().all()
    same_bits(blended[[0, 2]].detach(), clean.values[[0, 2]])
    assert ((selection.indices >= 0) & (selection.indices < n)).all()
    (gradient,) = torch.autograd.grad(blended.sum(), invalid)
    assert gradient[[0, 2]].isfinite().all()


def test_a_mask_and_scores_of_minus_infinity_may_come_together() -> None:
    scores, values = separated(20).requires_grad_(), randn(20, 2)
    mask, excluded = (
        torch.arange(20) % 3 != 0,
        torch.arange(20) % 4 == 1,
    )  # some by one, some by the other, some by both
    both = knockout.topk(values, scores.masked_fill(excluded, -INF), 3, mask=mask)
    expected = knockout.topk(values, scores, 3, mask=mask & ~excluded)
    same_bits(both.values, expected.values)
    same_bits(both.scores, expected.scores)
    assert torch.equal(both.indices, expected.indices)


def test_an_empty_slot_of_a_hard_selection_shows_nothing() -> None:
    scores = torch.tensor([[1.0, -INF, 3.0], [-INF] * 3])
    for selection in (
        knockout.select(scores, 3, hard=True),
        knockout.methods.hard(scores, 3),
        knockout.methods.iterative(scores, 3),
    ):
        assert selection.mask.tolist() == [[True, True, False], [False] * 3]
        assert (selection.support() > 0).tolist() == selection.mask.tolist()
        assert (selection.weights().sum(-1) > 0).tolist() == selection.mask.tolist()
        assert (selection.perplexity() > 0).tolist() == selection.mask.tolist()
        assert not selection.mass()[1].any()


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("hard", [False, True])
def test_the_values_of_a_decided_loser_are_not_read(hard: bool, bad: float) -> None:
    scores = torch.tensor([9.0, 5.0, 4.9, 0.0], requires_grad=True)
    values = torch.tensor([[1.0], [2.0], [3.0], [bad]], requires_grad=True)
    out = knockout.topk(values, scores, 2, Fixed(4, alpha=1.5), hard=hard)
    assert out.values.isfinite().all()
    for gradient in torch.autograd.grad(out.values.square().sum(), (values, scores)):
        assert gradient.isfinite().all()
        assert gradient[3] == 0


def test_rounds_without_a_pair_do_not_narrow_the_scale() -> None:
    # Two of 64 are active: five rounds of byes, then one pair, measured by the unit as if the others were not there.
    scores = torch.zeros(64, dtype=torch.float64)
    scores[10] = 0.1
    mask = torch.zeros(64, dtype=torch.bool)
    mask[[10, 40]] = True
    weights = knockout.select(scores, 1, Relative(1, alpha=2), mask=mask).weights()
    assert weights[0, 10].item() == pytest.approx(0.55)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("hard", [False, True])
def test_a_nan_or_infinite_value_that_carries_weight_is_in_its_own_slot_only(bad: float, hard: bool) -> None:
    # Pairs (9, 0), decided, and (5, 4.9): the value rows of the second slot carry weight, the leader's in a hard one.
    scores, values = torch.tensor([9.0, 5.0, 4.9, 0.0]), torch.ones(4, 2)
    values[1, 0] = bad
    out = knockout.topk(values, scores, 2, Fixed(4, alpha=1.5), hard=hard).values
    assert out[0].tolist() == [1.0, 1.0]
    same_bits(out[1, 0], torch.tensor(bad))
    assert out[1, 1].item() == pytest.approx(1.0)
