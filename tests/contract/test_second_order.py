"""Second derivatives, and higher ones: true derivatives of the gradients, by torch.autograd and by torch.func."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import knockout
from knockout.backends import force
from knockout.boost import Boost, Fixed, Power, Relative
from knockout.functional import Order
from tests.cases import BOOSTS, randn, random_mask, separated
from tests.contract.cases import OTHERS

SMOOTH = [Relative(0.7), Relative(1, unit=0.01, alpha=1), Fixed(1, alpha=2), Power(2)]


def inputs() -> tuple[Tensor, Tensor]:
    return randn(9, 1).requires_grad_(), separated(9, seed=9).requires_grad_()


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
@pytest.mark.parametrize("hard", [False, True])
def test_gradgradcheck_through_values_and_scores(boost: Boost, hard: bool) -> None:
    # The gradients of a straight-through selection are the soft ones, not those of its values; so are theirs.
    def gradients(values: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        out = knockout.topk(values, scores, 2, boost, hard=hard)
        up = randn(2, 1, seed=5)
        return torch.autograd.grad((out.values, out.scores), (values, scores), (up, up[..., 0]), create_graph=True)

    if hard:
        assert gradcheck(gradients, inputs())
    else:
        assert gradgradcheck(lambda v, s: knockout.topk(v, s, 2, boost)[:2], inputs())


@pytest.mark.parametrize("boost", [Relative(1), Fixed(2, alpha=1)], ids=str)
def test_gradgradcheck_with_mask_position_and_broadcast_values(boost: Boost) -> None:
    mask = random_mask(2, 17, kept=0.7, seed=1)

    def operator(values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        return knockout.topk(values, scores, 4, boost, mask=mask, order="position")[:2]

    assert gradgradcheck(operator, (randn(17, 2).requires_grad_(), separated(2, 17).requires_grad_()))


@pytest.mark.parametrize("view", ["weights", "mass", "perplexity", "scores"])
def test_gradgradcheck_through_what_a_selection_shows(view: str) -> None:
    def show(scores: Tensor) -> Tensor:
        selection = knockout.select(scores, 3, Relative(0.7, alpha=1))
        return selection.scores if view == "scores" else getattr(selection, view)()

    assert gradgradcheck(show, (separated(2, 10).requires_grad_(),))


@pytest.mark.parametrize("boost", SMOOTH, ids=str)
@pytest.mark.parametrize("order", ["score", "position"])
def test_gradgradcheck_with_a_mask(boost: Boost, order: Order) -> None:
    mask = torch.arange(9) != 4

    def operator(values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        return knockout.topk(values, scores, 2, boost, mask=mask, order=order)[:2]

    arguments = randn(9, 1).requires_grad_(), separated(9).requires_grad_()
    assert gradcheck(operator, arguments)
    assert gradgradcheck(operator, arguments)


@pytest.mark.parametrize("backend", OTHERS, indirect=True)
@pytest.mark.parametrize("boost", SMOOTH, ids=str)
@pytest.mark.parametrize("order", ["score", "position"])
def test_second_derivatives_are_those_of_the_reference(backend: str, boost: Boost, order: Order) -> None:
    mask = torch.arange(9) != 4
    seconds = []
    for name in (backend, "reference"):
        with force(name):
            arguments = randn(2, 9, 3).requires_grad_(), separated(2, 9).requires_grad_()
            values, scores = knockout.topk(*arguments, 2, boost, mask=mask, order=order)[:2]
            first = torch.autograd.grad(values.square().sum() + scores.exp().sum(), arguments, create_graph=True)
            seconds.append(torch.autograd.grad(first[0].square().sum() + first[1].square().sum(), arguments))
    for one, other in zip(*seconds, strict=True):
        torch.testing.assert_close(one, other)


def test_third_derivatives() -> None:
    def gradients(values: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        out = knockout.topk(values, scores, 1, Relative(0.7))
        loss = out.values.square().sum() + out.scores.exp().sum()
        return torch.autograd.grad(loss, (values, scores), create_graph=True)

    assert gradgradcheck(gradients, (randn(3, 1).requires_grad_(), separated(3).requires_grad_()))


def test_jacobians_and_hessians_through_torch_func() -> None:
    values, scores = randn(9, 2), separated(9)

    def pooled(scores: Tensor) -> Tensor:
        return knockout.topk(values, scores, 2, Relative(0.7, alpha=1)).values

    jacobian = torch.func.jacrev(pooled)(scores)
    torch.testing.assert_close(jacobian, torch.autograd.functional.jacobian(pooled, scores))
    expected = torch.autograd.functional.hessian(lambda s: pooled(s).square().sum(), scores)
    with force("auto"):  # not every backend takes nested transforms: one that does is chosen
        hessian = torch.func.jacrev(torch.func.jacrev(lambda s: pooled(s).square().sum()))(scores)
    torch.testing.assert_close(hessian, expected)
