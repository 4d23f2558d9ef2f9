"""The true top k by score: hard choices in evaluation and ``methods.hard``, with ties broken by the lower index."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from knockout import Selection, methods
from knockout.nn import TokenPool, TopK
from tests.cases import randn, random_mask, same_bits

Choose = Callable[[Tensor, float, Tensor | None, str], Selection]


def layer(scores: Tensor, k: float, mask: Tensor | None, order: str) -> Selection:
    return TopK(k, order=order, hard_eval=True).eval().select(scores, mask)  # type: ignore[arg-type]


def traced(scores: Tensor, k: float, mask: Tensor | None, order: str) -> Selection:
    """As where no number can be looked at: the rows of a vmap."""
    mask = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand(scores.shape)
    return torch.vmap(lambda s, m: layer(s, k, m, order))(scores, mask)


def function(scores: Tensor, k: float, mask: Tensor | None, order: str) -> Selection:
    assert order == "score"
    return methods.hard(scores, k, mask)


def expected(scores: Tensor, k: float, mask: Tensor | None, order: str) -> list[list[int]]:
    """The indices of each row, by Python's stable sort."""
    rows: list[list[int]] = []
    for row, kept in zip(scores.tolist(), torch.ones_like(scores).bool().tolist(), strict=True):
        active = [j for j, score in enumerate(row) if kept[j] and score != -math.inf]
        if mask is not None:
            active = [j for j in active if mask.expand(scores.shape)[len(rows)][j]]
        if any(math.isnan(row[j]) or row[j] == math.inf for j in active):
            row = [0.0] * len(row)
        slots = k if isinstance(k, int) else math.ceil(k * scores.shape[-1])
        count = slots if isinstance(k, int) else math.ceil(k * len(active))
        best = sorted(active, key=lambda j: -row[j])[: min(int(count), slots)]
        best = sorted(best) if order == "position" else best
        rows.append(best + [-1] * (int(slots) - len(best)))
    return rows


def check(found: Selection, scores: Tensor, k: float, mask: Tensor | None, order: str) -> None:
    indices = torch.tensor(expected(scores, k, mask, order))
    assert torch.equal(found.indices, indices)
    assert found.indices.is_contiguous()
    filled = indices >= 0
    assert torch.equal(found.mask, filled)
    active = scores != -torch.inf if mask is None else mask & (scores != -torch.inf)
    invalid = (active & ~(scores < torch.inf)).any(dim=-1, keepdim=True)
    values = randn(*scores.shape, 3, dtype=torch.float32)
    chosen = torch.where(
        filled.unsqueeze(-1), values.gather(1, indices.clamp(min=0).unsqueeze(-1).expand(-1, -1, 3)), 0
    )
    same_bits(found.apply(values), chosen.masked_fill(invalid.unsqueeze(-1), torch.nan))
    best = torch.where(filled, scores.gather(1, indices.clamp(min=0)), 0.0)
    same_bits(found.scores, best.masked_fill(invalid, torch.nan))
    assert torch.equal(found.support(), (filled & ~invalid).long())
    same_bits(found.perplexity(), filled.to(scores.dtype).masked_fill(invalid, torch.nan))
    mass = torch.zeros_like(scores).scatter_add(1, indices.clamp(min=0), filled.to(scores.dtype))
    same_bits(found.mass(), mass.masked_fill(invalid, torch.nan))


CHOICES = [(layer, "score"), (layer, "position"), (traced, "score"), (traced, "position"), (function, "score")]
INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(("choose", "order"), CHOICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("row", "k"),
    [
        ([3.0, 1.0, 2.0, 0.5], 2),  # no ties
        ([1.0, 2.0, 2.0, 2.0, 2.0], 2),  # a tie between what is in and what is not
        ([5.0, 2.0, 2.0, 2.0, 6.0, 0.0], 5),  # a tie of candidates that are all in
        ([0.0, -0.0, 0.0, -1.0, -0.0, -2.0], 3),
        ([-1.0, -2.0, -2.0, -0.5, -2.0, -3.0], 4),
        ([7.0] * 40, 17),
        ([-INF, 1.0, -INF, 1.0], 3),
        ([-INF] * 4, 2),
        ([1.0, NAN, -INF, 2.0, INF], 3),
        ([INF, 3.0, 2.0, 1.0], 2),
        ([4.0], 1),
        ([2.0, 3.0, 3.0], 3),
        ([1.0, 2.0, 2.0, -INF, 2.0, 0.0], 0.5),
        ([-INF, 3.0, -INF, -INF], 0.9),
    ],
)
def test_the_true_top_k(row: list[float], k: float, dtype: torch.dtype, choose: Choose, order: str) -> None:
    scores = torch.tensor([row], dtype=dtype)
    check(choose(scores, k, None, order), scores, k, None, order)
    # The same beside other rows, with and without ties, and in another memory layout.
    others = torch.stack([torch.arange(len(row)), torch.ones(len(row))]).to(dtype)
    batch = torch.cat([others[:1], scores, others[1:]]).t().contiguous().t()
    check(choose(batch, k, None, order), batch, k, None, order)


