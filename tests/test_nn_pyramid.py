"""Pyramid encoders."""

# mypy: disable-error-code="arg-type, operator, union-attr"

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from knockout.nn import PyramidEncoder
from tests.nn_cases import DIM, encoder, masked, tokens


def test_pyramid_is_its_layers_and_pools() -> None:
    made = encoder(lengths={0: 12, 1: 5})
    x = tokens(2, 40)
    out = made(x)
    first = made.pools["0"](made.layers[0](x))
    second = made.pools["1"](made.layers[1](first.x), None, first.positions)
    torch.testing.assert_close(out.x, made.layers[2](second.x))
    torch.testing.assert_close(out.positions, second.positions)
    assert torch.equal(out.leaders, first.leaders.gather(1, second.leaders))
    assert out.mask is not None
    assert bool(out.mask.all())
    assert [level.x.shape[1] for level in out.levels] == [12, 5]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"lengths": {}},
        {"lengths": {0: 12, 1: 5}},
        {"lengths": [12, None, 5]},
        {"ratios": {0: 0.5, 1: 0.3}},
        {"lengths": {0: 12, 1: 5}, "block": 8},
        {"lengths": {1: 6}, "block": [8, 5, None]},
        {"ratios": {1: 0.4}, "block": 7},
        {"lengths": {0: 9}, "keep": 1},
        {"lengths": {0: 12, 1: 5}, "hard_eval": True, "order": "score"},
    ],
    ids=str,
)
def test_padding_changes_nothing_through_every_layer(options: dict[str, Any], training: bool) -> None:
    made = encoder(**options).train(training)
    lengths = [31, 30, 9, 4, 1]
    alone = [tokens(1, n, seed=n) for n in lengths]
    padded = torch.full((len(lengths), 37, DIM), 7.0)
    for row, x in zip(padded, alone, strict=True):
        row[: x.shape[1]] = x[0]
    out = made(padded, masked(len(lengths), 37, lengths))
    for i, x in enumerate(alone):
        one = made(x)
        n = one.x.shape[1]
        for level, expected in zip(out.levels, one.levels, strict=True):
            k = expected.x.shape[1]
            torch.testing.assert_close(level.x[i, :k], expected.x[0], rtol=1e-4, atol=1e-5)
            assert torch.equal(level.leaders[i, :k], expected.leaders[0])
            assert not level.mask[i, k:].any()
        torch.testing.assert_close(out.x[i, :n], one.x[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(out.positions[i, :n], one.positions[0])
        assert torch.equal(out.leaders[i, :n], one.leaders[0])
        if out.levels:
            assert bool(out.mask[i, :n].all())
            assert not out.mask[i, n:].any()
    assert out.x.isfinite().all()


def test_padding_changes_no_gradient() -> None:
    made = encoder(lengths={0: 8}, block=6)
    x = tokens(2, 20)
    padded = torch.cat([x, torch.full((2, 9, DIM), 3.0)], dim=1)
    gradients = []
    for given_x, mask in ((x, None), (padded, masked(2, 29, [20, 20]))):
        made.zero_grad()
        made(given_x, mask).x.sin().sum().backward()
        gradients.append([each.grad.clone() for each in made.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_blocks_are_sequences_of_their_own() -> None:
    made = encoder(n_layers=1, lengths={}, block=8)
    x = tokens(2, 21)
    whole = made(x).x
    for start in (0, 8, 16):
        torch.testing.assert_close(whole[:, start : start + 8], made.layers[0](x[:, start : start + 8]))


@pytest.mark.parametrize("mask", [None, masked(2, 20, [20, 13])])
def test_attention_is_scaled_dot_product_attention_in_inference_too(mask: Tensor | None) -> None:
    made = encoder(lengths={0: 4}, block=8).eval()
    with torch.inference_mode(), torch.profiler.profile() as profile:
        made(tokens(2, 20), mask)
    names = [each.key for each in profile.key_averages()]
    assert "aten::scaled_dot_product_attention" in names
    assert "aten::_transformer_encoder_layer_fwd" not in names
    assert torch.backends.mha.get_fastpath_enabled()


def test_compile_in_inference() -> None:
    torch._dynamo.reset()
    made = encoder(lengths={0: 4}, block=8).eval()
    x, mask = tokens(2, 20), masked(2, 20, [20, 13])
    with torch.no_grad():
        out = torch.compile(made, backend="aot_eager", fullgraph=True)(x, mask)
        torch.testing.assert_close(out.x, made(x, mask).x)


@pytest.mark.parametrize("block", [None, 10])
def test_padding_may_hold_anything(block: int | None) -> None:
    made = encoder(lengths={1: 4}, block=block)
    x, mask = tokens(2, 20), masked(2, 20, [20, 7])
    invalid = x.masked_fill(~mask.unsqueeze(-1), torch.nan)
    gradients = []
    for each in (x, invalid):
        made.zero_grad()
        out = made(each, mask).x
        out.sin().sum().backward()
        gradients.append([out, *(parameter.grad for parameter in made.parameters())])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda layer: checkpoint_wrapper(layer),
        lambda layer: torch.compile(layer, backend="eager"),
        lambda layer: nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
    ],
)
def test_wrapped_layers_are_called_as_what_they_wrap(wrap: Callable[[nn.Module], nn.Module]) -> None:
    torch._dynamo.reset()
    plain = encoder(n_layers=1, lengths={0: 5})
    wrapped = copy.deepcopy(plain)
    layer = wrap(wrapped.layers[0])
    made = PyramidEncoder([layer], {0: 5}, dim=DIM)
    made.pools = wrapped.pools
    x, mask = tokens(8, 8), masked(8, 8, [8, 7, 6, 5, 4, 3, 2, 1])
    expected = plain(x, mask)
    torch.testing.assert_close(made(x, mask).x, expected.x)


def test_layers_get_float_positions() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:  # noqa: ARG002
            assert positions.dtype == torch.float32
            return x

    PyramidEncoder([Own(), Own()], {0: 4}, dim=DIM)(tokens(2, 10), None, torch.arange(10))


def test_a_row_without_tokens_is_empty() -> None:
    out = encoder(lengths={0: 4}, block=8)(tokens(2, 20), masked(2, 20, [20, 0]))
    assert not out.mask[1].any()
    assert out.x[0].isfinite().all()
    out.x[0].sum().backward()


def test_layers_of_ones_own_get_mask_and_positions() -> None:
    seen: list[Any] = []

    class Own(nn.Module):
        def forward(self, x: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
            seen.append((x.shape, mask, positions))
            return x

    made = PyramidEncoder([Own(), Own()], {0: 4}, dim=DIM, block=8)
    made(tokens(2, 10), masked(2, 10, [10, 6]))
    (shape, mask, positions), (_, later, where) = seen
    assert shape == (4, 8, DIM)
    assert torch.equal(mask.sum(dim=1), torch.tensor([8, 2, 6, 8]))  # a block without a token attends to all
    assert torch.equal(positions[0], torch.arange(8.0))
    assert later.shape == where.shape == (2, 4)
