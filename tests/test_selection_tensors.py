"""Selections moved, detached, indexed, copied and saved."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import knockout
from knockout import Selection, backends, methods, select
from knockout.boost import Adaptive
from knockout.methods.neuralsort import NeuralSortPlan
from knockout.plan import SparsePlan
from tests.cases import BOOSTS, randn, same_bits

SCORES = randn(4, 3, 10)
MASK = torch.rand(3, 10, generator=torch.Generator().manual_seed(0)) > 0.3
VALUES = randn(4, 3, 10, 2, seed=1)


def by_method(name: str) -> Callable[[Tensor], Selection]:
    def made(scores: Tensor) -> Selection:
        noise = {"generator": torch.Generator().manual_seed(5)} if name in ("gumbel", "perturbed") else {}
        picked: Selection = getattr(methods, name)(scores, 4, **noise, order="position")
        return picked

    return made


KINDS: dict[str, Callable[[Tensor], Selection]] = {
    "soft": lambda scores: select(scores, 4, mask=MASK.expand(4, 3, 10)),
    "mask with fewer dimensions": lambda scores: select(scores[0, 0], 4, mask=(SCORES > -0.5)),
    "straight-through": lambda scores: select(scores, 4, 1.0, hard=True, order="position"),
    "fraction": lambda scores: select(scores, 0.4, Adaptive(torch.tensor(2.0), torch.tensor(1.5))),
    **{name: by_method(name) for name in methods.__all__},
}
PLAN_KINDS = ["soft", "straight-through", "fraction", "softsort", "lapsum", "hard"]


def shown(picked: Selection, *values: Tensor) -> list[Tensor]:
    """All that a selection can tell."""
    told = [picked.indices, picked.mask, picked.scores, picked.weights(), picked.mass(), picked.perplexity()]
    gates = [] if picked._origin is None else [picked.gates(), picked.gates(2.0)]
    return [each.detach() for each in (*told, picked.support(), *gates, *(picked.apply(each) for each in values))]


def agree(one: Selection, other: Selection) -> None:
    assert type(one._plan) is type(other._plan)
    assert repr(one) == repr(other)
    for each, expected in zip(shown(one, VALUES), shown(other, VALUES), strict=True):
        same_bits(each, expected)


@pytest.mark.parametrize(
    "index",
    [0, -1, slice(1, 3), (slice(None), 2), (1, 2), Ellipsis, (Ellipsis, 0), torch.tensor([2, 0, 2]), [3, 1],
     torch.tensor([[0, 1], [2, 3]]), (None, 0), (slice(None), None), SCORES[..., 0] > 0, SCORES[:, 0, 0] > 0,
     (torch.tensor([1, 2]), torch.tensor([0, 1])), slice(0, 0), slice(None, None, 2)],
    ids=str,
)  # fmt: skip
def test_indexing_is_that_of_the_batch_dimensions(index: Any) -> None:
    picked = select(SCORES, 4, mask=MASK.expand(4, 3, 10))
    rows = torch.arange(12).view(4, 3)[index]
    for found, whole in zip(shown(picked[index], VALUES.flatten(0, 1)[rows]), shown(picked, VALUES), strict=True):
        torch.testing.assert_close(found, whole.flatten(0, 1)[rows])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_selection(kind: str) -> None:
    picked = KINDS[kind](SCORES)
    index = torch.tensor([3, 0])
    for found, whole in zip(shown(picked[index, 1:], VALUES[index, 1:]), shown(picked, VALUES), strict=True):
        torch.testing.assert_close(found, whole[index, 1:])


def test_gradients_of_indexed_selections() -> None:
    scores, other = SCORES.clone().requires_grad_(), SCORES.clone().requires_grad_()
    up = randn(3, 4, 2, seed=3)
    (found,) = torch.autograd.grad(select(scores, 4, 1.0)[2].apply(VALUES[2]), scores, up)
    (expected,) = torch.autograd.grad(select(other[2], 4, 1.0).apply(VALUES[2]), other, up)
    same_bits(found, expected)
    assert found[2].any()


def test_plots_and_reports_of_rows() -> None:
    picked = select(SCORES, 4)
    assert knockout.report(picked[1:3]) == knockout.report(select(SCORES[1:3], 4))
    assert picked[1]._origin is not None
    assert torch.equal(picked[1]._origin.scores, SCORES[1])


@pytest.mark.parametrize("index", [(0, 0, 0), 4, (slice(None), 7), torch.tensor([9]), (Ellipsis, 0, 0, 0)], ids=str)
def test_slots_and_candidates_cannot_be_indexed(index: Any) -> None:
    with pytest.raises(
        IndexError, match=r"a selection is indexed by its batch dimensions, which are \(4, 3\), and not"
    ):
        select(SCORES, 4)[index]


def test_a_selection_is_not_iterable() -> None:
    for scores in (SCORES, SCORES[0, 0]):
        with pytest.raises(TypeError, match="'Selection' object is not iterable"):
            list(select(scores, 4))  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", KINDS)
def test_detached(kind: str) -> None:
    scores = SCORES.clone().requires_grad_()
    picked = KINDS[kind](scores)
    alone = picked.detach()
    agree(alone, picked)
    made = [alone.scores, alone.weights(), alone.mass(), alone.perplexity(), alone.apply(VALUES)]
    made += [] if alone._origin is None else [alone.gates()]
    assert not any(each.requires_grad for each in made)
    assert kind == "hard" or picked.scores.requires_grad


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_another_dtype(kind: str, dtype: torch.dtype) -> None:
    picked = KINDS[kind](SCORES.float())
    there = picked.to(dtype)
    assert there.dtype == dtype
    assert picked.dtype == torch.float32
    assert {each.dtype for each in (there.scores, there.weights(), there.mass(), there.perplexity())} == {dtype}
    for found, expected in zip(shown(there), shown(picked), strict=True):
        torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-3, atol=1e-5)
    assert there.apply(VALUES).dtype == VALUES.dtype
    for found, expected in zip(shown(there.to(torch.float32)), shown(picked), strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    same = picked.to("cpu", non_blocking=True).to(VALUES.to(torch.float32))
    agree(same, picked)


def test_weights_are_not_rounded() -> None:
    plan = select(SCORES.float(), 4).to(torch.float64)._plan
    assert isinstance(plan, SparsePlan)
    assert (plan.weight.dtype, plan.score.dtype, plan.member.is_floating_point()) == (*[torch.float64] * 2, False)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert isinstance(same := select(SCORES, 4).to(dtype)._plan, SparsePlan)
        assert same.weight.dtype == torch.float64
    kept = methods.neuralsort(SCORES.float(), 4).to(torch.float16)._plan
    assert isinstance(kept, NeuralSortPlan)
    assert (kept.score.dtype, kept.distance.dtype) == (torch.float32, torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_another_device(kind: str) -> None:
    there = KINDS[kind](SCORES.clone().requires_grad_()).to("meta")
    made = [*shown(there, VALUES.to("meta")), there.indices, there.mask]
    assert {each.device.type for each in made} == {"meta"}
    with pytest.raises(ValueError, match="values must be on the device of scores, meta; got cpu"):
        there.apply(VALUES)


def test_gradients_reach_the_scores_through_to() -> None:
    scores = SCORES.float().requires_grad_()
    up = randn(4, 3, 4, 2, seed=3)
    (found,) = torch.autograd.grad(select(scores, 4, 1.0).to(torch.float64).apply(VALUES), scores, up)
    (expected,) = torch.autograd.grad(select(scores, 4, 1.0).apply(VALUES), scores, up)
    torch.testing.assert_close(found, expected)
    assert found.any()


def test_a_moved_selection_gets_a_backend_that_takes_it() -> None:
    picked = select(SCORES, 4)
    assert isinstance(picked._plan, SparsePlan)
    assert picked._plan.backend == backends.chosen_for("cpu")
    moved = picked.to("meta")._plan
    assert isinstance(moved, SparsePlan)
    assert moved.backend == "reference"
    with backends.force("reference"):
        kept = select(SCORES, 4).detach()._plan
    assert isinstance(kept, SparsePlan)
    assert kept.backend == "reference"


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_what_dtype_a_selection_may_have(dtype: torch.dtype) -> None:
    with pytest.raises(
        TypeError, match=f"dtype must be float16, bfloat16, float32 or float64, as of scores; got {dtype}"
    ):
        select(SCORES, 4).to(dtype)


@pytest.mark.parametrize("kind", PLAN_KINDS)
def test_copies(kind: str) -> None:
    scores = SCORES.clone().requires_grad_()
    picked = KINDS[kind](scores)
    shallow = copy.copy(picked)
    agree(shallow, picked)
    assert shallow.weights().requires_grad == picked.weights().requires_grad
    deep = copy.deepcopy({"a": picked.detach()})["a"]
    before = copy.deepcopy(deep)
    agree(deep, picked)
    picked.indices.zero_()
    with torch.no_grad():
        scores.zero_()
    agree(deep, before)
    if kind != "hard":
        with pytest.raises(RuntimeError, match=r"Pass copy\.deepcopy\(selection\.detach\(\)\)"):
            copy.deepcopy(picked)


def test_what_is_deep_copied_has_a_boost_of_its_own() -> None:
    c = torch.tensor(2.0)
    deep = copy.deepcopy(select(SCORES, 4, c))
    c.fill_(9.0)
    assert deep._origin is not None
    assert repr(deep._origin.boost) == "Relative(c=2.0, unit=1.0, alpha=1.5)"
    with torch.no_grad():  # scores of a graph, though the selection has none
        picked = select(SCORES.clone().requires_grad_() * 1, 4)
    agree(copy.deepcopy(picked), picked)


def saved(thing: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded(kind: str) -> None:
    picked = KINDS[kind](SCORES.clone().requires_grad_())
    loaded = torch.load(saved({"picked": picked, "step": 3}), weights_only=True)["picked"]
    agree(loaded, picked)
    assert not loaded.scores.requires_grad
    there = torch.load(saved(picked), map_location="meta")
    assert there.apply(VALUES.to("meta")).device.type == "meta"
    agree(pickle.loads(pickle.dumps(picked)), picked)


def test_results_are_loaded() -> None:
    result = knockout.topk(VALUES, SCORES, k=2)
    loaded = torch.load(saved(result), weights_only=True)
    assert type(loaded) is type(result)
    assert torch.equal(loaded.values, result.values)
    pooled = knockout.nn.TokenPool(VALUES.shape[-1], k=2).to(VALUES.dtype)(VALUES)
    assert torch.equal(torch.load(saved(pooled), weights_only=True).x, pooled.x)


def test_boosts_are_loaded() -> None:
    for boost in (*BOOSTS, Adaptive(torch.tensor(2.0), unit=3)):
        assert repr(torch.load(saved(boost))) == repr(boost)


def test_a_loaded_selection_needs_no_backend_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    if backends.chosen_for("cpu") != "cpu":
        pytest.skip("the kernels are missing here, too")
    picked = select(SCORES, 4)
    file = saved(picked)
    with backends.force("reference"):
        monkeypatch.setattr("knockout.ops.cpu.backend._missing", "they were not built")
        loaded = torch.load(file)
        assert loaded._plan.backend == "reference"
    agree(loaded, picked)