@pytest.mark.parametrize(("choose", "order"), CHOICES)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_drawn_scores(data: st.DataObject, choose: Choose, order: str) -> None:
    batch, n = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 40))
    numbers = data.draw(
        st.sampled_from([[0.0, -0.0, 1.0, -1.0, 1e-40, -INF], [0.5, 1.5, -2.5, 3e38, -3e38, NAN], None])
    )
    seed = data.draw(st.integers(0, 99))
    scores = randn(batch, n, seed=seed, dtype=torch.float32)
    if numbers is not None:
        draw = st.lists(st.sampled_from(numbers), min_size=batch * n, max_size=batch * n)
        scores = torch.tensor(data.draw(draw)).view(batch, n)
    k = data.draw(st.one_of(st.integers(1, n), st.sampled_from([0.25, 0.5])))
    mask = data.draw(st.sampled_from([None, random_mask(batch, n, kept=0.5, seed=seed)]))
    check(choose(scores, k, mask, order), scores, k, mask, order)


@pytest.mark.parametrize("choose", [layer, traced, function])
def test_ties_of_long_rows(choose: Choose) -> None:
    # So long that torch.topk takes others of equal scores than the first; one row has no tie.
    scores = torch.randint(0, 300, (4, 5000), generator=torch.Generator().manual_seed(0)).float()
    scores[2] = torch.randperm(5000, generator=torch.Generator().manual_seed(1))
    ranked = scores.sort(dim=-1, descending=True, stable=True).indices[:, :100]
    assert not torch.equal(scores.topk(100).indices, ranked)
    assert torch.equal(choose(scores, 100, None, "score").indices, ranked)
    keep = random_mask(5000, kept=0.7)
    short = keep.nonzero().squeeze(-1)[choose(scores[:, keep], 100, None, "score").indices]
    assert torch.equal(choose(scores, 100, keep, "score").indices, short)


def test_compiled_and_eager_are_the_same() -> None:
    scores, values = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0], [5.0, 1.0, 1.0, 1.0, 0.0]]), randn(2, 5, 3)
    chosen = TopK(2, hard_eval=True).eval()
    torch._dynamo.reset()
    compiled: Any = torch.compile(chosen, backend="aot_eager", fullgraph=True)
    for one, other in zip(compiled(values, scores), chosen(values, scores), strict=True):
        same_bits(one, other)
    assert chosen(values, scores).indices.tolist() == [[1, 2], [0, 1]]


def test_values_have_the_gradient_of_a_gather_and_scores_have_none() -> None:
    values, scores = randn(2, 9, 3).requires_grad_(), randn(2, 9).requires_grad_()
    out = TopK(4, hard_eval=True).eval()(values, scores)
    assert not out.scores.requires_grad
    up = randn(2, 4, 3, seed=1)
    index = scores.topk(4).indices.unsqueeze(-1).expand(-1, -1, 3)
    (found,) = torch.autograd.grad(out.values, values, up)
    assert torch.equal(found, torch.zeros(2, 9, 3, dtype=torch.float64).scatter(1, index, up))
    shared = randn(9, 3).requires_grad_()  # by all rows
    (found,) = torch.autograd.grad(TopK(4, hard_eval=True).eval()(shared, scores).values, shared, up)
    assert torch.equal(
        found, torch.zeros(9, 3, dtype=torch.float64).index_add(0, index[..., 0].flatten(), up.flatten(0, 1))
    )


@pytest.mark.parametrize("filler", [0.0, NAN, INF])
def test_padding_may_hold_anything(filler: float) -> None:
    pool = TokenPool(8, k=4, hard_eval=True).eval()
    x, mask = randn(3, 20, 8, dtype=torch.float32), torch.arange(20) < torch.tensor([[20], [9], [2]])
    out, clean = pool(x.masked_fill(~mask.unsqueeze(-1), filler), mask), pool(x, mask)
    for name in ("x", "mask", "positions", "leaders", "scores"):
        same_bits(getattr(out, name), getattr(clean, name))


def test_padding_does_not_reach_the_gradient_of_a_scorer_that_gets_one() -> None:
    class Soft(TokenPool):
        def select(self, scores: Tensor, mask: Tensor | None, k: Tensor | None = None) -> Selection:
            assert k is None
            return methods.softsort(scores, 4, mask=mask)

    x, mask = randn(1, 12, 8, dtype=torch.float32), torch.arange(12) < 9
    pool = Soft(8, k=4, hard_eval=True).eval()
    pool(x.masked_fill(~mask.unsqueeze(-1), NAN), mask).x.sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in pool.parameters())
