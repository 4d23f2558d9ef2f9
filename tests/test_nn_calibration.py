"""Layers that calibrate themselves: the unit of their boost is measured on the first batch in training."""

# mypy: disable-error-code="arg-type, comparison-overlap, operator, union-attr"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import knockout
import knockout.nn.topk as module
from knockout.boost import DEFAULT, Adaptive, Base, Fixed, Power, Relative
from knockout.nn import TokenPool, TopK
from knockout.nn.calibration import SHARPNESS
from tests.cases import INF, NAN, randn, same_bits
from tests.nn_cases import DIM, SCORES, calibrated, encoder, masked, pool, tokens, unit_of, unmeasured

# --- what is measured ---


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_unit_is_a_multiple_of_the_first_spread(dtype: torch.dtype) -> None:
    scores = (5 * randn(6, 31) + 100).to(dtype)
    layer = calibrated(scores)
    assert layer.unit.item() == pytest.approx(unit_of(scores), rel=1e-6)
    assert (layer.unit.dtype, layer.unit.shape, layer.unit.requires_grad) == (torch.float32, (), False)
    assert float(layer.sharpness) == SHARPNESS
    torch.testing.assert_close(layer.unit, calibrated(scores.unflatten(0, (2, 3))).unit)


def test_an_outlier_counts_only_in_part() -> None:
    scores = randn(4, 300, dtype=torch.float32)
    usual = calibrated(scores).unit.item()
    scores[:, 7] = 1000.0
    assert calibrated(scores).unit.item() == pytest.approx(unit_of(scores), rel=1e-5)
    assert calibrated(scores).unit.item() < 1.5 * usual  # its distance alone is four times the others' together


def test_the_unit_is_the_spread_of_normal_scores() -> None:
    scores = 7 * randn(8, 4000, dtype=torch.float64)
    ordered = scores.sort(dim=-1, descending=True).values
    gaps = (ordered[:, :2000] - ordered[:, 2000:].flip(-1))[:, 250:]  # without the widest eighth
    assert calibrated(scores).unit.item() == pytest.approx(gaps.mean().item(), rel=0.03)


def test_only_active_candidates_are_measured() -> None:
    scores, mask = SCORES.clone(), masked(3, 20, [20, 7, 2])
    scores[~mask] = 1e9
    assert calibrated(scores, mask).unit.item() == pytest.approx(unit_of(scores, mask), rel=1e-6)
    scores[~mask] = -INF
    assert calibrated(scores).unit.item() == pytest.approx(unit_of(scores), rel=1e-6)
    columns = torch.arange(20) % 3 > 0  # a mask for all rows, and rows of masks for one of scores
    assert calibrated(SCORES, columns).unit.item() == pytest.approx(unit_of(SCORES, columns), rel=1e-6)
    expected = unit_of(SCORES[:1].expand(3, 20), mask)
    assert calibrated(SCORES[0], mask).unit.item() == pytest.approx(expected, rel=1e-6)


def test_rows_that_cannot_be_measured_are_left_out() -> None:
    scores, mask = randn(6, 20, dtype=torch.float32), masked(6, 20, [20, 20, 20, 1, 0, 15])
    scores[1, 4], scores[2, 5] = NAN, INF
    scores[5, 17] = NAN  # not active
    layer = calibrated(scores, mask)
    assert layer.unit.item() == pytest.approx(unit_of(scores[[0, 5]], mask[[0, 5]]), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("score", [0.0, 0.1, -3e4])
def test_equal_scores_give_the_unit_of_the_default_boost(score: float, dtype: torch.dtype) -> None:
    scores = torch.full((2, 4999), score, dtype=dtype)
    scores[0, :2] = -INF
    assert calibrated(scores).unit == DEFAULT.unit
    scores = torch.zeros(2, 20, requires_grad=True)  # such a start learns
    TopK(4).select(scores).scores.sum().backward()
    assert scores.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "scores",
    [torch.zeros(0, 20), torch.full((2, 20), NAN), torch.full((2, 20), -INF), torch.eye(3, 20).log()],
    ids=["no rows", "NaN", "all inactive", "one each"],
)
def test_a_batch_that_tells_nothing_leaves_it_to_the_next(scores: Tensor) -> None:
    layer = TopK(4)
    same_bits(layer.select(scores).scores, knockout.select(scores, 4, unmeasured()).scores)
    assert layer.unit == 0
    layer.select(SCORES)
    assert layer.unit.item() == pytest.approx(unit_of(SCORES))


