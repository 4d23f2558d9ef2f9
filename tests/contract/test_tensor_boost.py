"""A boost whose c or unit is a tensor: the results are those of the number that it holds at the call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import knockout
from knockout.boost import Adaptive, Boost, Fixed, Relative
from tests.cases import DTYPES, NAN, randn, same_bits, separated

Make = Callable[[float | Tensor], Boost]
MAKES: dict[str, Make] = {
    "relative": Relative,
    "relative, alpha 1": lambda c: Relative(c, unit=0.01, alpha=1),
    "fixed": Fixed,
    "fixed, alpha 2": lambda c: Fixed(c, alpha=2),
    "adaptive, c": lambda c: Adaptive(c, unit=3.0),
    "adaptive, unit": lambda unit: Adaptive(2.0, unit, alpha=1),
    "adaptive, both": lambda number: Adaptive(number, number),
}


def results(boost: Boost, dtype: torch.dtype = torch.float32, k: float = 5) -> list[Tensor]:
    """Outputs, gradients, and a gradient of a gradient."""
    values, scores = randn(3, 30, 4).to(dtype).requires_grad_(), separated(3, 30).to(dtype).requires_grad_()
    out = knockout.topk(values, scores, k, boost)
    loss = out.values.square().sum() + out.scores.square().sum()
    first = torch.autograd.grad(loss, (values, scores), create_graph=True)
    second = torch.autograd.grad(first[0].square().sum() + first[1].square().sum(), (values, scores))
    return [x.detach() for x in (*out, *first, *second)]


# The number is converted from its own type, whatever that of the scores is: each with each for one boost.
@pytest.mark.parametrize(
    ("make", "dtype", "own"),
    [
        pytest.param(make, dtype, own, id=f"{name}, {dtype} by {own}")
        for name, make in MAKES.items()
        for dtype in DTYPES
        for own in DTYPES
        if name == "adaptive, both" or own in (dtype, torch.float64)
    ],
)
def test_a_tensor_is_the_number_that_it_holds(make: Make, dtype: torch.dtype, own: torch.dtype) -> None:
    for number in (0.1, 1.0, 7.3):
        c = torch.tensor(number, dtype=own)
        for one, other in zip(results(make(c), dtype), results(make(c.item()), dtype), strict=True):
            same_bits(one, other)


def test_the_largest_and_the_smallest() -> None:
    for number in (1e300, 1e-300):
        c = torch.tensor(number, dtype=torch.float64)
        for one, other in zip(results(Fixed(c)), results(Fixed(number)), strict=True):
            same_bits(one, other)


def test_a_fraction_of_the_candidates_too() -> None:
    for one, other in zip(results(Relative(torch.tensor(2.0)), k=0.2), results(Relative(2.0), k=0.2), strict=True):
        same_bits(one, other)


@pytest.mark.parametrize("make", [Relative, Fixed, partial(Adaptive, 2.0)])
def test_what_it_holds_at_the_call_counts_in_the_backward_pass_too(make: Make) -> None:
    c = torch.tensor(1.0)
    gradients = []
    for changed in (False, True):
        values, scores = randn(3, 30, 4).requires_grad_(), separated(3, 30).requires_grad_()
        out = knockout.topk(values, scores, 5, make(c))
        if changed:
            c.fill_(0.3)
        first = torch.autograd.grad(out.values.square().sum(), (values, scores), create_graph=True)
        gradients.append((*first, *torch.autograd.grad(first[1].square().sum(), (values, scores))))
    for one, other in zip(*gradients, strict=True):
        same_bits(one, other)


def test_it_gets_no_gradient() -> None:
    c = torch.nn.Parameter(torch.tensor(1.0))
    scores = separated(30).requires_grad_()
    for boost in (Relative(c), Adaptive(c, c)):
        out = knockout.select(scores, 5, boost).scores.sum()
        d_scores, d_c = torch.autograd.grad(out, (scores, c), allow_unused=True)
        assert d_scores.any()
        assert d_c is None


def test_a_bad_number_that_comes_later(backend: str) -> None:
    if backend == "reference":
        pytest.skip("it may run on any device, where looking at a number is a wait")
    for make, name in ((Relative, "c_tensor"), (partial(Adaptive, 1.0), "unit_tensor")):
        number = torch.tensor(1.0)
        boost = make(number)
        for bad in (-1.0, NAN):
            number.fill_(bad)
            with pytest.raises((RuntimeError, ValueError), match=f"{name} must be finite and above 0"):
                knockout.select(separated(30), 5, boost)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_tensor_means_relative_as_a_number_does(dtype: torch.dtype) -> None:
    values, scores, c = randn(3, 30, 4), separated(3, 30), torch.tensor(2.0, dtype=dtype, requires_grad=True)
    expected = knockout.topk(values, scores, 5, 2.0)
    for out in (
        knockout.topk(values, scores, 5, c),
        knockout.topk(values, scores, 5, torch.nn.Parameter(c)),
        knockout.nn.TopK(5, c)(values, scores),
    ):
        for one, other in zip(out, expected, strict=True):
            same_bits(one, other)
    assert torch.equal(knockout.select(scores, 5, c).weights(), knockout.select(scores, 5, 2.0).weights())


@pytest.mark.parametrize(
    ("c", "words"),
    [
        (torch.tensor(4), "Relative: c must be an int, a float, or a floating tensor without dimensions; .*int64"),
        (torch.ones(3), r"Relative: c must be .*; got a tensor of shape \(3,\)"),
    ],
)
def test_which_tensor_a_boost_may_be(c: Tensor, words: str) -> None:
    for use in (lambda: knockout.select(randn(9), 2, c), lambda: knockout.nn.TopK(2, c)):
        with pytest.raises(TypeError, match=words):
            use()
    with pytest.raises(ValueError, match="Relative: c must be on the device of scores, cpu; got meta"):
        knockout.select(randn(9), 2, torch.tensor(4.0, device="meta"))
