"""Boosts as values, the scale of a round, and the arithmetic that is the same on every backend."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

import knockout
from knockout.backends import NAMES, force, why_not
from knockout.boost import _RELATIVE, Boost, Fixed, Pairs, Power, Relative, as_boost
from knockout.ops.reference.exact import exact_sum, exp, expm1, sqrt
from tests.cases import randn, same_bits


def test_boosts_read_well_and_compare() -> None:
    c = torch.tensor(0.5)
    assert repr(Relative(c)) == "Relative(c=0.5, unit=1.0, alpha=1.5)"
    assert repr(Fixed(c)) == "Fixed(c=0.5, alpha=1.0)"
    assert repr(Fixed(c.to("meta"))) == "Fixed(c=<a tensor on meta>, alpha=1.0)"
    assert repr(Relative(4)) == "Relative(c=4, unit=1.0, alpha=1.5)"
    assert Relative(4) == Relative(4.0) != Relative(5)
    assert len({Relative(4), Relative(4), Fixed(4)}) == 2
    assert Relative(c) == Relative(c)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_c_that_is_not_dense() -> None:
    with pytest.raises(TypeError, match="Relative: c must be a dense tensor; got a nested one"):
        Relative(torch.nested.nested_tensor([torch.ones(1)]))
    with pytest.raises(TypeError, match=r"Fixed: c must be a dense tensor; got layout torch\.sparse_coo"):
        Fixed(torch.tensor(1.0).to_sparse())


def test_the_scale_of_a_round_does_not_depend_on_the_padding_around_its_pairs() -> None:
    # So many pairs, and one so much larger than the others, that the last bits of a sum are at stake.
    better, worse = (randn(2**19, seed=seed).abs().sort(descending=True).values for seed in (1, 2))
    better[0] = better.sum()
    results = []
    for padding in (0, 7 * 2**19):
        top, low = (pad(x, (padding, 0)).requires_grad_() for x in (better, -worse))
        real = pad(torch.ones_like(better, dtype=torch.bool), (padding, 0))
        boost = Relative(1e-6, unit=1e-3)
        share, scale = boost.share(Pairs(top, low, top - low, real), boost.start(top, real, torch.tensor(1)))
        (gradient,) = torch.autograd.grad(share.sum(), top)
        results.append((scale, gradient[padding:]))
    for one, other in zip(*results, strict=True):
        same_bits(one, other)


def test_the_scale_of_a_round_stays_a_normal_number() -> None:
    tiny = torch.finfo(torch.float32).tiny
    gap, real = torch.tensor([[tiny / 4, 0.0]]), torch.tensor([[True, True]])
    boost = Relative(1, unit=1e-300, alpha=2)
    scale = boost.start(gap, real, torch.tensor(3))
    assert scale.tolist() == [[2 * tiny]]
    for _ in range(3):
        share, scale = boost.share(Pairs(gap, torch.zeros_like(gap), gap, real), scale)
        assert scale.tolist() == [[tiny]]
        assert share.tolist() == [[0.5 + 0.125, 0.5]]


def test_a_round_without_pairs_keeps_the_scale() -> None:
    zero = torch.zeros(1, 2, requires_grad=True)
    boost = Relative(1)
    share, scale = boost.share(Pairs(zero, zero, zero - zero, zero > 0), torch.tensor([[3.0]]))
    assert scale.tolist() == [[3.0]]
    assert share.tolist() == [[1.0, 1.0]]
    (gradient,) = torch.autograd.grad((share + scale).sum(), zero)
    assert gradient.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_scale_of_the_largest_gaps_is_finite(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    scores = torch.tensor([most, -most], dtype=dtype)  # a gap of more than the largest number, and so is the mean
    for name in NAMES:
        with force(name):
            assert knockout.select(scores, 1, Relative(1, alpha=2)).weights().tolist() == [[1.0, 0.0]]


def test_a_boost_made_in_a_transform_does_not_look_at_its_number() -> None:
    def scaled(c: Tensor) -> Tensor:
        assert Relative(c).c is c
        return c * 2

    assert torch.compile(scaled, backend="eager", fullgraph=True)(torch.tensor(1.0)).item() == 2.0
    assert torch.vmap(scaled)(torch.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]
    assert torch.func.grad(scaled)(torch.tensor(1.0)).item() == 2.0


def test_numbers_that_become_boosts() -> None:
    here = torch.device("cpu")
    for number in (3, 3.0, 3):  # an int and a float that equal each other
        assert repr(as_boost(number, here)) == f"Relative(c={number!r}, unit=1.0, alpha=1.5)"
    assert as_boost(2.5, here) is as_boost(2.5, here)
    for i in range(300):
        assert as_boost(1.0 + i, here).c == 1.0 + i  # type: ignore[attr-defined]
    assert len(_RELATIVE) <= 100
    largest = sys.float_info.max
    assert Relative(largest, unit=largest).c == Fixed(largest).c == largest


def on_every_backend(scores: Tensor, k: int, boost: Boost) -> list[Tensor]:
    """Mass and blended scores of a backend, the same to the last bit on all."""
    results = []
    for name in NAMES:
        if not why_not(name):
            with force(name):
                picked = knockout.select(scores, k, boost)
                results.append([picked.mass(), picked.scores])
    for other in results[1:]:
        same_bits(other[0], results[0][0])
        same_bits(other[1], results[0][1])
    return results[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "boost", [Fixed(1), Fixed(0.5, alpha=1.5), Fixed(0.2, alpha=2), Power(2), Relative(0.5)], ids=str
)
def test_shares_have_the_same_bits_on_every_backend(boost: Boost, dtype: torch.dtype) -> None:
    # One round of so many pairs, with gaps from 0 to 4, that rounding shows in some of them. In many rows: Triton's
    # interpreter takes most of its time to sort them.
    order = torch.randperm(40_000, generator=torch.Generator().manual_seed(0))
    mass, _ = on_every_backend(torch.linspace(-2, 2, 40_000, dtype=dtype)[order].view(200, 200), 100, boost)
    assert (mass < 1).sum() > 20_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_scale_has_the_same_bits_on_every_backend(dtype: torch.dtype) -> None:
    # In float64, distances from the middle of a field are rounded, and of so few that shows in their sum.
    mass, _ = on_every_backend(randn(2000, 6).to(dtype), 3, Relative(0.5, unit=1e-3, alpha=2))
    assert (mass < 1).sum() > 6000


# --- exact arithmetic -----------------------------------------------------------------------------


def summed(*terms: float) -> float:
    return exact_sum(torch.tensor(terms, dtype=torch.float64), torch.tensor([len(terms)])).item()


def test_an_exact_sum_has_the_same_bits_in_every_order() -> None:
    x = randn(3, 5000) * torch.exp(6 * randn(3, 5000, seed=1))
    count = torch.full((3, 1), 5000)
    total = exact_sum(x, count)
    assert total.shape == (3, 1)
    for seed in range(5):
        order = torch.randperm(5000, generator=torch.Generator().manual_seed(seed))
        same_bits(exact_sum(x[:, order], count), total)
    same_bits(exact_sum(pad(x, (7, 99)), count), total)
    for row, found in zip(x, total.flatten().tolist(), strict=True):
        true = math.fsum(row.tolist())
        assert abs(found - true) <= 5000**2 * 2.0**-95 * row.abs().max().item() + 2.0**-52 * abs(true)


def test_an_exact_sum_is_exact_down_to_its_finer_grid() -> None:
    # Of three terms of at most 1, the multiples of 2^-49 are added up first, then those of 2^-97.
    assert summed(1.0, -1.0, 2.0**-97) == 2.0**-97
    assert summed(1.0, -1.0, 2.0**-98) == 0.0
    assert summed(1.0, 2.0**-50, 2.0**-51) == 1.0 + 2.0**-50 + 2.0**-51
    assert summed(-4.0, 1.0, 2.0**-60, -(2.0**-61)) == -3.0  # to the nearest number of float64


EXACT: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[float], float], float, float]] = {
    "sqrt": (sqrt, math.sqrt, 1.0, 2.0),
    "exp": (exp, math.exp, -80.0, 80.0),
    "expm1": (expm1, math.expm1, -1.0, 80.0),
    "expm1 near 0": (expm1, math.expm1, -1e-4, 1e-4),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXACT)
def test_exact_functions_are_as_exact_as_their_numbers(name: str, dtype: torch.dtype) -> None:
    function, true, low, high = EXACT[name]
    x = torch.linspace(low, high, 2001, dtype=dtype, requires_grad=True)
    y = function(x)
    expected = torch.tensor([true(each) for each in x.tolist()], dtype=torch.float64)
    few = 3 * torch.finfo(dtype).eps  # three units in the last place
    torch.testing.assert_close(y.double(), expected, rtol=few, atol=0.0)
    slope = 0.5 / expected if name == "sqrt" else x.detach().double().exp()
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient.double(), slope, rtol=2 * few, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponentials_at_the_limits_of_their_numbers(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    for low in (-1e30, 2 * math.log(limits.tiny)):
        assert exp(torch.tensor(low, dtype=dtype)).item() == pytest.approx(limits.tiny, rel=1e-5, abs=0.0)
        assert expm1(torch.tensor(low, dtype=dtype)).item() == -1.0
    for high in (1e30, math.log(limits.max)):
        assert exp(torch.tensor(high, dtype=dtype)).item() == pytest.approx(limits.max / 2, rel=1e-4)
    assert exp(torch.tensor(0.0, dtype=dtype)).item() == 1.0
    assert expm1(torch.tensor(0.0, dtype=dtype)).item() == 0.0


def test_a_compiled_call_takes_a_tensor_as_its_boost() -> None:
    values, scores = randn(3, 30, 4), randn(3, 30)
    torch.compiler.reset()
    compiled = torch.compile(knockout.topk, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for c in (2.0, 3.0):
            same_bits(compiled(values, scores, 5, torch.tensor(c)).values, knockout.topk(values, scores, 5, c).values)
