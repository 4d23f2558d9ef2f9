"""Schedules of the boost."""

# mypy: disable-error-code="arg-type, list-item, operator, union-attr"

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import knockout
from knockout.boost import Adaptive, Fixed, Power, Relative
from knockout.nn import BoostSchedule, ConstantBoost, CosineBoost, LinearBoost, Sharpen, TokenPool, TopK
from knockout.nn.calibration import SHARPNESS
from tests.cases import randn
from tests.nn_cases import DIM


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda model: ConstantBoost(model, 3.0), [3, 3, 3, 3, 3, 3]),
        (lambda model: Sharpen(model, 4), [0.5, 0.5, 0.5, 2, 8, 8]),
        (lambda model: Sharpen(model, 4, 1, 4, hold=0.0), [1, 2**0.5, 2, 2**1.5, 4, 4]),
        (lambda model: Sharpen(model, 4, hold=1.0), [0.5] * 6),
        (lambda model: LinearBoost(model, 4, 1, 5), [1, 2, 3, 4, 5, 5]),
        (lambda model: CosineBoost(model, 4, 1, 5), [1, 3 - 2**0.5, 3, 3 + 2**0.5, 5, 5]),
        (lambda model: LinearBoost(model, 4, 8, 2), [8, 6.5, 5, 3.5, 2, 2]),
    ],
)
def test_schedules(make: Callable[[nn.Module], BoostSchedule], expected: list[float]) -> None:
    model = nn.ModuleList([TokenPool(DIM, 4, boost=4.0), TopK(3, Fixed(1))])
    schedule = make(model)
    seen = []
    for _ in expected:
        assert float(model[0].topk.sharpness) == float(model[1].sharpness) == pytest.approx(schedule.get_last_boost())
        seen.append(schedule.get_last_boost())
        schedule.step()
    assert seen == pytest.approx(expected)


@pytest.mark.parametrize("schedule", [Sharpen, LinearBoost, CosineBoost])
def test_a_schedule_starts_from_the_sharpness_of_adaptive_boosts(schedule: type[Sharpen]) -> None:
    layers, number = [TopK(3), TopK(3, Adaptive(2, 5)), TopK(3, 4.0)], torch.tensor(3.0)
    layers[1].boost = Adaptive(number, 5)
    number.fill_(7.0)
    made = schedule(nn.ModuleList(layers), 4)
    assert [float(layer.sharpness) for layer in layers] == [SHARPNESS, 3, 0.5]
    assert made.get_last_boost() == made.boost_at(0.0) == SHARPNESS
    for _ in range(3):
        made.step()
    middle = [float(layer.sharpness) for layer in layers]
    assert all(a < b < 16 * a for a, b in zip([SHARPNESS, 3, 0.5], middle, strict=True))
    assert made.get_last_boost() == pytest.approx(middle[0])
    made.step()
    assert [float(layer.sharpness) for layer in layers] == pytest.approx([16 * SHARPNESS, 48, 8])
    assert [float(layer.unit) for layer in layers[:2]] == [0, 5]  # only c is scheduled
    assert [schedule(TopK(3), 4, start=1.0, end=5.0).boost_at(part) for part in (0, 1)] == pytest.approx([1, 5])


def test_a_schedule_made_for_a_loaded_model_goes_on_all_the_same() -> None:
    first = TopK(3)
    schedule = Sharpen(first, 4, hold=0.0)
    for _ in range(2):
        schedule.step()
    saved = copy.deepcopy((first.state_dict(), schedule.state_dict()))
    again = TopK(3)
    again.load_state_dict(saved[0])
    later = Sharpen(again, 4, hold=0.0)  # the c of the loaded layer is that of the second step
    later.load_state_dict(saved[1])
    for _ in range(3):
        assert float(again.sharpness) == float(first.sharpness)
        assert later.get_last_boost() == schedule.get_last_boost()
        later.step()
        schedule.step()


