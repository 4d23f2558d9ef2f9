"""A k for each row: each is that of a call with its own k, whatever the other rows want."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import knockout
from knockout.boost import Boost, Power, Relative
from knockout.functional import Order
from tests.cases import BOOSTS, NAN, randn, same_bits, separated
from tests.contract.cases import SCORES


class Results(NamedTuple):
    """What a call gives, each with the row as its first dimension."""

    slots: list[Tensor]  # (rows, k, ...)
    candidates: list[Tensor]  # (rows, n, ...): the mass, and gradients

    def of(self, row: int) -> Results:
        return Results(*([x[row] for x in each] for each in self))


def selected(scores: Tensor, values: Tensor, k: int | Tensor, given: list[Tensor], **options: Any) -> Results:
    """What ``select`` and ``topk`` give; ``given`` are the gradients of values, scores and mass."""
    scores, values = scores.detach().requires_grad_(), values.detach().requires_grad_()
    picked, out = knockout.select(scores, k, **options), knockout.topk(values, scores, k, **options)
    outputs = [picked.apply(values), picked.scores, picked.mass()]
    gradients = torch.autograd.grad(outputs, (scores, values), [x.to(scores.dtype) for x in given])
    fused = torch.autograd.grad(out[:2], (scores, values), [x.to(scores.dtype) for x in given[:2]])
    same_bits(out.values, outputs[0])
    same_bits(out.scores, outputs[1])
    slots = [*outputs[:2], picked.weights(), picked.indices, picked.mask, picked.support(), picked.perplexity()]
    return Results([x.detach() for x in (*slots, out.indices, out.mask)], [outputs[2].detach(), *gradients, *fused])


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_each_row_is_that_of_its_own_k(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 30) | st.integers(1, 90), "n")
    max_k = data.draw(st.integers(1, n), "max_k")
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), "seed"))
    options = {
        "boost": data.draw(st.sampled_from([None, *BOOSTS]), "boost"),
        "order": data.draw(st.sampled_from(["score", "position"]), "order"),
        "hard": data.draw(st.booleans(), "hard"),
    }
    scores = SCORES[data.draw(st.sampled_from(["normal", "tied", "heavy-tailed"]))]((4, n), torch.float64, generator)
    values = torch.randn(4, n, 2, generator=generator, dtype=torch.float64)
    mask = torch.rand(4, n, generator=generator) < 0.7 if data.draw(st.booleans(), "masked") else None
    counts = torch.tensor(data.draw(st.lists(st.integers(0, max_k), min_size=4, max_size=4), "counts"))
    given = [torch.randn(4, *shape, generator=generator) for shape in ((max_k, 2), (max_k,), (n,))]
    together = selected(scores, values, counts, given, max_k=max_k, mask=mask, **options)
    for row, own in enumerate(counts.tolist()):
        slots, candidates = together.of(row)
        for each in slots:
            assert (each[own:] == (-1 if each is slots[3] or each is slots[7] else 0)).all()  # the leaders
        if own == 0:
            assert not any(each.any() for each in candidates)
            continue
        of_row = [given[0][row, :own], given[1][row, :own], given[2][row]]
        own_mask = None if mask is None else mask[row]
        alone = selected(scores[row], values[row], own, of_row, mask=own_mask, **options)
        for one, other in zip(slots, alone.slots, strict=True):
            same_bits(one[:own], other)
        for one, other in zip(candidates, alone.candidates, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("boost", [Relative(4), None], ids=str)
def test_long_rows_too(boost: Boost | None) -> None:
    scores, counts = randn(4, 4500, dtype=torch.float32), torch.tensor([1, 9, 3, 0])
    out = knockout.topk(scores.unsqueeze(-1), scores, counts, boost, max_k=9)
    for row, own in enumerate(counts.tolist()):
        assert out.mask[row].sum() == own
        if own:
            alone = knockout.topk(scores[row].unsqueeze(-1), scores[row], own, boost)
            for one, other in zip(out, alone, strict=True):
                same_bits(one[row, :own], other)


BATCHES = [((3,), (2, 1), None), ((), (3,), None), ((2, 3), (), (3,)), ((2, 1), (3,), (2, 1)), ((0,), (1,), None)]


@pytest.mark.parametrize(("of_scores", "of_counts", "of_mask"), BATCHES)
@pytest.mark.parametrize("zero", [False, True])
def test_counts_broadcast(
    of_scores: tuple[int, ...], of_counts: tuple[int, ...], of_mask: tuple[int, ...] | None, zero: bool
) -> None:
    scores, values = separated(*of_scores, 9), randn(*of_scores, 9, 2)
    mask = None if of_mask is None else randn(*of_mask, 9) > -0.5
    counts = (torch.arange(len(torch.empty(of_counts).flatten())) + (not zero)).reshape(of_counts) % 4
    batch = torch.broadcast_shapes(of_scores, of_counts, () if of_mask is None else of_mask)
    out = knockout.topk(values, scores, counts, max_k=3, mask=mask)
    whole = knockout.topk(
        values.expand(*batch, 9, 2), scores.expand(*batch, 9), counts.expand(batch), max_k=3,
        mask=None if mask is None else mask.expand(*batch, 9),
    )  # fmt: skip
    for one, other in zip(out, whole, strict=True):
        same_bits(one, other)
    assert out.values.shape == (*batch, 3, 2)


@pytest.mark.parametrize(
    ("of_scores", "of_counts", "words"),
    [
        ((3,), (3, 1), r"Pass scores\.unsqueeze\(-2\) for the first, .*; or drop .* size 1: k\.flatten\(0, -1\)$"),
        ((3, 3), (3,), r"Pass k\.unsqueeze\(-1\) for the first, k\.unsqueeze\(0\) for the last$"),
    ],
)
def test_counts_that_fit_in_two_ways_are_an_error(
    of_scores: tuple[int, ...], of_counts: tuple[int, ...], words: str
) -> None:
    scores, counts = separated(*of_scores, 9), torch.ones(of_counts, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"the batch dimensions of k, .* in one way; .*" + words):
        knockout.topk(randn(*of_scores, 9, 2), scores, counts, max_k=3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_any_integers(dtype: torch.dtype) -> None:
    scores, counts = separated(4, 9), torch.tensor([0, 1, 2, 5])
    same_bits(
        knockout.select(scores, counts.to(dtype), max_k=5).weights(), knockout.select(scores, counts, max_k=5).weights()
    )


def test_a_row_that_wants_nothing_has_nothing() -> None:
    scores = separated(2, 9).index_put((torch.tensor([0]), torch.tensor([3])), torch.tensor(NAN).double())
    scores.requires_grad_()
    picked = knockout.select(scores, torch.tensor([0, 2]), max_k=3)
    results = picked.apply(torch.full((2, 9, 2), NAN).double().index_fill(0, torch.tensor(1), 1.0)), picked.scores
    for out in (*results, picked.weights(), picked.mass(), picked.perplexity(), picked.support()):
        assert not out[0].any()
    assert picked.gates()[0].tolist() == [1.0] * 3
    (gradient,) = torch.autograd.grad(results[0].sum() + results[1].sum(), scores)
    assert not gradient[0].any()


def test_counts_that_change_after_the_call() -> None:
    scores, counts = separated(2, 9).requires_grad_(), torch.tensor([1, 3])
    for hard in (False, True):
        out = knockout.topk(randn(2, 9, 2), scores, counts, 1.0, hard=hard, max_k=3)
        (expected,) = torch.autograd.grad(out.values.square().sum(), scores, retain_graph=True)
        counts.zero_()
        (gradient,) = torch.autograd.grad(out.values.square().sum(), scores)
        same_bits(gradient, expected)
        counts.copy_(torch.tensor([1, 3]))


@pytest.mark.parametrize(("boost", "order"), [(Relative(0.7), "score"), (Power(2), "position")], ids=str)
def test_derivatives(boost: Boost, order: Order) -> None:
    counts = torch.tensor([3, 1, 0])

    def operator(values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        return knockout.topk(values, scores, counts, boost, order=order, max_k=3)[:2]

    arguments = randn(3, 6, 1).requires_grad_(), separated(3, 6).requires_grad_()
    assert gradcheck(operator, arguments)
    assert gradgradcheck(operator, arguments)
