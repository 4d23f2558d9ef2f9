"""The weighted gather by itself: members with padding anywhere in a slot, as knockout.distributed makes them.

The judge is a product with a dense matrix of weights, which PyTorch differentiates.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import knockout
from knockout.ops.autograd.gather import blend, match, spread
from tests.cases import NAN, randn, same_bits, separated


class Slots(NamedTuple):
    """Members of slots, no candidate in two of them, with padding anywhere."""

    values: Tensor  # (n, d); value rows that are no slot's member are NaN
    weight: Tensor  # (k, m), nonzero, of padding too
    member: Tensor  # (k, m)
    wide: bool  # int64 members, or int32


@st.composite
def drawn_slots(draw: st.DrawFn) -> Slots:
    n, k, m = draw(st.integers(1, 12)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    # A permutation of the candidates and as much padding as there are places besides, cut to the number of places.
    places = torch.cat([torch.arange(n), torch.full((k * m,), n)])
    member = places[torch.randperm(len(places), generator=generator)][: k * m].reshape(k, m)
    weight = torch.rand(k, m, dtype=torch.float64, generator=generator) + 0.1
    values = torch.randn(n, draw(st.sampled_from([1, 3, 8])), dtype=torch.float64, generator=generator)
    values[~torch.isin(torch.arange(n), member)] = NAN
    return Slots(values, weight, member, draw(st.booleans()))


def by_a_dense_matrix(values: Tensor, weight: Tensor, member: Tensor) -> Tensor:
    n = values.shape[0]
    dense = weight.new_zeros(weight.shape[0], n + 1).scatter(-1, member, weight)[:, :n]
    return dense @ torch.where(torch.isin(torch.arange(n), member).unsqueeze(-1), values, 0.0)


@given(slots=drawn_slots())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_padding_anywhere_is_not_read_and_gets_no_gradient(backend: str, slots: Slots) -> None:
    results = []
    for own in (True, False):
        values, weight = slots.values.clone().requires_grad_(), slots.weight.clone().requires_grad_()
        if own:
            member = slots.member if slots.wide else slots.member.int()
            out = blend(values, weight, member, backend=backend)
        else:
            out = by_a_dense_matrix(values, weight, slots.member)
        first = torch.autograd.grad(out.exp().sum(), (values, weight), create_graph=True)
        second = torch.autograd.grad(first[0].square().sum() + first[1].sin().sum(), (values, weight))
        results.append((out, *first, *second))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
    assert (results[0][2][slots.member == len(slots.values)] == 0).all()


def test_padding_before_the_first_member(backend: str) -> None:
    # Slot 0 has only its second member here, slot 1 none at all.
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    weight = torch.tensor([[0.75, 0.25], [0.5, 0.5]], requires_grad=True)
    member = torch.tensor([[2, 1], [2, 2]])
    out = blend(values, weight, member, backend=backend)
    assert out.tolist() == [[0.75, 1.0], [0.0, 0.0]]
    d_values, d_weight = torch.autograd.grad(out.sum(), (values, weight))
    assert d_values.tolist() == [[0.0, 0.0], [0.25, 0.25]]
    assert d_weight.tolist() == [[0.0, 7.0], [0.0, 0.0]]


@pytest.mark.parametrize("hard", [False, True])
def test_invalid_rows_are_nan_and_others_are_not(backend: str, hard: bool) -> None:
    values, weight = torch.ones(2, 3, 1), torch.full((2, 2, 1), 0.5)
    member, valid = torch.tensor([[[0], [3]], [[1], [2]]]), torch.tensor([[True], [False]])
    out = blend(values, weight, member, valid, hard, backend=backend).squeeze(-1)
    assert out[0].tolist() == [1.0 if hard else 0.5, 0.0]
    assert out[1].isnan().all()


# --- what is saved for the backward pass ----------------------------------------------------------

MEMBER = torch.tensor([[3, 0, 5], [1, 5, 5]])  # of five candidates
VALUES, WEIGHT, GRAD = randn(5, 4), randn(2, 3, seed=1), randn(2, 4, seed=2)

# Each function with its two factors: it is linear in both.
Bilinear = Callable[[Tensor, Tensor, str], Tensor]
FUNCTIONS: dict[str, tuple[Bilinear, Tensor, Tensor]] = {
    "blend": (lambda v, w, backend: blend(v, w, MEMBER, backend=backend), VALUES, WEIGHT),
    "spread": (lambda g, w, backend: spread(g, w, MEMBER, VALUES.shape, backend=backend), GRAD, WEIGHT),
    "match": (lambda g, v, backend: match(g, v, MEMBER, torch.float64, backend), GRAD, VALUES),
}


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_gradient_of_one_factor_needs_only_the_other(backend: str, name: str, which: int) -> None:
    function, *factors = FUNCTIONS[name]

    def run() -> tuple[list[Tensor], Tensor, Tensor]:
        used = [each * 1 for each in factors]
        leaf = factors[which].clone().requires_grad_()
        used[which] = leaf * 1
        return used, leaf, function(used[0], used[1], backend)

    _, leaf, out = run()
    up = randn(*out.shape, seed=3)
    (expected,) = torch.autograd.grad(out, leaf, up)
    used, leaf, out = run()
    with torch.no_grad():
        used[which].fill_(NAN)
    same_bits(torch.autograd.grad(out, leaf, up)[0], expected)
    used, leaf, out = run()
    used[1 - which].fill_(NAN)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out, leaf, up)


@pytest.mark.parametrize("method", [knockout.select, knockout.methods.lapsum, knockout.methods.softsort])
@pytest.mark.parametrize("chunk", [2**22, 60])
def test_values_that_only_need_a_gradient_themselves_are_not_kept(
    method: Callable[[Tensor, int], knockout.Selection], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knockout.plan.DensePlan, "CHUNK", chunk)
    leaf, scores = randn(60, 5).requires_grad_(), separated(60)
    (expected,) = torch.autograd.grad(method(scores, 7).apply(leaf).sin().sum(), leaf)
    values = leaf * 1
    out = method(scores, 7).apply(values)
    with torch.no_grad():
        values.fill_(NAN)
    same_bits(torch.autograd.grad(out.sin().sum(), leaf)[0], expected)
    if method is not knockout.methods.softsort:  # which computes chunks again
        out = method(scores, 7).apply(values)
        gone = weakref.ref(values)
        del values
        assert gone() is None
    scores.requires_grad_()
    values = leaf * 1
    out = method(scores, 7).apply(values)
    with torch.no_grad():
        values.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out.sin().sum(), scores)


def test_values_are_not_kept_by_topk() -> None:
    leaf, scores = randn(2, 60, 5).requires_grad_(), separated(2, 60)
    values = leaf * 1
    out = knockout.topk(values, scores, 7)
    gone = weakref.ref(values)
    del values
    assert gone() is None
    (found,) = torch.autograd.grad(out.values.sum(), leaf)
    torch.testing.assert_close(found, knockout.select(scores, 7).mass().unsqueeze(-1).expand_as(leaf))


@pytest.mark.parametrize("arguments", [0, 1, (0, 1)])
def test_what_is_saved_under_transforms(backend: str, arguments: int | tuple[int, ...]) -> None:
    def own(values: Tensor, weight: Tensor) -> Tensor:
        return blend(values, weight, MEMBER, backend=backend).exp().sum()

    def judge(values: Tensor, weight: Tensor) -> Tensor:
        return by_a_dense_matrix(values, weight, MEMBER).exp().sum()

    def second(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        def norm(values: Tensor, weight: Tensor) -> Tensor:
            found = torch.func.grad(function, arguments)(values, weight)
            return torch.stack([x.square().sum() for x in (found if isinstance(found, tuple) else (found,))]).sum()

        return norm

    for mine, theirs in ((own, judge), (second(own), second(judge))):
        for argument in (0, 1):
            expected = torch.func.grad(theirs, argument)(VALUES, WEIGHT)
            torch.testing.assert_close(torch.func.grad(mine, argument)(VALUES, WEIGHT), expected)
    compiled = torch.compile(own, backend="aot_eager", fullgraph=True)
    wanted = arguments if isinstance(arguments, tuple) else (arguments,)
    leaves = [each.clone().requires_grad_(i in wanted) for i, each in enumerate((VALUES, WEIGHT))]
    found = torch.autograd.grad(compiled(*leaves), [leaves[i] for i in wanted])
    torch.testing.assert_close(found, torch.autograd.grad(judge(*leaves), [leaves[i] for i in wanted]))