def test_a_schedule_of_boosts_that_functions_take() -> None:
    adaptive, relative, layer = Adaptive(torch.tensor(2.0), unit=3), Relative(torch.tensor(7.0)), TopK(3, 4.0)
    schedule = Sharpen([adaptive, nn.ModuleList([layer]), relative], 4, hold=0.0)
    seen = []
    scores = randn(9)
    for _ in range(5):
        seen.append([float(c) for c in (adaptive.c, layer.sharpness, relative.c)])
        assert schedule.get_last_boost() == pytest.approx(seen[-1][0])
        found = knockout.select(scores, 2, adaptive).weights()
        assert torch.equal(found, knockout.select(scores, 2, Adaptive(seen[-1][0], unit=3)).weights())
        schedule.step()
    assert [each[0] for each in seen] == pytest.approx([2, 4, 8, 16, 32])
    assert [each[1] for each in seen] == [each[2] for each in seen] == pytest.approx([0.5, 1, 2, 4, 8])
    again = Adaptive(torch.tensor(2.0))  # in another process
    later = Sharpen(again, 100)
    later.load_state_dict({**schedule.state_dict(), "last_step": 3})
    assert float(again.c) == pytest.approx(16)
    later.step()
    assert float(again.c) == pytest.approx(32)


def test_states_from_before_adaptive_boosts_load() -> None:
    model = TopK(4)
    schedule = Sharpen(model, 10)
    schedule.load_state_dict({"steps": 4, "last_step": 3, "start": 0.5, "end": 8.0, "hold": 0.5})
    assert schedule.get_last_boost() == float(model.sharpness) == 2.0


def test_schedules_go_on_where_they_were() -> None:
    first = Sharpen(TopK(4, 4.0), 10)
    for _ in range(7):
        first.step()
    model = TopK(4, 4.0)
    again = Sharpen(model, 10)
    again.load_state_dict(copy.deepcopy(first.state_dict()))
    assert again.get_last_boost() == first.get_last_boost() == pytest.approx(float(model.sharpness))
    assert repr(again) == "Sharpen(step 7 of 10, boost 1.52)"
    other = Sharpen(TopK(4, 4.0), 3, start=1.0, end=100.0, hold=0.0)
    other.load_state_dict(first.state_dict())
    assert other.get_last_boost() == first.get_last_boost()
    for state in ({"epoch": 3}, LinearBoost(TopK(4), 10).state_dict(), {**first.state_dict(), "steps": 0}):
        with pytest.raises(ValueError, match=r"state must come from|steps.* must be at least 1"):
            again.load_state_dict(state)


def test_what_a_schedule_needs() -> None:
    with pytest.raises(ValueError, match=r"model must contain a knockout\.nn\.TopK"):
        Sharpen(nn.Linear(2, 2), 10)
    with pytest.raises(TypeError, match=r"Adaptive, Relative or Fixed; got Power\(b=20"):
        Sharpen(TopK(4, Power(20)), 10)
    with pytest.raises(ValueError, match="steps must be at least 1; got 0"):
        Sharpen(TopK(4), 0)
    for hold in (2.0, "x", True):
        with pytest.raises(ValueError, match="hold must be a number from 0 to 1"):
            Sharpen(TopK(4), 10, hold=hold)
    with pytest.raises(
        TypeError, match=r"model must be an nn\.Module, a knockout\.boost, or a list .* got an empty list"
    ):
        Sharpen([], 10)
    with pytest.raises(TypeError, match=r"model must be an nn\.Module, a knockout\.boost, or a list of these; got str"):
        Sharpen([TopK(4), "boost"], 10)
    with pytest.raises(TypeError, match=r"whose c is a tensor, as Fixed\(torch\.tensor\(2\.0\)\).*; got Fixed\(c=3"):
        Sharpen(Fixed(3), 10)
    with pytest.raises(TypeError, match=r"Adaptive, Relative or Fixed; got Power\(b=20"):
        Sharpen(Power(20), 10)
    with pytest.raises(ValueError, match="start must be positive"):
        LinearBoost(TopK(4), 10, start=0.0)
