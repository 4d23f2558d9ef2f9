"""The way back from pooled tokens to all tokens."""

# mypy: disable-error-code="arg-type, operator, union-attr"

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from knockout.nn import TokenPool
from tests.cases import randn, same_bits
from tests.nn_cases import DIM, encoder, masked, pool, tokens


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


# --- an output for every token: unpool=True -------------------------------------------------------

UNPOOLED: list[dict[str, Any]] = [
    {"lengths": {0: 12, 1: 5}},
    {"ratios": {0: 0.5, 1: 0.3}, "block": 8},
    {"lengths": {0: 9}, "keep": 1, "gate": True},
    {"lengths": {0: 12, 2: 5}, "order": "score", "hard": True},
]


def test_pools_are_undone_from_the_last_to_the_first() -> None:
    made = encoder(lengths={0: 12, 1: 5}, unpool=True)
    x, mask, positions = tokens(2, 40), masked(2, 40, [40, 21]), 2.0 * torch.arange(40)
    out = made(x, mask, positions)
    one = made.layers[0](x, src_key_padding_mask=~mask)
    first = made.pools["0"](one, mask, positions)
    two = made.layers[1](first.x)
    second = made.pools["1"](two, first.mask, first.positions)
    back = first.unpool(second.unpool(made.layers[2](second.x), two, first.mask), one, mask)
    torch.testing.assert_close(out.x, back)
    assert torch.equal(out.mask, mask)
    assert torch.equal(out.positions, positions.expand(2, 40))
    assert torch.equal(out.leaders, torch.where(mask, torch.arange(40), -1))
    assert [level.x.shape[1] for level in out.levels] == [12, 5]
    assert made(x).mask is None


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", UNPOOLED, ids=str)
def test_padding_changes_no_output_of_a_token(options: dict[str, Any], training: bool) -> None:
    made = encoder(**options, unpool=True).train(training)
    lengths = [31, 9, 4, 1]
    alone = [tokens(1, n, seed=n) for n in lengths]
    padded = torch.full((len(lengths), 37, DIM), torch.nan)
    for row, x in zip(padded, alone, strict=True):
        row[: x.shape[1]] = x[0]
    out = made(padded, masked(len(lengths), 37, lengths))
    for row, x in zip(out.x, alone, strict=True):
        n = x.shape[1]
        torch.testing.assert_close(row[:n], made(x).x[0], rtol=1e-4, atol=1e-5)
        assert not row[n:].any()
    out.x.sin().sum().backward()
    assert all(each.grad.isfinite().all() for each in made.parameters() if each.grad is not None)


@pytest.mark.parametrize("options", [{}, {"keep": 2}, {"block": 8}, {"hard": True}], ids=str)
@pytest.mark.parametrize("mask", [None, masked(2, 20, [20, 13])])
def test_where_all_tokens_pass_it_is_the_encoder_without_pools(options: dict[str, Any], mask: Tensor | None) -> None:
    made = encoder(lengths={0: 40, 1: 20}, unpool=True, **options)
    plain = encoder(lengths={}, block=options.get("block"))
    x, real = tokens(2, 20), torch.ones(2, 20).bool() if mask is None else mask
    same_bits(made(x, mask).x[real], plain(x, mask).x[real])


def test_all_tokens_compiled_and_under_checkpoints() -> None:
    torch._dynamo.reset()
    x, mask = tokens(2, 20), masked(2, 20, [20, 13])
    made = encoder(1, lengths={0: 9}, keep=1, gate=True, unpool=True)
    checkpointed = copy.deepcopy(made)
    checkpointed.layers = nn.ModuleList(checkpoint_wrapper(layer) for layer in checkpointed.layers)
    expected = made(x, mask).x
    gradients = torch.autograd.grad(expected.sin().sum(), list(made.parameters()))
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    for model, parameters in ((checkpointed, checkpointed.parameters()), (compiled, made.parameters())):
        out = model(x, mask).x
        torch.testing.assert_close(out, expected)
        found = torch.autograd.grad(out.sin().sum(), list(parameters))
        torch.testing.assert_close(found, gradients, rtol=1e-3, atol=1e-5)


def test_a_model_learns_to_label_tokens_that_are_not_passed_on() -> None:
    """Each token is labelled by itself: no more than a quarter of them pass, and all can be labelled."""
    made = encoder(2, lengths={0: 8}, unpool=True, boost=16.0)
    head = nn.Linear(DIM, 2)
    optimizer = torch.optim.Adam([*made.parameters(), *head.parameters()], 1e-2)
    for step in range(60):
        x = tokens(16, 32, seed=step)
        loss = nn.functional.cross_entropy(head(made(x).x).flatten(0, 1), (x[..., 0] > 0).long().flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x = tokens(16, 32, seed=1000)
    right = head(made(x).x).argmax(dim=-1) == (x[..., 0] > 0)
    assert right.float().mean() > 0.93


def test_unpool_is_a_flag() -> None:
    with pytest.raises(TypeError, match="unpool must be True or False; got 1 of type int"):
        encoder(lengths={0: 8}, unpool=1)
    assert "unpool=True" in repr(encoder(lengths={0: 8}, unpool=True))