@pytest.mark.parametrize(
    "scores",
    [
        torch.tensor([-3e38, 1e38, 3e38, 3e38]),
        torch.tensor([0.0, 1e-45, 0.0, 0.0]),
        torch.tensor([1e300, 0.0, 1.0, 2.0], dtype=torch.float64),
        torch.tensor([0.0, 1e-300, 0.0, 0.0], dtype=torch.float64),
    ],
    ids=["wide", "narrow", "too wide for float32", "too narrow for float32"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_any_spread_gives_a_unit(scores: Tensor, dtype: torch.dtype) -> None:
    layer = TopK(2)
    layer.unit = layer.unit.to(dtype)  # as some wrappers convert buffers
    assert layer.select(scores).scores.isfinite().all()
    limits = torch.finfo(dtype)
    assert layer.unit == torch.tensor(unit_of(scores[None])).double().clamp(limits.tiny, limits.max).to(dtype)


def test_choices_start_equally_soft_at_any_scale() -> None:
    expected = TopK(4).select(SCORES).weights()
    for scale in (2.0**-30, 2.0**30):
        same_bits(TopK(4).select(SCORES * scale).weights(), expected)
    same_bits(expected, knockout.select(SCORES, 4, Adaptive(SHARPNESS, unit_of(SCORES))).weights())


# --- when ---


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = calibrated()
    first = layer.unit.clone()
    monkeypatch.setattr(module, "measured_unit", None)  # on the CPU it is not even called again
    found = layer.select(SCORES * 100)
    assert layer.unit == first
    same_bits(found.weights(), knockout.select(SCORES * 100, 4, Adaptive(SHARPNESS, first)).weights())


def test_evaluation_measures_nothing() -> None:
    layer = TopK(4).eval()
    for scores in (SCORES, SCORES[:1], SCORES * 100):
        same_bits(layer.select(scores).weights(), knockout.select(scores, 4, unmeasured()).weights())
    assert layer.unit == 0
    layer.train().select(SCORES)
    layer.eval().select(SCORES * 100)
    assert layer.unit.item() == pytest.approx(unit_of(SCORES))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_training_mode_counts_and_not_gradients(mode: Callable[[], Any]) -> None:
    layer = TopK(4)
    with mode():
        layer.select(SCORES)
    assert layer.unit.item() == pytest.approx(unit_of(SCORES))
    layer.select(SCORES)


@pytest.mark.parametrize("boost", [2.0, Relative(3), Fixed(2), Base(20), Power(20), Adaptive(2, unit=5)])
def test_other_boosts_are_never_measured(boost: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measured_unit", None)
    layer = TopK(4, boost)
    layer.select(SCORES)
    assert dict(layer.named_buffers()).get("unit") == (5 if isinstance(boost, Adaptive) else None)


def test_a_given_unit_is_kept_at_any_size() -> None:
    for unit in (1e-60, 1e60):
        layer = TopK(4, Adaptive(2, unit))
        layer.select(SCORES)
        same_bits(layer.select(SCORES).weights(), knockout.select(SCORES, 4, Adaptive(2, unit)).weights())


def test_wrong_arguments_leave_no_trace() -> None:
    layer = TopK(4)
    for scores, mask, message in (
        (SCORES, SCORES, "mask must be a bool tensor"),
        (SCORES, torch.ones(19).bool(), "mask must have shape"),
        (SCORES.int(), None, "scores must be float16"),
        (SCORES[:, :0], None, "k must be at least 1"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            layer.select(scores, mask)
    assert layer.unit == 0


def test_no_gradient_flows_through_the_measurement() -> None:
    scores = SCORES.clone().requires_grad_()
    layer = TopK(4)
    (found,) = torch.autograd.grad(layer.select(scores).scores.square().sum(), scores)
    known = knockout.select(scores, 4, Adaptive(SHARPNESS, layer.unit.item()))
    same_bits(found, torch.autograd.grad(known.scores.square().sum(), scores)[0])


# --- saved and loaded ---


def test_a_loaded_layer_does_not_measure_again() -> None:
    layer, other = calibrated(), TopK(4)
    assert layer.state_dict().keys() == {"sharpness", "unit"}
    other.load_state_dict(layer.state_dict())
    other.select(SCORES * 100)
    assert other.unit == layer.unit
    other.load_state_dict(TopK(4).state_dict())  # of one that had not measured
    other.select(SCORES * 100)
    assert other.unit.item() == pytest.approx(unit_of(SCORES * 100))


def test_states_without_a_unit() -> None:
    """They come from another boost: taken for Adaptive, the same numbers would choose otherwise."""
    old, made = TokenPool(DIM, 4, boost=4.0).state_dict(), TokenPool(DIM, 4)
    with (
        pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "topk\.unit"'),
        pytest.warns(UserWarning, match=r"topk\.sharpness but no topk\.unit: .* Make the layer with the boost"),
    ):
        made.load_state_dict(old)
    with pytest.warns(UserWarning, match="Make the layer with the boost that it had"):
        assert made.load_state_dict(old, strict=False).missing_keys == ["topk.unit"]
    assert made.topk.unit == 0
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "topk\.unit"'):
        TokenPool(DIM, 4, boost=4.0).load_state_dict(made.state_dict())
    made.load_state_dict({}, strict=False)  # nothing of the layer is there, so there is nothing to warn of


# --- by hand ---


def test_the_boost_shows_what_is_measured() -> None:
    layer = TopK(4)
    assert layer.boost == unmeasured()
    assert repr(layer) == (
        f"TopK(k=4, boost=Adaptive(c={SHARPNESS}, unit=<measured on the first training batch>, alpha=1.5))"
    )
    layer.select(SCORES)
    assert layer.boost == Adaptive(SHARPNESS, layer.unit)
    assert repr(layer) == f"TopK(k=4, boost=Adaptive(c={SHARPNESS}, unit={layer.unit.item()}, alpha=1.5))"


def test_set_by_hand() -> None:
    layer = TopK(4)
    layer.boost = Adaptive(2, unit=5, alpha=2)
    assert layer.boost == Adaptive(2, unit=5, alpha=2)
    layer.select(SCORES)
    assert (layer.sharpness, layer.unit) == (2, 5)
    layer.boost = None
    assert (layer.sharpness, layer.unit, layer.boost.alpha) == (SHARPNESS, 0, 1.5)
    number = torch.tensor(3.0)
    layer.boost = Adaptive(number, unit=number)
    number.fill_(7.0)
    assert (layer.sharpness, layer.unit) == (3, 3)
    with pytest.raises(TypeError, match=r"boost must remain Adaptive, or .* when the layer is made; got Relative\(c=2"):
        layer.boost = 2.0


def test_calibrated_by_hand() -> None:
    layer, mask = TopK(4).eval(), masked(3, 20, [20, 7, 2])
    layer.calibrate(SCORES, mask)
    assert layer.unit.item() == pytest.approx(unit_of(SCORES, mask))
    layer.train().calibrate(iter((9 * SCORES).split([12, 8], dim=-1)))  # chunks, and again
    assert layer.unit.item() == pytest.approx(unit_of(9 * SCORES))
    layer.calibrate()
    assert layer.unit == 0
    layer.select(SCORES)
    assert layer.unit.item() == pytest.approx(unit_of(SCORES))
    layer.boost = Adaptive(2, 5)
    layer.calibrate()
    assert "first training batch" in repr(layer)
    layer.select(SCORES)
    assert (layer.sharpness.item(), layer.unit.item()) == (2, pytest.approx(unit_of(SCORES)))


class AboutMean(nn.Module):
    """A scorer that looks at all tokens, padding too."""

    weight = nn.Parameter(randn(DIM, dtype=torch.float32))
    with_gradient: bool

    def forward(self, x: Tensor) -> Tensor:
        self.with_gradient = torch.is_grad_enabled()
        return (x - x.mean(dim=-2, keepdim=True)).tanh() @ self.weight


@pytest.mark.parametrize("keep", [0, 2])
def test_a_pool_calibrated_by_hand_is_as_after_its_first_batch(keep: int) -> None:
    x, mask = tokens(3, 20), masked(3, 20, [20, 9, 5])
    x = x.masked_fill(~mask.unsqueeze(-1), NAN)
    x[:, :keep] *= 1e3  # kept tokens do not compete
    one, other = (TokenPool(DIM, k=4, keep=keep, scorer=AboutMean()) for _ in range(2))
    one(x, mask)
    other.eval().calibrate(x, mask)
    assert one.topk.unit == other.topk.unit > 0
    assert not other.scorer.with_gradient
    other.calibrate()
    assert other.topk.unit == 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: TopK(4, 2.0).calibrate(SCORES), TypeError, r"only the unit of an Adaptive boost.*; got Relative\(c=2"),
        (lambda: TopK(4, Power(20)).calibrate(), TypeError, r"only the unit of an Adaptive boost.*; got Power"),
        (lambda: TopK(4).calibrate(SCORES[:, :1]), ValueError, r"scores must have a row .*; got none in .*\(3, 1\)"),
        (lambda: TopK(4).calibrate(SCORES[:, :0]), ValueError, r"scores must have a row .*; got none in .*\(3, 0\)"),
        (lambda: TopK(4).calibrate(SCORES * NAN), ValueError, "scores must have a row"),
        (lambda: TopK(4).calibrate(SCORES, SCORES), TypeError, "mask must be a bool tensor"),
        (lambda: TopK(4).calibrate(3.0), TypeError, "scores must be a torch.Tensor"),
        (lambda: pool(k=4).calibrate(SCORES), ValueError, r"x must have shape \(\.\.\., n, 16\)"),
        (lambda: pool(k=4, keep=3).calibrate(tokens(3)), ValueError, "scores must have a row"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], None], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_the_pools_of_a_pyramid_calibrate_themselves_each() -> None:
    made = encoder(lengths={0: 12, 1: 5})
    x = tokens(2, 40)
    first = made.layers[0](x)
    level = made(x).levels[0]
    pools = list(made.pools.values())
    assert pools[0].topk.unit.item() == pytest.approx(unit_of(pools[0].scorer(first)), rel=1e-5)
    assert pools[1].topk.unit.item() == pytest.approx(unit_of(pools[1].scorer(made.layers[1](level.x))), rel=1e-5)


def test_any_scorer_that_starts_from_zero_learns() -> None:
    scorer = nn.Linear(DIM, 1)
    nn.init.zeros_(scorer.weight)
    made = TokenPool(DIM, 4, scorer=scorer)
    made(tokens(3, 20)).x.square().sum().backward()
    assert made.topk.unit == DEFAULT.unit
    assert scorer.weight.grad.abs().sum() > 0
