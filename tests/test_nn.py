"""All layers: what a user of a first-rate PyTorch library would expect of them."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from knockout.boost import Power
from knockout.nn import ConstantBoost, PyramidEncoder, Sharpen, TokenPool, TopK
from tests.nn_cases import DIM, MODELS, encoder, loss_of, masked, pool, tokens


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: TokenPool(DIM), ValueError, "either k, .* or ratio, .* got k=None, ratio=None"),
        (lambda: TokenPool(DIM, 4, 0.5), ValueError, "either k"),
        (lambda: TokenPool(DIM, ratio=1.5), ValueError, r"ratio must be a float between 0 and 1; got 1\.5"),
        (lambda: TokenPool(DIM, ratio=1), ValueError, "ratio must be a float"),
        (lambda: TokenPool(DIM, 0), ValueError, "k must be at least 1; got 0"),
        (lambda: TokenPool(DIM, 2.0), TypeError, "k must be an int"),
        (lambda: TokenPool(DIM, 2, keep=2), ValueError, "k must be above keep"),
        (lambda: TokenPool(0, 2), ValueError, "dim must be at least 1"),
        (lambda: TokenPool(DIM, 2, order="rank"), ValueError, "order must be one of"),
        (lambda: TopK(4, hard_eval="yes"), TypeError, "hard_eval must be True or False"),
        (lambda: TopK(0), ValueError, "k must be at least 1"),
        (lambda: pool(k=2)(tokens(5)[..., :3]), ValueError, r"x must have shape \(\.\.\., n, 16\)"),
        (lambda: pool(k=2)(tokens(5), torch.ones(5)), TypeError, "mask must be a bool tensor"),
        (lambda: pool(k=2)(tokens(5), torch.ones(4) > 0), ValueError, "mask must have shape .* as x"),
        (lambda: pool(k=2)(tokens(5), None, torch.ones(4)), ValueError, "positions must have shape"),
        (lambda: pool(k=2)(tokens(5), None, torch.ones(5) > 0), TypeError, "positions must be a tensor of numbers"),
        (lambda: pool(k=2)(tokens(5), None, torch.ones(5).to_sparse()), TypeError, "positions must be a dense tensor"),
        (lambda: pool(k=3)(tokens(0)), ValueError, "x must have tokens"),
        (lambda: TokenPool(DIM, 2, scorer="linear"), TypeError, "scorer must be an nn.Module"),
        (lambda: TokenPool(DIM, 2, scorer=nn.Linear(DIM, 2))(tokens(5)), ValueError, "scorer must take x"),
        (lambda: TokenPool(DIM, 2, scorer=nn.LSTM(DIM, 1))(tokens(5)), ValueError, "scorer must take x"),
        (lambda: pool(k=2)(tokens(1, 5), torch.ones(3, 5) > 0), ValueError, "mask must not have more rows than x"),
        (lambda: pool(k=2)(tokens(1, 5), None, torch.ones(3, 5)), ValueError, "positions must not have more rows"),
        (lambda: encoder(), ValueError, "either lengths"),
        (lambda: encoder(lengths={0: 4}, ratios={0: 0.5}), ValueError, "either lengths"),
        (lambda: encoder(lengths=[4]), ValueError, "an entry for each of the 3 layers"),
        (lambda: encoder(lengths={3: 4}), ValueError, "lengths must name layers from 0 to 2; got 3"),
        (lambda: encoder(lengths=4), TypeError, "lengths must be a mapping from layers, such as {0: 512}"),
        (lambda: encoder(ratios=0.5), TypeError, r"ratios must be a mapping from layers, such as {0: 0\.25}"),
        (lambda: encoder(lengths={0: 0.5}), TypeError, r"lengths\[0\] must be an int; got 0\.5"),
        (lambda: encoder(ratios={1: 2}), ValueError, r"ratios\[1\] must be a float between 0 and 1; got 2"),
        (lambda: encoder(lengths={0: 4, 1: 2}, scorer=nn.Linear(DIM, 1)), ValueError, "scorer cannot be shared"),
        (lambda: encoder(lengths={})(tokens(1, 5), torch.ones(2, 5) > 0), ValueError, "mask must not have more rows"),
        (lambda: encoder(lengths={}, block=0), ValueError, "block must be at least 1"),
        (lambda: encoder(lengths={})(tokens(5)), ValueError, r"x must have shape \(batch, n, 16\)"),
        (lambda: PyramidEncoder([nn.Identity()], {}), ValueError, "dim must be passed"),
        (lambda: PyramidEncoder([nn.TransformerEncoderLayer(DIM, 2)], {}), ValueError, "batch_first=True"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("name", MODELS)
def test_compile(name: str) -> None:
    torch._dynamo.reset()
    model = MODELS[name]()
    schedule = Sharpen(model, 12, hold=0.0)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    x, mask = tokens(3, 30), masked(3, 30, [30, 18, 2])
    for _ in range(12):  # no graph is made anew for another boost
        one, other = loss_of(compiled, x, mask), loss_of(model, x, mask)
        torch.testing.assert_close(one, other)
        for a, b in zip(*(torch.autograd.grad(each, list(model.parameters())) for each in (one, other)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        schedule.step()
    assert counter.frame_count == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_compile_several_ratios(dynamic: bool | None) -> None:
    torch._dynamo.reset()
    x, mask = tokens(3, 30), masked(3, 30, [30, 18, 2])
    for ratio in (0.25, 0.5, 0.3):
        made = pool(ratio=ratio)
        compiled = torch.compile(made, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        torch.testing.assert_close(compiled(x, mask).x, made(x, mask).x)


@pytest.mark.parametrize("name", MODELS)
def test_autocast(name: str) -> None:
    model = MODELS[name]()
    x, mask = tokens(3, 30), masked(3, 30, [30, 18, 2])
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x, mask)
        loss = out.x.float().square().sum()
    loss.backward()
    expected = model(x, mask)
    assert out.positions.dtype == torch.float32
    torch.testing.assert_close(out.mask, expected.mask)
    assert all(each.grad is not None and each.grad.isfinite().all() for each in model.parameters())


def test_scores_are_in_full_precision_under_autocast() -> None:
    made, x = pool(k=8), tokens(64)
    with torch.autocast("cpu", torch.bfloat16):
        out = made(x)
    assert out.scores.dtype == torch.float32
    assert torch.equal(out.leaders, made(x).leaders)


@pytest.mark.parametrize("name", MODELS)
def test_state_dict_round_trip(name: str) -> None:
    model, other = MODELS[name](), MODELS[name]()
    ConstantBoost(model, 0.3)
    for each in other.parameters():
        nn.init.normal_(each)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    assert other.load_state_dict(torch.load(file, weights_only=True)) == ([], [])
    x, mask = tokens(3, 30), masked(3, 30, [30, 18, 2])
    assert torch.equal(other(x, mask).x, model(x, mask).x)
    assert torch.equal(copy.deepcopy(model)(x, mask).x, model(x, mask).x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    model = pool(k=8).to(dtype)
    out = model(tokens(3, 30).to(dtype))
    assert out.x.dtype == dtype
    out.x.sum().backward()
    assert model.scorer.weight.grad.dtype == dtype


@pytest.mark.parametrize("name", MODELS)
def test_on_another_device(name: str) -> None:
    """Shapes without data: no step waits for a number from the device."""
    model = MODELS[name]().to("meta")
    out = model(tokens(3, 30).to("meta"), masked(3, 30, [30, 18, 2]).to("meta"))
    assert out.x.device.type == "meta"
    assert out.x.shape == MODELS[name]()(tokens(3, 30), masked(3, 30, [30, 18, 2])).x.shape


def test_reprs() -> None:
    assert repr(TokenPool(8, ratio=0.25, keep=1)).splitlines()[1] == "  8, ratio=0.25, keep=1"
    assert "block={0: 8, 1: 8, 2: 8}" in repr(encoder(lengths={}, block=8))
    assert repr(TopK(4, Power(20), "position", True, False)) == (
        "TopK(k=4, boost=Power(b=20, alpha=1.0), order='position', hard=True, hard_eval=False)"
    )
