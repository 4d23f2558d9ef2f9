"""torch.vmap and torch.func: a mapped call is a loop of calls, to the last bit, and so are its gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import knockout
from knockout.boost import Relative
from tests.cases import randn, same_bits, separated
from tests.contract.cases import CASES, SELECTIONS, loss

# Cases whose inputs all have one batch dimension, to be mapped over.
MAPPED = [name for name, case in CASES.items() if case.batches == ((3,),) * 3]


@pytest.mark.parametrize("name", MAPPED)
def test_a_mapped_call_is_a_loop(name: str) -> None:
    case = CASES[name]
    values, scores, mask = (None if x is None else x.detach() for x in case.topk_inputs())
    assert values is not None
    assert scores is not None

    def gradients(values: Tensor, scores: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = torch.func.grad(lambda v, s: loss(case.topk(v, s, mask)), argnums=(0, 1))(
            values, scores
        )
        return found

    functions: list[Callable[..., tuple[Tensor, ...]]] = [case.topk, gradients]
    for function in functions:
        looped = [function(values[i], scores[i], None if mask is None else mask[i]) for i in range(3)]
        mapped = torch.vmap(function, in_dims=(0, 0, None if mask is None else 0))(values, scores, mask)
        for one, rows in zip(mapped, zip(*looped, strict=True), strict=True):
            same_bits(one, torch.stack(rows))


@pytest.mark.parametrize("in_dims", [(0, 0), (None, 0), (0, None), (1, 1), (2, 0)])
def test_along_any_dimension(in_dims: tuple[int | None, int | None]) -> None:
    values = randn(6, 6, 6) if in_dims[0] is not None else randn(6, 6)
    scores = separated(6, 6) if in_dims[1] is not None else separated(6)

    def loss(values: Tensor, scores: Tensor) -> Tensor:
        return knockout.topk(values, scores, 2, 1.0).values.square().sum()

    mapped = torch.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=in_dims)(values, scores)
    for i in range(6):
        row = [x if dim is None else x.select(dim, i) for x, dim in zip((values, scores), in_dims, strict=True)]
        for one, other in zip(mapped, torch.func.grad(loss, argnums=(0, 1))(*row), strict=True):
            torch.testing.assert_close(one[i], other)


def test_a_mapped_call_is_a_batch() -> None:
    values, scores = randn(3, 30, 4, dtype=torch.float32), separated(3, 30).float()

    def pool(values: Tensor, scores: Tensor) -> Tensor:
        out = knockout.topk(values, scores, 5, Relative(1))
        return torch.cat([out.values, out.scores.unsqueeze(-1)], dim=-1)

    def loss(values: Tensor, scores: Tensor) -> Tensor:
        return pool(values, scores).square().sum()

    mapped = torch.vmap(pool)(values, scores), *torch.vmap(torch.func.grad(loss, argnums=(0, 1)))(values, scores)
    arguments = values.requires_grad_(), scores.requires_grad_()
    for one, other in zip(mapped, (pool(*arguments), *torch.autograd.grad(loss(*arguments), arguments)), strict=True):
        same_bits(one, other.detach())


def test_vectorized_jacobians() -> None:
    values, scores = randn(9, 2), separated(9)

    def pooled(scores: Tensor) -> Tensor:
        return knockout.topk(values, scores, 2, 1.0).values

    jacobians = [torch.autograd.functional.jacobian(pooled, scores, vectorize=fast) for fast in (True, False)]
    torch.testing.assert_close(jacobians[0], jacobians[1])


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_selection_can_be_returned(name: str) -> None:
    values, scores, select = randn(4, 30, 4, dtype=torch.float32), separated(4, 30).float(), SELECTIONS[name]
    selection, expected = torch.vmap(select)(scores), select(scores)
    assert repr(selection) == repr(expected)
    same_bits(selection.apply(values), expected.apply(values))
    same_bits(selection.scores, expected.scores)
    same_bits(selection.weights(), expected.weights())


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0)])
def test_counts_that_are_mapped(dims: tuple[int | None, int | None]) -> None:
    scores = separated(4, 9) if dims[0] == 0 else separated(9)
    counts = torch.tensor([2, 0, 4, 7]) if dims[1] == 0 else torch.tensor(3)

    def summed(scores: Tensor, k: Tensor) -> Tensor:
        return (knockout.select(scores, k, 1.0, max_k=4).weights() @ torch.arange(9.0).double()).square().sum()

    mapped = torch.vmap(torch.func.grad(summed), in_dims=dims)(scores, counts)
    for row in range(4):
        own = [x[row] if dim == 0 else x for x, dim in zip((scores, counts), dims, strict=True)]
        own = [own[0].detach().requires_grad_(), own[1].clamp(max=4)]  # clamped: nobody looks at them under vmap
        (alone,) = torch.autograd.grad(summed(*own), own[0])
        torch.testing.assert_close(mapped[row], alone)


def test_one_c_of_a_boost_for_all_rows() -> None:
    scores, boost = separated(4, 30), Relative(torch.tensor(1.0))

    def loss(scores: Tensor) -> Tensor:
        return knockout.select(scores, 5, boost).scores.square().sum()

    mapped = torch.vmap(torch.func.grad(loss))(scores)
    same_bits(mapped, torch.stack([torch.func.grad(loss)(row) for row in scores]))


def test_a_c_of_a_boost_for_each_row(backend: str) -> None:
    scores, numbers = separated(30), torch.tensor([0.5, 1.0, 3.0])

    def select(c: Tensor) -> Tensor:
        return knockout.select(scores, 5, Relative(c)).scores

    if backend == "reference":
        same_bits(torch.vmap(select)(numbers), torch.stack([select(c) for c in numbers]))
    else:
        with pytest.raises(NotImplementedError, match="one c and one unit of a boost for all rows"):
            torch.vmap(select)(numbers)
