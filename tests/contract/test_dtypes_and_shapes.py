"""Dtypes, batch dimensions, and scores of every size."""

from __future__ import annotations

import pytest
import torch

import knockout
from knockout.boost import Boost, Fixed, Relative
from tests.cases import BOOSTS, DTYPES, randn, same_bits, separated


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hard", [False, True])
def test_half_types_are_computed_in_float32(dtype: torch.dtype, hard: bool) -> None:
    scores, values = randn(2, 50).to(dtype).requires_grad_(), randn(2, 50, 3).to(dtype).requires_grad_()
    out = knockout.topk(values, scores, 4, 1.0, hard=hard)
    assert out.values.dtype == out.scores.dtype == dtype
    computing = torch.promote_types(dtype, torch.float32)
    exact = knockout.topk(values.detach().to(computing), scores.detach().to(computing), 4, 1.0, hard=hard)
    same_bits(out.values.detach(), exact.values.to(dtype))
    same_bits(out.scores.detach(), exact.scores.to(dtype))
    assert torch.equal(out.indices, exact.indices)
    gradients = torch.autograd.grad(out.values.sum() + out.scores.sum(), (values, scores))
    assert [gradient.dtype for gradient in gradients] == [dtype, dtype]
    assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients)
    selection = knockout.select(scores, 4)
    assert {x.dtype for x in (selection.weights(), selection.mass(), selection.perplexity())} == {dtype}


@pytest.mark.parametrize("scores_dtype", DTYPES)
@pytest.mark.parametrize("values_dtype", DTYPES)
def test_each_result_has_the_dtype_of_its_own_input(scores_dtype: torch.dtype, values_dtype: torch.dtype) -> None:
    scores, values = separated(30).to(scores_dtype).requires_grad_(), randn(30, 2).to(values_dtype).requires_grad_()
    out = knockout.topk(values, scores, 3)
    assert out.values.dtype == values_dtype
    assert out.scores.dtype == scores_dtype
    gradients = torch.autograd.grad(out.values.float().square().sum(), (values, scores))
    assert [gradient.dtype for gradient in gradients] == [values_dtype, scores_dtype]


@pytest.mark.parametrize(
    ("values_batch", "scores_batch", "batch"),
    [
        ((), (), ()),
        ((2, 3), (2, 3), (2, 3)),
        ((), (4,), (4,)),
        ((4,), (), (4,)),
        ((2, 1), (3,), (2, 3)),
        ((3,), (2, 1), (2, 3)),
    ],
)
def test_batch_dimensions_broadcast(
    values_batch: tuple[int, ...], scores_batch: tuple[int, ...], batch: tuple[int, ...]
) -> None:
    values, scores = randn(*values_batch, 12, 3).requires_grad_(), separated(*scores_batch, 12).requires_grad_()
    out = knockout.topk(values, scores, 5, 1.0)
    full = knockout.topk(
        values.detach().expand(*batch, 12, 3).contiguous().requires_grad_(),
        scores.detach().expand(*batch, 12).contiguous().requires_grad_(),
        5,
        1.0,
    )
    assert out.values.shape == (*batch, 5, 3)
    assert out.scores.shape == out.indices.shape == out.mask.shape == (*scores_batch, 5)
    same_bits(out.values, full.values)
    up = randn(*batch, 5, 3, seed=4)
    expanded_values, expanded_scores = values.expand(*batch, 12, 3), scores.expand(*batch, 12)
    reference = knockout.select(expanded_scores, 5, 1.0).weights() @ expanded_values
    for one, other in zip(
        torch.autograd.grad(out.values, (values, scores), up),
        torch.autograd.grad(reference, (values, scores), up),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_a_mask_may_bring_batch_dimensions() -> None:
    scores, values = separated(12), randn(12, 2)
    mask = torch.rand(3, 12, generator=torch.Generator().manual_seed(0)) > 0.3
    out = knockout.topk(values, scores, 2, mask=mask)
    assert out.values.shape == (3, 2, 2)
    for row in range(3):
        same_bits(out.values[row], knockout.topk(values, scores, 2, mask=mask[row]).values)


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30, 1e36, 3e38, -3e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_finite_scores_give_finite_results_and_gradients(dtype: torch.dtype, scale: float, boost: Boost) -> None:
    unit = torch.tensor([1.0, -1.0, 0.5, 0.25, -0.75, 0.9, 0.1, 0.0, 1.0])
    values = (10 * randn(9, 2)).to(dtype).requires_grad_()
    for each in (unit * scale, torch.full((9,), scale)):
        scores = each.to(dtype).requires_grad_()
        for k in (1, 2):
            out = knockout.topk(values, scores, k, boost)
            assert out.values.isfinite().all()
            assert out.scores.isfinite().all()
            for gradient in torch.autograd.grad(out.values.sum(), (values, scores)):
                assert gradient.isfinite().all()


@pytest.mark.parametrize("boost", [Relative(1e39), Relative(4, unit=1e-46), Fixed(1e39), Relative(1e-46, unit=1e39)])
def test_a_boost_beyond_the_dtype_is_as_sharp_or_as_soft_as_it_gets(boost: Boost) -> None:
    for scores in (torch.zeros(4), torch.tensor([1.0, 2.0, 2.0, 3.0])):
        scores.requires_grad_()
        out = knockout.topk(randn(4, 3, dtype=torch.float32), scores, 1, boost)
        assert out.values.isfinite().all()
        assert not torch.autograd.grad(out.values.sum(), scores)[0].isnan().any()


def test_relative_means_the_same_at_every_scale() -> None:
    scores = separated(60)
    one = knockout.select(scores, 5, Relative(2, unit=1e-6)).weights()
    torch.testing.assert_close(one, knockout.select(scores * 1e6, 5, Relative(2, unit=1)).weights())


def test_inputs_are_left_as_they_were() -> None:
    scores, values = randn(3, 20), randn(3, 20, 2)
    before = scores.clone(), values.clone()
    knockout.topk(values, scores, 4, mask=torch.ones(3, 20, dtype=torch.bool))
    assert torch.equal(scores, before[0])
    assert torch.equal(values, before[1])


def test_the_mean_gap_of_the_largest_scores_does_not_overflow() -> None:
    unit = torch.tensor([1.0, 0.1, 0.9, 0.2, 0.8, 0.3, 0.95, 0.05])
    torch.testing.assert_close(
        knockout.select(unit * 3e38, 2, 1.0).weights(), knockout.select(unit * 1e3, 2, 1.0).weights()
    )
