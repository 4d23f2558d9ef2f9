"""The weighted gather by itself: members with padding anywhere in a slot, as knockout.distributed makes them.

The judge is a product with a dense matrix of weights, which PyTorch differentiates.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from knockout.ops.autograd.gather import blend
from tests.cases import NAN


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
