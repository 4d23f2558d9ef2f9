"""A boost whose c is a tensor: the results of the number that it holds, and one graph for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import knockout
from knockout.backends import force
from knockout.boost import Boost, Fixed, Relative
from tests.cases import DTYPES, randn, same_bits, separated

Make = Callable[[float | Tensor], Boost]
MAKES: dict[str, Make] = {
    "relative": Relative,
    "relative, alpha 1": lambda c: Relative(c, unit=0.01, alpha=1),
    "fixed": Fixed,
    "fixed, alpha 2": lambda c: Fixed(c, alpha=2),
}


@pytest.fixture(params=["cpu", "reference"], autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with force(request.param):
        yield request.param


def results(boost: Boost, dtype: torch.dtype = torch.float32, k: float = 5) -> list[Tensor]:
    """Outputs, gradients, and a gradient of a gradient."""
    values, scores = randn(3, 30, 4).to(dtype).requires_grad_(), separated(3, 30).to(dtype).requires_grad_()
    out = knockout.topk(values, scores, k, boost)
    loss = out.values.square().sum() + out.scores.square().sum()
    first = torch.autograd.grad(loss, (values, scores), create_graph=True)
    second = torch.autograd.grad(first[0].square().sum() + first[1].square().sum(), (values, scores))
    return [x.detach() for x in (*out, *first, *second)]


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("own", DTYPES)
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


class Pool(torch.nn.Module):
    """Its sharpness is a buffer; the boost is made in every pass, or once."""

    c: Tensor

    def __init__(self, make: Make, once: bool) -> None:
        super().__init__()
        self.register_buffer("c", torch.tensor(1.0))
        self.make = make
        self.boost = make(self.c) if once else None

    def forward(self, values: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        return knockout.topk(values, scores, 5, self.boost or self.make(self.c))


@pytest.mark.parametrize("make", [Relative, Fixed])
@pytest.mark.parametrize("once", [False, True])
def test_one_graph_for_all_numbers(make: Make, once: bool) -> None:
    torch._dynamo.reset()
    frames = CompileCounterWithBackend("aot_eager")
    pool = Pool(make, once)
    compiled = torch.compile(pool, backend=frames, fullgraph=True)
    values, scores = randn(3, 30, 4).requires_grad_(), separated(3, 30).requires_grad_()
    for i in range(12):
        pool.c.fill_(0.5 + 0.3 * i)
        out, expected = compiled(values, scores), knockout.topk(values, scores, 5, make(pool.c.item()))
        for one, other in zip(out, expected, strict=True):
            same_bits(one, other)
        for one, other in zip(
            torch.autograd.grad(out[0].square().sum() + out[1].sum(), (values, scores)),
            torch.autograd.grad(expected.values.square().sum() + expected.scores.sum(), (values, scores)),
            strict=True,
        ):
            torch.testing.assert_close(one, other)
    assert frames.frame_count == 1


def test_export_keeps_the_buffer() -> None:
    pool = Pool(Relative, once=False)
    arguments = randn(3, 30, 4), separated(3, 30)
    program = torch.export.export(pool, arguments).module()
    for number in (0.5, 3.0):
        program.get_buffer("c").fill_(number)
        for one, other in zip(program(*arguments), knockout.topk(*arguments, 5, number), strict=True):
            same_bits(one, other)


@pytest.mark.parametrize("make", [Relative, Fixed])
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
    out = knockout.select(scores, 5, Relative(c)).scores.sum()
    d_scores, d_c = torch.autograd.grad(out, (scores, c), allow_unused=True)
    assert d_scores.any()
    assert d_c is None


def test_vmap_over_the_scores() -> None:
    scores, boost = separated(4, 30), Relative(torch.tensor(1.0))

    def loss(scores: Tensor) -> Tensor:
        return knockout.select(scores, 5, boost).scores.square().sum()

    mapped = torch.vmap(torch.func.grad(loss))(scores)
    same_bits(mapped, torch.stack([torch.func.grad(loss)(row) for row in scores]))


def test_vmap_over_the_numbers(backend: str) -> None:
    scores, numbers = separated(30), torch.tensor([0.5, 1.0, 3.0])

    def select(c: Tensor) -> Tensor:
        return knockout.select(scores, 5, Relative(c)).scores

    if backend == "cpu":
        with pytest.raises(NotImplementedError, match="one c of a boost for all rows"):
            torch.vmap(select)(numbers)
    else:
        same_bits(torch.vmap(select)(numbers), torch.stack([select(c) for c in numbers]))


def test_a_bad_number_that_comes_later(backend: str) -> None:
    c = torch.tensor(1.0)
    boost = Relative(c)
    for bad in (-1.0, float("nan")):
        c.fill_(bad)
        if backend == "cpu":
            with pytest.raises(RuntimeError, match="c of a boost must be positive"):
                knockout.select(separated(30), 5, boost)


def test_no_step_waits_for_the_device(backend: str) -> None:
    if backend == "reference":
        scores = torch.empty(3, 50, device="meta", requires_grad=True)
        for device in ("cpu", "meta"):
            boost = Relative(torch.tensor(1.0, device=device))
            out = knockout.select(scores, 5, boost).scores
            assert out.is_meta
            torch.autograd.grad(out.sum(), scores)


def test_boosts_read_well_and_compare() -> None:
    c = torch.tensor(0.5)
    assert repr(Relative(c)) == "Relative(c=0.5, unit=1.0, alpha=1.5)"
    assert repr(Fixed(c)) == "Fixed(c=0.5, alpha=1.0)"
    assert repr(Fixed(c.to("meta"))) == "Fixed(c=<a tensor on meta>, alpha=1.0)"
    assert repr(Relative(4)) == "Relative(c=4, unit=1.0, alpha=1.5)"
    assert Relative(4) == Relative(4.0) != Relative(5)
    assert len({Relative(4), Relative(4), Fixed(4)}) == 2
    assert Relative(c) == Relative(c)
