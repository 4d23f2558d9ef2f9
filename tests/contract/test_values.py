"""Values: those of the paper's pseudo-code, loop by loop, and of cases worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import knockout
from knockout.boost import DEFAULT, Adaptive, Base, Boost, Fixed, Power, Relative
from tests import oracle
from tests.cases import BOOSTS, boosts, randn, score, separated


@given(st.data(), boosts)
@settings(max_examples=400, deadline=None)
def test_agrees_with_the_transcription(data: st.DataObject, boost: Boost) -> None:
    scores = data.draw(st.lists(score, min_size=1, max_size=40), label="scores")
    n = len(scores)
    k = data.draw(st.integers(1, n), label="k")
    mask = data.draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n), label="mask")
    values = randn(n, 3)
    expected = oracle.halving(values.tolist(), scores, k, boost, mask)
    assume(expected.closest > 1e-9)

    out = knockout.topk(
        values, torch.tensor(scores, dtype=torch.float64), k, boost, mask=None if mask is None else torch.tensor(mask)
    )
    assert out.indices.tolist() == expected.indices
    assert out.mask.tolist() == [index >= 0 for index in expected.indices]
    torch.testing.assert_close(out.values, torch.tensor(expected.values, dtype=torch.float64))
    torch.testing.assert_close(out.scores, torch.tensor(expected.scores, dtype=torch.float64))


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (7, 7), (9, 8), (100, 3), (257, 16), (1000, 7)])
def test_agrees_with_the_transcription_on_long_rows(n: int, k: int, boost: Boost) -> None:
    scores, values = separated(n, seed=n), randn(n, 2)
    if isinstance(boost, Power):
        scores = scores / scores.abs().max()  # b ** score must not overflow in the transcription
    expected = oracle.halving(values.tolist(), scores.tolist(), k, boost)
    selection = knockout.select(scores, k, boost)
    assert selection.indices.tolist() == expected.indices
    torch.testing.assert_close(selection.weights(), torch.tensor(expected.weights, dtype=torch.float64))
    torch.testing.assert_close(selection.scores, torch.tensor(expected.scores, dtype=torch.float64))
    torch.testing.assert_close(selection.apply(values), torch.tensor(expected.values, dtype=torch.float64))


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
def test_float32_differs_by_rounding_only(boost: Boost) -> None:
    scores, values = separated(3, 200), randn(3, 200, 5)
    exact = knockout.topk(values, scores, 9, boost)
    out = knockout.topk(values.float(), scores.float(), 9, boost)
    assert torch.equal(out.indices, exact.indices)
    torch.testing.assert_close(out.values.double(), exact.values, rtol=1e-4, atol=1e-4)


def test_two_rounds_by_hand() -> None:
    # Ranked 8 4 2 0. Round 1 pairs (8, 0) and (4, 2): gaps 8 and 2, mean 5, above the floor of 1.
    #   t = 8/5 and 2/5; alpha = 2: shares min(1/2 + t/2, 1) = 1 and 0.7; scores 8 and 0.7*4 + 0.3*2 = 3.4.
    # Round 2 pairs (8, 3.4): mean gap 4.6, above the floor of 5/2; t = 1, share 1.
    scores = torch.tensor([2.0, 8.0, 0.0, 4.0], dtype=torch.float64)
    selection = knockout.select(scores, 1, Relative(1, alpha=2))
    assert selection.scores.tolist() == [8.0]
    assert selection.weights().tolist() == [[0.0, 1.0, 0.0, 0.0]]
    two = knockout.select(scores, 2, Relative(1, alpha=2))
    torch.testing.assert_close(
        two.weights(), torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.3, 0.0, 0.0, 0.7]], dtype=torch.float64)
    )
    torch.testing.assert_close(two.scores, torch.tensor([8.0, 3.4], dtype=torch.float64))


def test_the_scale_at_most_halves_from_round_to_round() -> None:
    # Ranked 4 4 0 0: gaps 4 and 4, scale 4; with c = 1/4 and alpha = 2, t = 1/4, share 5/8, both blends 2.5.
    # Round 2: gap 0. The scale falls to 4/2 = 2, not to 0, and the pair shares evenly.
    selection = knockout.select(torch.tensor([4.0, 4.0, 0.0, 0.0]), 1, Relative(0.25, alpha=2))
    torch.testing.assert_close(selection.weights(), torch.tensor([[5 / 16, 5 / 16, 3 / 16, 3 / 16]]))
    # Ranked 4 3 1 0: gaps 4 and 2, scale 3; blends 4 - 4/3 and 3 - 5/6, a gap of 1/2, which is measured by 3/2.
    scores = torch.tensor([4.0, 3.0, 1.0, 0.0], dtype=torch.float64)
    first = [0.5 + 4 / 24, 0.5 + 2 / 24]
    blends = [first[0] * 4, first[1] * 3 + (1 - first[1])]
    share = 0.5 + (blends[0] - blends[1]) / (3 / 2) / 8
    selection = knockout.select(scores, 1, Relative(0.25, alpha=2))
    assert selection.weights()[0, 0].item() == pytest.approx(share * first[0])


def test_the_scale_starts_from_the_unit() -> None:
    # One gap of 0.1. Measured by the unit 1: t = 0.1; by the unit 0.01, less than the gap: t = gap / gap = 1.
    scores = torch.tensor([0.1, 0.0], dtype=torch.float64)
    for unit, share in ((1.0, 0.55), (0.2, 0.75), (0.01, 1.0)):
        weight = knockout.select(scores, 1, Relative(1, unit=unit, alpha=2)).weights()[0, 0].item()
        assert weight == pytest.approx(share)


@pytest.mark.parametrize(
    ("boost", "share"),
    [
        (Fixed(1), 1 / (1 + math.exp(-0.5))),
        (Fixed(1, alpha=1.5), 0.5 + 0.125 * math.sqrt(2 - 1 / 16)),
        (Fixed(1, alpha=2), 0.75),
        (Fixed(4, alpha=1.5), 1.0),
        (Fixed(2, alpha=2), 1.0),
        (Base(20), 1 / (1 + 20**-0.5)),
        (Power(20), 1 / (1 + math.exp(20**0.25 - 20**0.75))),
    ],
    ids=str,
)
def test_pair_weights(boost: Boost, share: float) -> None:
    weights = knockout.select(torch.tensor([0.75, 0.25], dtype=torch.float64), 1, boost).weights()
    assert weights[0].tolist() == pytest.approx([share, 1 - share], rel=1e-12, abs=1e-12)


def test_a_decided_pair_is_decided_exactly() -> None:
    for boost in (Fixed(4, alpha=1.5), Fixed(2, alpha=2), Relative(4), Fixed(100, alpha=1)):
        weights = knockout.select(torch.tensor([1.0, 0.0]), 1, boost).weights()
        assert weights.tolist() == [[1.0, 0.0]]


def test_byes_go_to_the_best_and_cost_nothing() -> None:
    # n = 5, k = 3: one round of 6 places; the best has no opponent, 2nd meets 5th, 3rd meets 4th.
    scores = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0])
    weights = knockout.select(scores, 3, Fixed(0.1)).weights()
    assert weights[0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert [row.nonzero().flatten().tolist() for row in weights] == [[0], [1, 4], [2, 3]]


def test_a_bare_number_means_relative_and_none_the_default() -> None:
    scores = randn(40)
    assert torch.equal(knockout.select(scores, 3, 4).weights(), knockout.select(scores, 3, Relative(4)).weights())
    assert torch.equal(knockout.select(scores, 3).weights(), knockout.select(scores, 3, DEFAULT).weights())


def test_a_sharp_boost_is_the_hard_selection() -> None:
    scores, values = separated(4, 100), randn(4, 100, 3)
    out = knockout.topk(values, scores, 10, 1e6)
    top = torch.topk(scores, 10)
    assert torch.equal(out.indices, top.indices)
    assert torch.equal(out.scores, top.values)
    assert torch.equal(out.values, values.gather(1, top.indices.unsqueeze(-1).expand(-1, -1, 3)))


def test_topk_and_select_share_their_defaults() -> None:
    scores, values = randn(3, 40), randn(3, 40, 2)
    assert torch.equal(knockout.topk(values, scores, 4).values, knockout.select(scores, 4, DEFAULT).apply(values))


def test_power_decides_by_the_smallest_gap_where_its_height_is_capped() -> None:
    # 20^13 * ln 20 * 2^-49 is above 400: one unit in the last place decides the pair.
    top = torch.tensor(13.0, dtype=torch.float64)
    scores = torch.stack([torch.nextafter(top, torch.tensor(0.0, dtype=torch.float64)), top])
    assert knockout.select(scores, 1, Power(20)).weights().tolist() == [[0.0, 1.0]]
    share = knockout.select(torch.tensor([4.0, 3.99999], dtype=torch.float64), 1, Power(20)).weights()[0, 0]
    assert share.item() == pytest.approx(1 / (1 + math.exp(20**3.99999 - 20**4)))


def test_an_adaptive_boost_worked_by_hand() -> None:
    # Pairs (6, 0) and (4, 2): gaps 6 and 2, g = 4. With a unit of 4, h is 1; two rounds; c / rounds = 1, s = 4.
    scores = torch.tensor([6.0, 4.0, 2.0, 0.0], dtype=torch.float64)
    weights = knockout.select(scores, 1, Adaptive(2, unit=4, alpha=2)).weights()[0]
    # Logits 6/4 and 2/4: shares 1 and 3/4; blends 6 and 3.5; the second round has a gap of 2.5 = s: t = 1, decided.
    assert weights.tolist() == [1.0, 0.0, 0.0, 0.0]
    # Half as sharp: shares 1/2 + 3/8 and 1/2 + 1/8, blends 5.25 and 3.25, s = 2; t = 1/2, share 3/4.
    weights = knockout.select(scores, 1, Adaptive(1, unit=4, alpha=2)).weights()[0]
    assert weights.tolist() == [0.75 * 0.875, 0.25 * 0.625, 0.25 * 0.375, 0.75 * 0.125]


@pytest.mark.parametrize(("unit", "h"), [(4.0, 1.0), (4e9, 1e-8), (0.4, 2.384615384615384), (40.0, 0.4193548387096774)])
def test_the_sharpness_of_an_adaptive_boost_follows_the_spread(unit: float, h: float) -> None:
    # One round, g = s = 4: t = c h, and for alpha = 2 the share is 1/2 + t/2.
    scores = torch.tensor([4.0, 0.0], dtype=torch.float64)
    share = knockout.select(scores, 1, Adaptive(0.25, unit=unit, alpha=2)).weights()[0, 0]
    assert share.item() == pytest.approx(0.5 + 0.125 * h, rel=1e-12)


def test_the_sharpness_of_an_adaptive_boost_is_over_all_rounds_together() -> None:
    # Pairs with equal gaps in the first round, for 1, 2, 3 and 4 rounds: t = c / rounds.
    for rounds in (1, 2, 3, 4):
        n = 2**rounds
        scores = torch.cat([torch.ones(n // 2), torch.zeros(n // 2)]).double()
        share = knockout.select(scores, n // 2, Adaptive(0.5, alpha=2)).weights()[0, 0]
        assert share.item() == pytest.approx(0.75)
        weights = knockout.select(scores, 1, Adaptive(0.5, alpha=2)).weights()[0]
        assert weights[: n // 2].sum().item() == pytest.approx(0.5 + 0.25 / rounds)


def test_outliers_do_not_change_the_scale_of_an_adaptive_boost() -> None:
    scores = randn(64)
    far = scores.clone()
    best, worst = scores.argmax(), scores.argmin()
    far[best], far[worst] = 1e6, -1e6
    boost = Adaptive(2)
    slots = [knockout.select(x, 16, boost) for x in (scores, far)]
    one, other = (x.weights()[1:] for x in slots)
    rest = [i for i in range(64) if i not in (best, worst)]
    torch.testing.assert_close(one[:, rest], other[:, rest])
    relative = [knockout.select(x, 16, 1.0).weights()[1:, rest] for x in (scores, far)]
    assert (relative[0] - relative[1]).abs().max() > 0.1  # the mean gap of Relative follows them


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**30])
def test_scores_and_unit_times_a_factor_change_nothing(factor: float) -> None:
    scores = randn(3, 50)
    one = knockout.select(scores, 4, Adaptive(2, unit=1.5))
    other = knockout.select(factor * scores, 4, Adaptive(2, unit=1.5 * factor))
    assert torch.equal(one.weights(), other.weights())
    assert torch.equal(factor * one.scores, other.scores)


def test_equal_scores_get_a_gradient_from_an_adaptive_boost() -> None:
    scores, values = torch.zeros(3, 40, dtype=torch.float64, requires_grad=True), randn(3, 40, 2)
    (gradient,) = torch.autograd.grad(knockout.topk(values, scores, 4).values.square().sum(), scores)
    assert (gradient != 0).float().mean() > 0.9
    close = scores.detach() + 1e-9 * randn(3, 40)
    (near,) = torch.autograd.grad(knockout.topk(values, close.requires_grad_(), 4).values.square().sum(), close)
    ordinary = randn(3, 40).requires_grad_()
    (usual,) = torch.autograd.grad(knockout.topk(values, ordinary, 4).values.square().sum(), ordinary)
    assert near.norm() < 20 * usual.norm()  # noise is not amplified
