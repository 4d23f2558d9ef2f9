"""The methods of others: against their papers' formulas, and held to what every method must do."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import knockout
from knockout import methods
from knockout.plan import DensePlan
from tests import relaxations
from tests.cases import DTYPES, Watch, randn, same_bits, score, separated

INF, NAN = float("inf"), float("nan")
Method = Callable[..., knockout.Selection]

# Methods that weigh all candidates in each slot, and methods that give a mask; without noise, so that calls compare.
SLOTS: dict[str, Method] = {
    "softsort": methods.softsort,
    "softsort, squared": partial(methods.softsort, power=2),
    "neuralsort": methods.neuralsort,
    "sinkhorn": partial(methods.sinkhorn, steps=10),
    "gumbel": partial(methods.gumbel, noise=False),
}
MASKS: dict[str, Method] = {
    "lapsum": methods.lapsum,
    "lml": methods.lml,
    "projection": methods.projection,
    "coordinate descent": partial(methods.coordinate_descent, steps=20),
    "threshold": methods.threshold,
}
COMMON: dict[str, Method] = {"gated": methods.gated, "straight-through": methods.straight_through}
NOISY: dict[str, Method] = {"perturbed": methods.perturbed, "gumbel, noisy": methods.gumbel}


def seeded(method: Method) -> Method:
    """The same noise in every call."""

    def call(*arguments: Any, **options: Any) -> knockout.Selection:
        return method(*arguments, generator=torch.Generator().manual_seed(7), **options)

    return call


DETERMINED = {**SLOTS, **MASKS, **COMMON}
ALL = {**DETERMINED, **{name: seeded(method) for name, method in NOISY.items()}}

every = pytest.mark.parametrize("name", ALL)
determined = pytest.mark.parametrize("name", DETERMINED)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[float], int, list[bool] | None, float]:
    scores = draw(st.lists(score, min_size=1, max_size=14))
    mask = draw(st.none() | st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    return scores, draw(st.integers(1, len(scores))), mask, draw(st.sampled_from([0.3, 1.0, 2.0]))


def solved(scores: list[float], mask: list[bool] | None, k: int) -> tuple[list[int], list[float], int]:
    """Active candidates, their scores, and how many of them are selected."""
    who = [i for i in range(len(scores)) if mask is None or mask[i]]
    return who, [scores[i] for i in who], min(k, len(who))


@pytest.mark.parametrize(
    ("method", "formula"),
    [
        (methods.softsort, relaxations.softsort),
        (partial(methods.softsort, power=2), partial(relaxations.softsort, power=2)),
        (methods.neuralsort, relaxations.neuralsort),
        (partial(methods.sinkhorn, steps=7), partial(relaxations.sinkhorn, steps=7)),
        (partial(methods.gumbel, noise=False), relaxations.gumbel),
    ],
)
@given(problem=problems())
@settings(max_examples=60, deadline=None)
def test_slots_are_those_of_the_paper(method: Method, formula: Callable[..., list[list[float]]], problem: Any) -> None:
    scores, k, mask, temperature = problem
    who, taking_part, filled = solved(scores, mask, k)
    expected = torch.zeros(k, len(scores), dtype=torch.float64)
    if filled:
        expected[:filled, who] = torch.tensor(formula(taking_part, filled, temperature), dtype=torch.float64)
    given_mask = None if mask is None else torch.tensor(mask)
    found = method(torch.tensor(scores, dtype=torch.float64), k, temperature, mask=given_mask)
    torch.testing.assert_close(found.weights(), expected, rtol=1e-6, atol=1e-9)
    values = randn(len(scores), 3)
    torch.testing.assert_close(found.apply(values), expected @ values, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.mass(), expected.sum(dim=0), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.scores, expected @ torch.tensor(scores, dtype=torch.float64), rtol=1e-6, atol=1e-8)
    order = sorted(who, key=lambda i: (-scores[i], i))
    assert found.indices.tolist() == order[:filled] + [-1] * (k - filled)


@pytest.mark.parametrize(
    ("method", "formula"),
    [
        (methods.lapsum, relaxations.lapsum),
        (methods.lml, relaxations.lml),
        (methods.projection, relaxations.projection),
        (partial(methods.coordinate_descent, steps=3000), relaxations.coordinate_descent),
        (methods.threshold, relaxations.threshold),
    ],
)
@given(problem=problems())
@settings(max_examples=60, deadline=None)
def test_masks_are_those_of_the_paper(method: Method, formula: Callable[..., list[float]], problem: Any) -> None:
    scores, k, mask, temperature = problem
    who, taking_part, filled = solved(scores, mask, k)
    expected = torch.zeros(len(scores), dtype=torch.float64)
    if filled:
        expected[who] = torch.tensor(formula(taking_part, filled, temperature), dtype=torch.float64)
    given_mask = None if mask is None else torch.tensor(mask)
    found = method(torch.tensor(scores, dtype=torch.float64), k, temperature, mask=given_mask)
    loose = 2e-3 if formula is relaxations.coordinate_descent else 1e-9
    torch.testing.assert_close(found.mass(), expected, rtol=0, atol=loose)
    # The top k rows, each with its share of the mask.
    leaders = found.indices[found.mask]
    assert int(found.mask.sum()) == len(leaders) == filled
    assert sorted(scores[i] for i in leaders) == sorted(taking_part, reverse=True)[:filled][::-1]
    rows = torch.zeros(k, len(scores), dtype=torch.float64)
    rows[torch.arange(filled), leaders] = found.mass()[leaders]
    same_bits(found.weights(), rows)
    values = randn(len(scores), 3)
    torch.testing.assert_close(found.apply(values), rows @ values)
    torch.testing.assert_close(found.scores, rows @ torch.tensor(scores, dtype=torch.float64))
    assert found.support().tolist() == [1] * filled + [0] * (k - filled)
    assert found.perplexity().tolist() == [1.0] * filled + [0.0] * (k - filled)


@pytest.mark.parametrize("name", ["lapsum", "lml", "projection"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_shares_add_up_to_k_at_any_temperature(name: str, dtype: torch.dtype) -> None:
    scores = torch.cat([randn(2, 300), randn(1, 300).round(), torch.ones(1, 300)]).to(dtype)
    for temperature in (1e-4, 1e-2, 1.0, 1e2, 1e4):
        mass = MASKS[name](scores, 20, temperature).mass()
        assert mass.dtype == dtype
        torch.testing.assert_close(mass.double().sum(-1), torch.full((4,), 20.0).double(), rtol=1e-2, atol=0)


def test_projection_is_sparse_to_the_last_bit() -> None:
    mass = methods.projection(randn(5, 100, dtype=torch.float32), 10).mass()
    assert ((mass == 0) | (mass == 1)).float().mean() > 0.7
    assert ((mass > 0) & (mass < 1)).any()


def test_a_gate_scales_the_rows_of_a_hard_top_k() -> None:
    scores, values = randn(3, 20), randn(3, 20, 4)
    found, top = methods.gated(scores, 5, temperature=2.0, scale=3.0), torch.topk(scores, 5)
    rows = values.gather(1, top.indices.unsqueeze(-1).expand(-1, -1, 4))
    torch.testing.assert_close(found.apply(values), 3 * torch.sigmoid(top.values / 2).unsqueeze(-1) * rows)
    assert torch.equal(found.indices, top.indices)
    torch.testing.assert_close(found.mass().sum(-1), 3 * torch.sigmoid(top.values / 2).sum(-1))


def test_straight_through_chooses_hard_and_learns_from_a_softmax() -> None:
    scores, values = randn(3, 20).requires_grad_(), randn(3, 20, 4)
    found = methods.straight_through(scores, 5, temperature=2.0)
    same_bits(found.apply(values), methods.hard(scores, 5).apply(values))
    same_bits(found.mass(), methods.hard(scores, 5).mass())
    up = randn(3, 20, seed=1)
    (learned,) = torch.autograd.grad(found.mass(), scores, up)
    (expected,) = torch.autograd.grad(torch.softmax(scores / 2.0, dim=-1), scores, up)
    torch.testing.assert_close(learned, expected)


def test_perturbed_is_what_two_candidates_would_do() -> None:
    # The difference of two scores with noise of deviation t is normal with deviation sqrt(2) t.
    scores, t = torch.tensor([0.4, 0.0], dtype=torch.float64, requires_grad=True), 0.5
    found = methods.perturbed(scores, 1, t, samples=200_000, generator=torch.Generator().manual_seed(0))
    z = 0.4 / (math.sqrt(2) * t)
    wins = 0.5 * (1 + math.erf(z / math.sqrt(2)))
    slope = math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / (math.sqrt(2) * t)
    torch.testing.assert_close(found.weights()[0], torch.tensor([wins, 1 - wins]).double(), rtol=0, atol=5e-3)
    (learned,) = torch.autograd.grad(found.weights()[0, 0], scores)
    torch.testing.assert_close(learned, torch.tensor([slope, -slope]).double(), rtol=0, atol=1e-2)


def test_perturbed_has_the_gradient_of_its_expectation_off_the_diagonal_too() -> None:
    scores, values = torch.tensor([0.3, 0.1, 0.0, -0.2], dtype=torch.float64), randn(4, 2)
    up = randn(2, 2, seed=1)

    def value(scores: Tensor) -> Tensor:
        drawn = torch.Generator().manual_seed(0)
        return (methods.perturbed(scores, 2, 0.4, samples=400_000, generator=drawn).apply(values) * up).sum()

    (learned,) = torch.autograd.grad(value(moving := scores.clone().requires_grad_()), moving)
    step = 0.05
    moved = [value(scores + step * e) - value(scores - step * e) for e in torch.eye(4, dtype=torch.float64)]
    torch.testing.assert_close(learned, torch.stack(moved) / (2 * step), rtol=0, atol=2e-2)
    assert abs(float(learned.sum())) < 2e-2  # a common offset changes nothing: the diagonal alone would say otherwise


def test_gumbel_samples_in_proportion_to_the_exponentials() -> None:
    scores = torch.tensor([1.0, 0.0, -1.0, 0.5]).expand(20_000, -1)
    first = methods.gumbel(scores, 1, generator=torch.Generator().manual_seed(0)).indices.flatten()
    torch.testing.assert_close(torch.bincount(first) / 20_000, torch.softmax(scores[0], dim=-1), rtol=0, atol=0.015)


@pytest.mark.parametrize("name", ["softsort", "softsort, squared", "neuralsort", "sinkhorn", "gumbel", *MASKS, "gated"])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients(name: str, masked: bool) -> None:
    scores, values = separated(2, 8).requires_grad_(), randn(2, 8, 3).requires_grad_()
    mask = torch.tensor([[True] * 8, [True, False, True, True, False, True, True, True]]) if masked else None

    def operator(values: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        found = DETERMINED[name](scores, 3, 0.7, mask=mask)
        return found.apply(values), found.scores, found.mass()

    assert gradcheck(operator, (values, scores))
    assert gradgradcheck(operator, (values, scores))


def test_gradients_of_noisy_gumbel() -> None:
    scores = separated(2, 8).requires_grad_()
    assert gradcheck(lambda scores: seeded(methods.gumbel)(scores, 3, 0.7).weights(), (scores,))


@every
def test_masks_invalid_rows_and_empty_slots(name: str) -> None:
    method = ALL[name]
    scores, values = separated(4, 12).float(), randn(4, 12, 3, dtype=torch.float32)
    mask = torch.rand(4, 12, generator=torch.Generator().manual_seed(0)) > 0.4
    moving = torch.where(mask, scores, NAN).requires_grad_()
    masked = method(moving, 3, mask=mask)
    by_score = method(torch.where(mask, scores, -INF), 3)
    garbage = torch.where(mask.unsqueeze(-1), values, NAN)
    same_bits(by_score.weights(), masked.weights().detach())
    for row in range(4):
        assert not masked.mass()[row, ~mask[row]].any()
        if name in DETERMINED:
            deleted = method(scores[row, mask[row]], 3)
            torch.testing.assert_close(masked.apply(garbage)[row], deleted.apply(values[row, mask[row]]))
            torch.testing.assert_close(masked.mass()[row, mask[row]], deleted.mass())
            assert torch.equal(masked.indices[row], mask[row].nonzero().flatten()[deleted.indices])
    if masked.apply(garbage).requires_grad:
        (learned,) = torch.autograd.grad(masked.apply(garbage).square().sum() + masked.mass().square().sum(), moving)
        assert learned.isfinite().all()
        assert not learned[~mask].any()
        assert learned.any()
    for bad in (NAN, INF):
        invalid = scores.clone()
        invalid[2, 5] = bad
        found = method(invalid, 3)
        for out in (found.apply(values), found.scores, found.weights(), found.mass(), found.perplexity()):
            assert out[2].isnan().all()
            assert out[[0, 1, 3]].isfinite().all()
    few = method(torch.tensor([[1.0, -INF, 2.0], [-INF] * 3], requires_grad=True), 3)
    assert few.indices[0].sort().values.tolist() == [-1, 0, 2]
    assert few.indices[1].tolist() == [-1] * 3
    assert few.mask.tolist() == [[True, True, False], [False] * 3]
    assert few.scores[1].tolist() == [0.0] * 3
    assert not few.apply(torch.ones(2, 3, 2))[1].any()
    assert few.apply(torch.ones(2, 3, 2)).isfinite().all()


@determined
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e4, 1e30])
def test_finite_for_any_finite_scores(name: str, scale: float, dtype: torch.dtype) -> None:
    scale = min(scale, torch.finfo(dtype).max / 8)
    scores = (torch.tensor([1.0, -1.0, 0.5, 0.5, 3.0]) * scale).to(dtype).requires_grad_()
    for k in (2, 5):
        found = DETERMINED[name](scores, k)
        assert found.mass().dtype == found.weights().dtype == dtype
        shown = (found.weights(), found.mass(), found.apply(torch.ones(5, 2)))
        assert all(each.isfinite().all() for each in shown)
        up = randn(5, seed=3).to(dtype)
        (learned,) = torch.autograd.grad((found.mass() * up).sum() + found.weights().square().sum(), scores)
        assert not learned.isnan().any()


@every
@pytest.mark.parametrize("values_dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scores_dtype", DTYPES)
def test_each_dtype_is_kept_and_half_types_are_computed_in_single(
    name: str, scores_dtype: torch.dtype, values_dtype: torch.dtype
) -> None:
    scores, values = separated(2, 30).to(scores_dtype), randn(2, 30, 3).to(values_dtype)
    found = ALL[name](scores, 4)
    assert found.apply(values).dtype == values_dtype
    assert found.scores.dtype == found.weights().dtype == found.mass().dtype == scores_dtype
    if scores_dtype in (torch.float16, torch.bfloat16):
        same_bits(found.mass(), ALL[name](scores.float(), 4).mass().to(scores_dtype))


@determined
def test_rows_of_a_batch_do_not_know_of_each_other(name: str) -> None:
    scores, values = randn(2, 3, 15), randn(3, 15, 4)
    found = DETERMINED[name](scores, 4)
    assert found.apply(values).shape == (2, 3, 4, 4)
    for i in range(2):
        for j in range(3):
            alone = DETERMINED[name](scores[i, j], 4)
            torch.testing.assert_close(found.apply(values)[i, j], alone.apply(values[j]))
            torch.testing.assert_close(found.mass()[i, j], alone.mass())


@determined
def test_a_share_of_the_candidates_is_counted_by_row(name: str) -> None:
    scores = separated(3, 20)
    mask = torch.arange(20) < torch.tensor([[20], [11], [4]])
    found = DETERMINED[name](scores, 0.25, mask=mask)
    assert found.mask.sum(dim=-1).tolist() == [5, 3, 1]
    for row, (n, k) in enumerate([(20, 5), (11, 3), (4, 1)]):
        alone = DETERMINED[name](scores[row, :n], k)
        torch.testing.assert_close(found.mass()[row, :n], alone.mass())
        torch.testing.assert_close(found.weights()[row, :k, :n], alone.weights())


@determined
def test_torch_func_goes_through(name: str) -> None:
    scores, values = separated(4, 9), randn(4, 9, 2)

    def loss(scores: Tensor, values: Tensor) -> Tensor:
        found = DETERMINED[name](scores, 3)
        return found.apply(values).square().sum() + found.mass().square().sum()

    each = torch.func.vmap(torch.func.grad(loss))(scores, values)
    moving = scores.clone().requires_grad_()
    (together,) = torch.autograd.grad(loss(moving, values), moving)
    torch.testing.assert_close(each, together)
    found = torch.func.vmap(lambda scores: DETERMINED[name](scores, 3))(scores)
    torch.testing.assert_close(found.mass(), DETERMINED[name](scores, 3).mass())


@pytest.mark.parametrize("name", ["softsort", "neuralsort"])
def test_memory_is_bounded(name: str) -> None:
    seen: list[Tensor] = []
    values, scores = torch.randn(2, 8192, 2, requires_grad=True), torch.randn(2, 8192, requires_grad=True)
    with Watch(seen):
        SLOTS[name](scores, 512).apply(values).sum().backward()
    assert max(x.numel() for x in seen) <= DensePlan.CHUNK < 2 * 512 * 8192


@pytest.mark.parametrize("name", MASKS)
def test_masks_need_no_more_than_the_scores(name: str) -> None:
    seen: list[Tensor] = []
    values, scores = torch.randn(4, 8192, 2, requires_grad=True), torch.randn(4, 8192, requires_grad=True)
    with Watch(seen):
        MASKS[name](scores, 512).apply(values).sum().backward()
    assert max(x.numel() for x in seen) <= 2 * 4 * 8192


def test_sinkhorn_keeps_no_step_of_a_large_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, sizes, gradients = torch.randn(256, requires_grad=True), [], []
    for chunk in (2**22, 1000):
        monkeypatch.setattr(DensePlan, "CHUNK", chunk)
        kept: list[int] = []

        def keep(tensor: Tensor, kept: list[int] = kept) -> Tensor:
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            found = methods.sinkhorn(scores, 16, steps=100)
        gradients.append(torch.autograd.grad(found.mass().square().sum(), scores)[0])
        sizes.append(sum(kept))
    assert sizes[1] < 100 * 256 * 4 < sizes[0]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", ["lapsum", "lml", "projection", "coordinate descent", "neuralsort", "gumbel"])
def test_equal_scores_get_gradients_that_do_not_know_their_order(name: str) -> None:
    scores, up = torch.tensor([2.0, 1.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64), randn(6, seed=4)

    def gradient(scores: Tensor, up: Tensor) -> Tensor:
        moving = scores.clone().requires_grad_()
        (found,) = torch.autograd.grad((ALL[name](moving, 3, 0.7).mass() * up).sum(), moving)
        return found

    turned = torch.tensor([5, 3, 4, 1, 2, 0])
    torch.testing.assert_close(gradient(scores, up)[turned], gradient(scores[turned], up[turned]))


@pytest.mark.parametrize("scores", [[0.0] * 4, [2.0, 1.0, 1.0, 0.0]])
def test_lapsum_has_its_gradient_at_the_threshold_too(scores: list[float]) -> None:
    moving = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda scores: methods.lapsum(scores, 2, 1.0).mass(), (moving,))


@pytest.mark.parametrize("steps", [1, 3, 20])
def test_coordinate_descent_is_differentiated_as_far_as_it_came(steps: int) -> None:
    scores = randn(24, seed=6).requires_grad_()
    assert gradcheck(lambda scores: methods.coordinate_descent(scores, 5, 0.1, steps).mass(), (scores,))


@pytest.mark.parametrize("name", ["lapsum", "lml", "projection"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("far", [1e4, 1e9, 1e15, 1e38])
def test_scores_that_are_far_off_do_not_change_the_sum(name: str, dtype: torch.dtype, far: float) -> None:
    far = min(far, torch.finfo(dtype).max)
    near = randn(20, seed=8).to(dtype)
    for scores, k in (
        (torch.cat([near, torch.full((20,), -far, dtype=dtype)]), 8),
        (torch.cat([near, torch.full((20,), -far, dtype=dtype)]), 25),
        (torch.cat([near, torch.tensor([far], dtype=dtype)]), 8),
        (torch.cat([near, torch.tensor([-far], dtype=dtype)]), 20),
    ):
        for temperature in (1e-3, 1.0):
            total = MASKS[name](scores, k, temperature).mass().double().sum().item()
            assert total == pytest.approx(k, rel=1e-2), (k, temperature, scores)


def test_a_projection_has_no_gradient_at_its_ends() -> None:
    scores = torch.tensor([3.0, 2.0, 1.0, 0.0], requires_grad=True)
    found = methods.projection(scores, 2).mass()
    assert found.tolist() == [1.0, 1.0, 0.0, 0.0]
    (learned,) = torch.autograd.grad(found.sum(), scores)
    assert not learned.any()


def test_gumbel_knows_what_is_left_of_a_candidate_that_was_taken_whole() -> None:
    # log(1 - p) is that of the others' sum: -9990, not the logarithm of the smallest number.
    found = methods.gumbel(torch.tensor([1000.0, 1.0, 0.5, 0.0]), 2, 0.1, noise=False).weights()
    torch.testing.assert_close(
        found, torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.9933, 0.0067, 0.0]]), rtol=0, atol=1e-3
    )
    for scale in (1.0, 1e2, 1e4, 1e30):
        scores = scale * randn(3, 64, dtype=torch.float32)
        single, double = (methods.gumbel(x, 8, 0.1, noise=False).mass() for x in (scores, scores.double()))
        torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-5)


def test_noise_does_not_depend_on_memory_layout() -> None:
    scores = randn(12, 6)
    for name in NOISY:
        same_bits(ALL[name](scores.T, 3).mass(), ALL[name](scores.T.contiguous(), 3).mass())


def test_a_row_behind_a_closed_gate_is_not_read() -> None:
    found = methods.gated(torch.tensor([-200.0, -300.0]), 2)
    assert not found.apply(torch.tensor([[NAN], [1.0]])).any()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda s: methods.softsort(s, 2, temperature=0.0), ValueError, ["temperature must be positive", "0.0"]),
        (lambda s: methods.softsort(s, 2, power=3), ValueError, ["power must be one of 1, 2", "3"]),
        (lambda s: methods.lapsum(s, 2, temperature=-1), ValueError, ["temperature must be positive", "-1"]),
        (lambda s: methods.lml(s, 2, temperature="1"), TypeError, ["temperature must be an int or a float", "str"]),
        (lambda s: methods.gated(s, 2, scale=INF), ValueError, ["scale must be positive and finite", "inf"]),
        (lambda s: methods.perturbed(s, 2, samples=1), ValueError, ["samples must be at least 2", "1"]),
        (lambda s: methods.sinkhorn(s, 2, steps=0), ValueError, ["steps must be at least 1", "0"]),
        (lambda s: methods.coordinate_descent(s, 2, steps=2.5), TypeError, ["steps must be an int", "2.5"]),
        (lambda s: methods.gumbel(s, 2, noise=1), TypeError, ["noise must be True or False", "1"]),
        (lambda s: methods.gumbel(s, 2, generator=5), TypeError, ["generator must be a torch.Generator", "int"]),
        (lambda s: methods.perturbed(s, 2, generator=5), TypeError, ["generator must be a torch.Generator", "int"]),
        (lambda s: methods.softsort(s, 2, power=True), TypeError, ["power must be an int", "True"]),
        (lambda s: methods.projection(s, 11), ValueError, ["k must be at most n", "k = 11"]),
        (lambda s: methods.threshold(s.long(), 2), TypeError, ["scores must be", "scores.float()"]),
        (lambda s: methods.neuralsort(s, 2, mask=s), TypeError, ["mask must be a bool tensor"]),
    ],
)
def test_bad_input(call: Callable[[Tensor], object], error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        call(torch.randn(4, 10))
    assert all(word in str(caught.value) for word in words), str(caught.value)
