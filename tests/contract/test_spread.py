"""``Selection.spread``, the way back from slots to candidates: the transpose of ``apply``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import knockout
from knockout.backends import NAMES
from tests.cases import INF, NAN, randn, same_bits, separated
from tests.contract.cases import CASES, Case, drawn_cases

SLOW_REFERENCE = [pytest.param(backend, marks=pytest.mark.slow if backend == "reference" else ()) for backend in NAMES]


def slot_values(case: Case, seed: int = 7) -> Tensor:
    """What the slots of a case hold: of the batch dimensions and the dtype of its values."""
    return randn(*case.batches[1], case.slots, case.d, seed=seed).to(case.values_dtype)


def test_each_candidate_gets_its_weight_times_what_its_slot_holds() -> None:
    picked = knockout.select(torch.tensor([3.0, 2.5, 1.0, 0.0]), 2, 1.0)  # 0.9157 and 0.0843; 0.7291 and 0.2709
    expected = torch.tensor([[9.157], [14.582], [5.418], [0.843]])
    torch.testing.assert_close(picked.spread(torch.tensor([[10.0], [20.0]])), expected, rtol=1e-3, atol=0)


def check_against_the_dense_weights(case: Case) -> None:
    scores, _, mask, _ = case.inputs()
    picked, y = case.select(scores, mask), slot_values(case)
    out, weights = picked.spread(y), picked.weights().double()
    assert out.dtype == y.dtype
    tolerance = 1e-5 if torch.float64 not in (y.dtype, scores.dtype) else 1e-6
    tolerance = max(tolerance, *(4 * torch.finfo(dtype).eps for dtype in (y.dtype, scores.dtype)))
    expected = (weights.mT @ y.double()).expand(out.shape)
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    without = (weights.sum(dim=-2) == 0).expand(out.shape[:-1])
    assert not out[without].any()


@pytest.mark.parametrize(
    "name", ["relative", "hard", "empty slots", "invalid rows", "fraction", "half types", "float64", "broadcast"]
)
def test_the_cases_of_the_contract(name: str) -> None:
    check_against_the_dense_weights(CASES[name])


@given(drawn_cases(st.integers(1, 60)))
@settings(max_examples=40, deadline=None)
def test_it_is_the_transpose_of_the_dense_weights(case: Case) -> None:
    check_against_the_dense_weights(case)


METHODS: dict[str, Callable[..., knockout.Selection]] = {
    "select": knockout.select,
    **{name: getattr(knockout.methods, name) for name in knockout.methods.__all__},
}


@given(st.data(), st.sampled_from(list(METHODS)))
@settings(max_examples=40, deadline=None)
def test_it_is_the_adjoint_of_apply(data: st.DataObject, name: str) -> None:
    """<apply(x), y> = <x, spread(y)>, with every method, and whatever masked candidates and empty slots hold."""
    n = data.draw(st.integers(1, 12))
    k = data.draw(st.integers(1, n))
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=2 * n, max_size=2 * n))).view(2, n)
    seed = data.draw(st.integers(0, 99))
    generator = {"generator": torch.Generator().manual_seed(seed)} if name in ("gumbel", "perturbed") else {}
    picked = METHODS[name](randn(2, n, seed=seed), k, mask=mask, **generator)
    x, y = randn(2, n, 3, seed=seed + 1), randn(2, k, 3, seed=seed + 2)
    there, back = picked.apply(x), picked.spread(torch.where(picked.mask.unsqueeze(-1), y, NAN))
    torch.testing.assert_close((there * y).sum(dim=(-2, -1)), (x * back).sum(dim=(-2, -1)))
    assert not back[~mask].any()


@pytest.mark.parametrize("method", [knockout.select, knockout.methods.lapsum, knockout.methods.softsort])
def test_what_is_not_read_may_be_anything(method: Callable[..., knockout.Selection]) -> None:
    scores = torch.tensor([[1.0, NAN, 2.0, -INF], [-INF] * 4])
    mask = torch.tensor([True, False, True, True])
    y = torch.full((2, 3, 2), NAN)  # the last slot is empty, and all of the second row
    y[0, :2] = 5.0
    out = method(scores, 3, mask=mask).spread(y)
    assert out[0, [0, 2]].gt(0).all()
    assert not out[0, [1, 3]].any()
    assert not out[1].any()
    y[0, 1] = NAN  # a slot that is read: the masked candidates still get 0
    assert not method(scores, 3, mask=mask).spread(y)[0, [1, 3]].any()


def test_a_slot_is_read_by_its_own_candidates_alone() -> None:
    picked = knockout.select(separated(20), 4, 1.0)
    y = torch.ones(4, 1)
    y[2] = NAN
    assert torch.equal(picked.spread(y).isnan().squeeze(-1), picked.weights()[2] != 0)


@pytest.mark.parametrize("method", [knockout.select, knockout.methods.lapsum, knockout.methods.softsort])
@pytest.mark.parametrize("bad", [NAN, INF])
def test_invalid_rows(method: Callable[..., knockout.Selection], bad: float) -> None:
    scores, mask = separated(3, 9), torch.arange(9) < 7
    scores[1, 4] = bad
    scores.requires_grad_()
    y = randn(3, 2, 4).requires_grad_()
    out = method(scores, 2, mask=mask).spread(y)
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()
    d_scores, d_y = torch.autograd.grad(out[:, :7].square().sum(), (scores, y))
    assert d_scores[1, :7].isnan().all()
    assert d_y[1].isnan().all()
    assert d_scores[[0, 2]].isfinite().all()
    assert d_y[[0, 2]].isfinite().all()


@pytest.mark.parametrize("hard", [False, True])
def test_gradcheck_and_gradgradcheck(hard: bool) -> None:
    mask = torch.arange(7) != 4

    def gradients(y: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        out = knockout.select(scores, 2, knockout.boost.Relative(0.7), mask=mask, hard=hard).spread(y)
        return torch.autograd.grad(out, (y, scores), randn(7, 1, seed=5), create_graph=True)

    def operator(y: Tensor, scores: Tensor) -> Tensor:
        return knockout.select(scores, 2, knockout.boost.Relative(0.7), mask=mask).spread(y)

    arguments = randn(2, 1).requires_grad_(), separated(7).requires_grad_()
    assert gradcheck(gradients, arguments)
    if not hard:
        assert gradcheck(operator, arguments)
        assert gradgradcheck(operator, arguments)


def test_a_straight_through_selection_is_one_hot_with_the_gradients_of_the_soft_one() -> None:
    results = []
    for hard in (False, True):
        scores, y = separated(2, 12).requires_grad_(), randn(2, 3, 4).requires_grad_()
        picked = knockout.select(scores, 3, 0.5, hard=hard)
        out = picked.spread(y)
        results.append(torch.autograd.grad(out, (scores, y), randn(2, 12, 4, seed=3)))
    same_bits(out, torch.zeros(2, 12, 4).double().scatter(1, picked.indices[..., None].expand(2, 3, 4), y))
    for one, other in zip(*results, strict=True):
        same_bits(one, other)


@pytest.mark.parametrize("name", ["relative", "hard", "invalid rows", "half types"])
def test_a_mapped_call_is_a_loop(name: str) -> None:
    case = CASES[name]
    scores, y = case.inputs().scores.detach(), slot_values(case)

    def spread(y: Tensor, scores: Tensor) -> Tensor:
        return case.select(scores, None).spread(y)

    def gradients(y: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = torch.func.grad(lambda *x: spread(*x).float().sin().sum(), argnums=(0, 1))(
            y, scores
        )
        return found

    same_bits(torch.vmap(spread)(y, scores), torch.stack([spread(y[i], scores[i]) for i in range(3)]))
    same_bits(torch.vmap(spread, (None, 0))(y[0], scores), torch.stack([spread(y[0], each) for each in scores]))
    same_bits(torch.vmap(spread, (0, None))(y, scores[0]), torch.stack([spread(each, scores[0]) for each in y]))
    looped = [gradients(y[i], scores[i]) for i in range(3)]
    for one, rows in zip(torch.vmap(gradients)(y, scores), zip(*looped, strict=True), strict=True):
        same_bits(one, torch.stack(rows))


@pytest.mark.parametrize("backend", SLOW_REFERENCE, indirect=True)
def test_compiled_and_exported() -> None:
    class Spread(torch.nn.Module):
        def forward(self, y: Tensor, scores: Tensor) -> Tensor:
            return knockout.select(scores, 5, 1.0).spread(y)

    torch._dynamo.reset()
    y, scores = randn(3, 5, 4).float().requires_grad_(), separated(3, 30).float()
    scores[2, 3] = NAN
    scores.requires_grad_()
    expected = Spread()(y, scores)
    compiled = torch.compile(Spread(), backend="aot_eager", fullgraph=True, dynamic=True)(y, scores)
    same_bits(compiled, expected)
    results = [torch.autograd.grad(out[:2].sin().sum(), (y, scores)) for out in (compiled, expected)]
    for one, other in zip(*results, strict=True):
        same_bits(one, other)
    y, scores = y.detach(), scores.detach()
    same_bits(torch.export.export(Spread(), (y, scores)).module()(y, scores), expected)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (
            torch.ones(2, 8, 4),
            r"y must have shape \(\.\.\., k, d\) with k = 3, the number of slots, as `apply` returns",
        ),
        (torch.ones(3), r"got shape \(3,\)\. For a number per slot pass y\.unsqueeze\(-1\)"),
        (
            torch.ones(5, 3, 4),
            r"the batch dimensions of y must broadcast with those of the selection, \(2,\); got \(5,",
        ),
        (torch.ones(2, 3, 4, dtype=torch.int64), r"y must be float16.*Pass y\.float\(\)"),
        (torch.ones(2, 3, 4, device="meta"), "y must be on the device of the selection, cpu; got meta"),
        ([[1.0]], "y must be a torch.Tensor; got list"),
    ],
)
def test_bad_input(y: Tensor, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        knockout.select(separated(2, 8), 3).spread(y)
