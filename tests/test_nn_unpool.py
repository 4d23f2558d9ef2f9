"""The way back from pooled tokens to all tokens."""

# mypy: disable-error-code="arg-type, operator, union-attr"

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from knockout.nn import TokenPool
from tests.cases import randn, same_bits
from tests.nn_cases import DIM, masked, pool, tokens


def test_each_token_is_a_blend_of_itself_and_its_slot() -> None:
    x, y = tokens(2, 30), tokens(2, 8, seed=1)
    pooled = pool(k=8, boost=1.0)(x)
    weights = pooled.selection.weights()
    expected = (1 - weights.sum(dim=1).unsqueeze(-1)) * x + weights.mT @ y
    torch.testing.assert_close(pooled.unpool(y, x), expected)


def test_hard_choices_give_leaders_their_slots_and_leave_the_others() -> None:
    x, y = tokens(2, 30), tokens(2, 8, seed=1)
    pooled = pool(k=8, boost=1.0, hard=True)(x)
    same_bits(pooled.unpool(y, x), x.scatter(1, pooled.leaders.unsqueeze(-1).expand(2, 8, DIM), y))


@pytest.mark.parametrize("options", [{}, {"gate": True}, {"keep": 3}, {"order": "score"}, {"hard": True}])
@pytest.mark.parametrize("n", [1, 3, 4, 10])
def test_where_all_pass_the_result_is_y(options: dict[str, object], n: int) -> None:
    x, mask = tokens(2, n), masked(2, n, [n, max(1, n - 3)])
    made = pool(k=10, **options)
    for real in (None, mask):
        pooled = made(x, real)
        y = tokens(2, pooled.x.shape[1], seed=1)
        out = pooled.unpool(y, x, real)
        expected = torch.zeros(2, n + 1, DIM).scatter(1, pooled.leaders.unsqueeze(-1).expand(y.shape) % (n + 1), y)
        real = torch.ones(2, n).bool() if real is None else real
        same_bits(out, torch.where(real.unsqueeze(-1), expected[:, :n], 0.0))


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_padding_changes_nothing(data: st.DataObject) -> None:
    n, more, keep = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 8)), data.draw(st.integers(0, 2))
    size = data.draw(st.sampled_from([{"k": keep + 1}, {"k": keep + 4}, {"ratio": 0.3}]))
    made = pool(**size, keep=keep, boost=data.draw(st.sampled_from([0.5, 4.0])))
    alone = tokens(1, n).requires_grad_()
    filler = torch.full((1, more, DIM), data.draw(st.sampled_from([1.0, float("nan"), float("inf")])))
    padded = torch.cat([torch.cat([alone, filler], dim=1), tokens(1, n + more, seed=5)])
    mask = masked(2, n + more, [n, n + more])
    one, both = made(alone), made(padded, mask)
    y = tokens(2, both.x.shape[1], seed=2)
    length = one.x.shape[1]
    there = one.unpool(y[:1, :length], alone)
    back = both.unpool(y.masked_fill(~both.mask[..., None], torch.nan), padded, mask)
    torch.testing.assert_close(back[:1, :n], there)
    assert not back[0, n:].any()
    weight = made.scorer.weight
    gradients = [
        torch.autograd.grad(out[:1, :n].sin().sum(), (alone, weight), allow_unused=True, materialize_grads=True)
        for out in (there, back)
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * max(float(a.abs().max()), 1e-3))


def test_padding_that_the_mask_does_not_name_stays_where_it_is() -> None:
    x, mask = tokens(2, 12), masked(2, 12, [12, 7])
    x[1, 7:] = torch.nan
    pooled = pool(k=4, keep=1)(x, mask)
    out, y = pooled.unpool(pooled.x, x), pooled.unpool(pooled.x, x, mask)
    assert torch.equal(out.isnan().all(dim=-1), ~mask)
    same_bits(out[mask], y[mask])


def test_gradients() -> None:
    made, mask = TokenPool(3, k=4, keep=1, boost=1.0).double(), masked(2, 9, [9, 6])

    def back(x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = made(x, mask).unpool(y, x, mask)
        return out

    assert gradcheck(back, (randn(2, 9, 3).requires_grad_(), randn(2, 4, 3, seed=1).requires_grad_()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    x = tokens(2, 12).to(dtype)
    pooled = pool(k=4, keep=1).to(dtype)(x)
    assert pooled.unpool(pooled.x, x).dtype == dtype


@pytest.mark.parametrize(
    ("y", "x", "message"),
    [
        ((2, 5, DIM), (2, 12, DIM), r"y must have shape \(\.\.\., 4, dim\), as the x of the pool; got shape \(2, 5"),
        ((2, 4, DIM), (2, 11, DIM), r"x must have shape \(\.\.\., 12, 16\), the tokens as they were before the pool"),
        ((2, 4, 5), (2, 12, DIM), r"x must have shape \(\.\.\., 12, 5\), .*, of the dimension of y; got \(2, 12, 16\)"),
        (
            (3, 4, DIM),
            (2, 12, DIM),
            r"the batch dimensions of y must broadcast with those of the pool, \(2,\); got \(3,",
        ),
    ],
)
@pytest.mark.parametrize("keep", [0, 1])
def test_bad_input(keep: int, y: tuple[int, ...], x: tuple[int, ...], message: str) -> None:
    pooled = pool(k=4, keep=keep)(tokens(2, 12))
    with pytest.raises(ValueError, match=message):
        pooled.unpool(torch.zeros(y), torch.zeros(x))
