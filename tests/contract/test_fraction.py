"""k as a fraction of the active candidates, row by row, whatever inactive candidates are around them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import knockout
from knockout.boost import Boost, Fixed, Power, Relative
from knockout.functional import Order
from tests import oracle
from tests.cases import BOOSTS, INF, NAN, fractions, randn, same_bits, separated, slots


@pytest.mark.parametrize(
    ("fraction", "count", "expected"),
    [(0.1, 10, 1), (0.1, 11, 2), (0.3, 10, 3), (0.7, 10, 7), (0.5, 7, 4), (1 / 3, 9, 3), (1e-12, 5, 1), (0.9, 0, 0)],
)
def test_a_fraction_is_rounded_up(fraction: float, count: int, expected: int) -> None:
    assert slots(fraction, count) == expected
    assert knockout.select(torch.randn(max(count, 1)), fraction).k == max(expected, 1)
    mask = torch.arange(20) < count
    assert knockout.select(torch.randn(20), fraction, mask=mask).mask.sum() == expected


class Row(NamedTuple):
    """Everything that a selection shows, and gradients; of a batch, or of one row."""

    values: Tensor
    scores: Tensor
    mass: Tensor
    weights: Tensor
    perplexity: Tensor
    d_scores: Tensor
    d_values: Tensor
    indices: Tensor
    mask: Tensor
    support: Tensor


def selected(scores: Tensor, values: Tensor, k: float, given: list[Tensor], **options: Any) -> Row:
    """``given`` are the gradients of values, scores and mass."""
    scores, values = scores.detach().requires_grad_(), values.detach().requires_grad_()
    picked = knockout.select(scores, k, **options)
    outputs = [picked.apply(values), picked.scores, picked.mass()]
    gradients = torch.autograd.grad(outputs, (scores, values), [x.to(scores.dtype) for x in given])
    shown = (*outputs, picked.weights(), picked.perplexity(), *gradients, picked.indices, picked.mask, picked.support())
    return Row(*(x.detach() for x in shown))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_each_row_is_that_without_its_inactive_candidates(data: st.DataObject) -> None:
    n, fraction = data.draw(st.integers(1, 40), "n"), data.draw(fractions, "fraction")
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), "seed"))
    options = {
        "boost": data.draw(st.sampled_from(BOOSTS), "boost"),
        "order": data.draw(st.sampled_from(["score", "position"]), "order"),
        "hard": data.draw(st.booleans(), "hard"),
    }
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]), "dtype")
    scores = torch.randn(5, n, generator=generator, dtype=dtype)
    if data.draw(st.booleans(), "tied"):
        scores = (2 * scores).round()
    values = torch.randn(5, n, 2, generator=generator, dtype=dtype)
    kept = torch.tensor([[1.0], [0.7], [0.4], [0.1], [0.0]])
    mask = torch.rand(5, n, generator=generator) < kept
    k = slots(fraction, n)
    given = [torch.randn(5, *shape, generator=generator, dtype=dtype) for shape in ((k, 2), (k,), (n,))]
    if data.draw(st.booleans(), "by score"):
        together = selected(scores.masked_fill(~mask, -INF), values, fraction, given, **options)
    else:
        together = selected(scores.masked_fill(~mask, NAN), values, fraction, given, mask=mask, **options)
    for row in range(5):
        out = Row(*(x[row] for x in together))
        places = mask[row].nonzero().flatten()
        own = slots(fraction, len(places))
        assert out.mask.tolist() == [True] * own + [False] * (k - own)
        for empty in (out.values, out.scores, out.weights, out.perplexity, out.support):
            assert not empty[own:].any()
        assert (out.indices[own:] == -1).all()
        assert not out.d_scores[~mask[row]].any()
        assert not out.d_values[~mask[row]].any()
        if own == 0:
            continue
        of_row = [given[0][row, :own], given[1][row, :own], given[2][row, places]]
        alone = selected(scores[row, places], values[row, places], own, of_row, **options)
        same_bits(out.values[:own], alone.values)
        same_bits(out.scores[:own], alone.scores)
        same_bits(out.mass[places], alone.mass)
        same_bits(out.weights[:own, places], alone.weights)
        same_bits(out.perplexity[:own], alone.perplexity)
        same_bits(out.d_scores[places], alone.d_scores)
        same_bits(out.d_values[places], alone.d_values)
        assert torch.equal(out.indices[:own], places[alone.indices])
        assert torch.equal(out.support[:own], alone.support)


@pytest.mark.parametrize("boost", [Relative(4), Relative(0.5), Fixed(3)], ids=str)
def test_long_rows_too(boost: Boost) -> None:
    scores, lengths = randn(4, 20_000, dtype=torch.float32), (20_000, 19_999, 5_000, 3)
    mask = torch.arange(20_000) < torch.tensor(lengths).unsqueeze(-1)
    picked = knockout.select(scores, 0.01, boost, mask=mask)
    assert picked.k == 200
    for row, length in enumerate(lengths):
        own = slots(0.01, length)
        alone = knockout.select(scores[row, :length], own, boost)
        assert torch.equal(picked.indices[row, :own], alone.indices)
        same_bits(picked.scores[row, :own], alone.scores)
        same_bits(picked.mass()[row, :length], alone.mass())
        assert picked.mask[row].sum() == own


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
@pytest.mark.parametrize("fraction", [0.07, 0.25, 0.6])
def test_each_row_is_that_of_the_pseudo_code(fraction: float, boost: Boost) -> None:
    scores, values = separated(4, 23), randn(4, 23, 3)
    mask = torch.arange(23) < torch.tensor([[23], [13], [2], [1]])
    out = knockout.topk(values, scores, fraction, boost, mask=mask)
    for row in range(4):
        own = slots(fraction, int(mask[row].sum()))
        expected = oracle.halving(values[row].tolist(), scores[row].tolist(), own, boost, mask[row].tolist())
        assert out.indices[row, :own].tolist() == expected.indices
        torch.testing.assert_close(out.values[row, :own], torch.tensor(expected.values, dtype=torch.float64))
        torch.testing.assert_close(out.scores[row, :own], torch.tensor(expected.scores, dtype=torch.float64))


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("hard", [False, True])
def test_an_invalid_row_is_nan_in_all_its_slots(bad: float, hard: bool) -> None:
    scores, values = separated(3, 20), randn(3, 20, 2)
    scores[1, 4] = bad
    mask = torch.arange(20) < torch.tensor([[20], [10], [5]])
    picked = knockout.select(scores, 0.25, mask=mask, hard=hard)
    for out in (picked.apply(values), picked.scores, picked.weights(), picked.mass(), picked.perplexity()):
        assert out[1].isnan().all()
        assert out[[0, 2]].isfinite().all()
    assert picked.mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2, [True] * 2 + [False] * 3]
    assert picked.indices[1].tolist() == [0, 1, 2, -1, -1]


MASK = torch.arange(8) < torch.tensor([[8], [5], [1], [0]])


@pytest.mark.parametrize(
    "boost", [Relative(0.7), Relative(1, unit=0.01, alpha=1), Fixed(1, alpha=2), Power(2)], ids=str
)
@pytest.mark.parametrize("order", ["score", "position"])
def test_derivatives(boost: Boost, order: Order) -> None:
    def operator(values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        return knockout.topk(values, scores, 0.3, boost, mask=MASK, order=order)[:2]

    arguments = randn(4, 8, 1).requires_grad_(), separated(4, 8).requires_grad_()
    assert gradcheck(operator, arguments)
    assert gradgradcheck(operator, arguments)
