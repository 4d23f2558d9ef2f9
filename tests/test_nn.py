"""The layers: what a user of a first-rate PyTorch library would expect of them."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import knockout
from knockout.boost import Fixed, Power, Relative
from knockout.nn import (
    BoostSchedule,
    ConstantBoost,
    CosineBoost,
    LinearBoost,
    PyramidEncoder,
    Sharpen,
    TokenPool,
    TopK,
    evaluate_hard,
)
from tests.cases import randn

DIM = 16


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return randn(*shape, DIM, seed=seed, dtype=torch.float32)


def pool(*arguments: Any, seed: int = 1, **options: Any) -> TokenPool:
    """A pool that has learned something."""
    made = TokenPool(DIM, *arguments, **options)
    with torch.no_grad():
        made.scorer.weight.copy_(randn(1, DIM, seed=seed))
    return made


def encoder(n_layers: int = 3, seed: int = 0, **options: Any) -> PyramidEncoder:
    torch.manual_seed(seed)
    layers = [nn.TransformerEncoderLayer(DIM, 2, 32, 0.0, batch_first=True) for _ in range(n_layers)]
    made = PyramidEncoder(layers, **options)
    for each in made.pools.values():
        nn.init.normal_(each.scorer.weight)
    return made


def masked(batch: int, n: int, lengths: list[int]) -> Tensor:
    return torch.arange(n) < torch.tensor(lengths).unsqueeze(-1).expand(batch, 1)


# --- TopK ---


@pytest.mark.parametrize("boost", [2.0, Relative(3, unit=0.1), Fixed(2), Power(20)])
@pytest.mark.parametrize("hard", [False, True])
def test_topk_is_the_function(boost: Any, hard: bool) -> None:
    values, scores = tokens(3, 20), randn(3, 20, dtype=torch.float32)
    layer = TopK(6, boost, "position", hard)
    expected = knockout.topk(values, scores, 6, boost, None, "position", hard)
    for one, other in zip(layer(values, scores), expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("hard", "hard_eval", "in_training", "in_evaluation"),
    [(False, None, False, False), (False, True, False, True), (True, None, True, True), (True, False, True, False)],
)
def test_soft_or_hard_in_evaluation(hard: bool, hard_eval: bool | None, in_training: bool, in_evaluation: bool) -> None:
    values, scores = tokens(20), randn(20, dtype=torch.float32)
    layer = TopK(6, 0.5, hard=hard, hard_eval=hard_eval)
    soft, sharp = (knockout.topk(values, scores, 6, 0.5, hard=each).values for each in (False, True))
    assert not torch.equal(soft, sharp)
    assert torch.equal(layer.train()(values, scores).values, sharp if in_training else soft)
    assert torch.equal(layer.eval()(values, scores).values, sharp if in_evaluation else soft)


def test_evaluate_hard_measures_the_gap_and_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Identity(), pool(k=4, boost=0.5)).eval()
    x = tokens(2, 16)
    soft = model(x).x
    with evaluate_hard(model):
        hard = model(x)
        assert torch.equal(hard.x, x.gather(1, hard.leaders.unsqueeze(-1).expand(-1, -1, DIM)))
    assert torch.equal(model(x).x, soft)
    assert not torch.equal(hard.x, soft)


def test_k_is_the_most() -> None:
    out = TopK(8)(tokens(5), randn(5, dtype=torch.float32))
    assert out.values.shape == (5, DIM)


def test_boost_can_be_set_and_is_saved() -> None:
    layer, other = TopK(4, 2.0), TopK(4, 3.0)
    layer.boost = 0.25
    assert float(layer.sharpness) == 0.25
    assert repr(layer) == "TopK(k=4, boost=Relative(c=0.25, unit=1.0, alpha=1.5))"
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    scores = randn(16, dtype=torch.float32)
    assert torch.equal(other.select(scores).weights(), knockout.select(scores, 4, 0.25).weights())
    with pytest.raises(TypeError, match="boost must remain a Relative; got Fixed"):
        layer.boost = Fixed(3)


# --- TokenPool ---


def test_pool_selects_by_its_scorer() -> None:
    x = tokens(2, 30)
    made = pool(k=8, boost=1.0)
    out = made(x)
    expected = knockout.topk(x, made.scorer(x), 8, 1.0, order="position")
    assert torch.equal(out.x, expected.values)
    assert torch.equal(out.scores, expected.scores)
    assert torch.equal(out.leaders, expected.indices)
    where = out.selection.weights() @ torch.arange(30.0)
    torch.testing.assert_close(out.positions, where)
    assert bool((out.leaders.diff() > 0).all())


def test_positions_of_a_pool_go_into_the_next() -> None:
    x = tokens(30)
    first = pool(k=16)(x)
    second = pool(k=4, seed=2)(first.x, first.mask, first.positions)
    torch.testing.assert_close(second.positions, second.selection.weights() @ first.positions)


def test_positions_are_told_apart_in_half_precision() -> None:
    x = tokens(4000).bfloat16()
    out = pool(k=2000).bfloat16().eval()
    with evaluate_hard(out):
        pooled = out(x)
    assert torch.equal(pooled.positions, pooled.leaders.float())


@pytest.mark.parametrize("scorer", [nn.Linear(DIM, 1), nn.Sequential(nn.Linear(DIM, 4), nn.Tanh(), nn.Linear(4, 1))])
def test_any_scorer(scorer: nn.Module) -> None:
    made = TokenPool(DIM, 4, scorer=scorer, boost=0.5)
    made(tokens(2, 16)).x.square().sum().backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in scorer.parameters())


def test_the_built_in_scorer_starts_undecided_and_learns_at_once() -> None:
    made = TokenPool(DIM, 4)
    assert not made.scorer.weight.any()
    made(tokens(2, 16)).x.square().sum().backward()
    assert made.scorer.weight.grad.abs().sum() > 0


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_padding_changes_nothing(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 24))
    keep = data.draw(st.integers(0, 1))
    size = data.draw(
        st.one_of(st.integers(keep + 1, 12).map(lambda k: {"k": k}), st.floats(0.1, 0.9).map(lambda r: {"ratio": r}))
    )
    order = data.draw(st.sampled_from(["position", "score"]))
    made = pool(**size, keep=keep, order=order, boost=data.draw(st.sampled_from([0.5, 4.0])))
    alone = tokens(1, n).requires_grad_()
    more = data.draw(st.integers(1, 10))
    filler = torch.full((1, more, DIM), data.draw(st.sampled_from([0.0, 1e30, float("nan"), float("inf")])))
    padded = torch.cat([torch.cat([alone, filler], dim=1), tokens(1, n + more, seed=5)])
    mask = masked(2, n + more, [n, n + more])
    one, both = made(alone), made(padded, mask)
    length = one.x.shape[1]
    assert bool(one.mask.all())
    assert both.mask[0, :length].all()
    assert not both.mask[0, length:].any()
    for name in ("x", "positions", "scores"):  # the last bit of a matrix product depends on its shape
        torch.testing.assert_close(getattr(both, name)[:1, :length], getattr(one, name))
    assert torch.equal(both.leaders[:1, :length], one.leaders)
    assert not both.x[0, length:].any()
    assert bool((both.leaders[0, length:] == -1).all())
    weight = made.scorer.weight
    gradients = [
        torch.autograd.grad(out.x[:1, :length].sin().sum(), (alone, weight), allow_unused=True) for out in (one, both)
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(a.abs().max()))  # scores differ in the last bit


def test_short_sequences_pass_unchanged() -> None:
    x = tokens(2, 10)
    mask = masked(2, 10, [10, 3])
    out = pool(k=16)(x, mask)
    assert torch.equal(out.x[0], x[0])
    assert torch.equal(out.x[1, :3], x[1, :3])
    assert not out.x[1, 3:].any()


def test_kept_tokens_come_first_and_untouched() -> None:
    x = tokens(2, 20)
    out = pool(k=6, keep=2)(x, masked(2, 20, [20, 9]))
    assert out.x.shape == (2, 6, DIM)
    assert torch.equal(out.x[:, :2], x[:, :2])
    assert torch.equal(out.leaders[:, :2], torch.tensor([[0, 1]] * 2))
    rest = pool(k=4)(x[:, 2:], masked(2, 18, [18, 7]), torch.arange(2, 20))
    assert torch.equal(out.x[:, 2:], rest.x)
    assert torch.equal(out.positions[:, 2:], rest.positions)
    assert torch.equal(out.leaders[:, 2:], rest.leaders + 2)


@pytest.mark.parametrize("n", [1, 2])
def test_with_nobody_to_compete_the_kept_ones_pass(n: int) -> None:
    x = tokens(2, n)
    for mask in (None, masked(2, n, [n, 1])):
        out = pool(k=6, keep=2)(x, mask)
        real = torch.ones(2, n).bool() if mask is None else mask
        assert torch.equal(out.x, torch.where(real.unsqueeze(-1), x, 0.0))
        assert torch.equal(out.mask, real)
        assert torch.equal(out.leaders, torch.where(real, torch.arange(n), -1))
        assert out.scores.shape == out.positions.shape == (2, n)


def test_boost_of_a_pool() -> None:
    made = pool(k=4)
    made.boost = 0.25
    assert float(made.topk.sharpness) == 0.25
    assert made.boost == made.topk.boost


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_of_half_models_are_in_full_precision(dtype: torch.dtype) -> None:
    made = pool(k=8).to(dtype)
    with torch.no_grad():
        made.scorer.weight.fill_(1.0)
    out = made(torch.full((64, DIM), 500.0, dtype=dtype) + torch.arange(64)[:, None])
    assert out.scores.dtype == torch.float32
    assert out.x.isfinite().all()


def test_positions_of_wide_models_are_wide() -> None:
    made = pool(k=4).double()
    assert made(tokens(12).double()).positions.dtype == torch.float64


def test_any_batch_dimensions() -> None:
    x = tokens(2, 3, 12)
    out = pool(k=4)(x)
    assert out.x.shape == (2, 3, 4, DIM)
    assert torch.equal(out.x[1, 2], pool(k=4)(x[1, 2]).x)
    assert pool(k=4)(x, torch.ones(12, dtype=torch.bool)).x.shape == (2, 3, 4, DIM)


# --- schedules ---


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda model: ConstantBoost(model, 3.0), [3, 3, 3, 3, 3, 3]),
        (lambda model: Sharpen(model, 4), [0.5, 0.5, 0.5, 2, 8, 8]),
        (lambda model: Sharpen(model, 4, 1, 4, hold=0.0), [1, 2**0.5, 2, 2**1.5, 4, 4]),
        (lambda model: Sharpen(model, 4, hold=1.0), [0.5] * 6),
        (lambda model: LinearBoost(model, 4, 1, 5), [1, 2, 3, 4, 5, 5]),
        (lambda model: CosineBoost(model, 4, 1, 5), [1, 3 - 2**0.5, 3, 3 + 2**0.5, 5, 5]),
        (lambda model: LinearBoost(model, 4, 8, 2), [8, 6.5, 5, 3.5, 2, 2]),
    ],
)
def test_schedules(make: Callable[[nn.Module], BoostSchedule], expected: list[float]) -> None:
    model = nn.ModuleList([TokenPool(DIM, 4), TopK(3, Fixed(1))])
    schedule = make(model)
    seen = []
    for _ in expected:
        assert float(model[0].topk.sharpness) == float(model[1].sharpness) == pytest.approx(schedule.get_last_boost())
        seen.append(schedule.get_last_boost())
        schedule.step()
    assert seen == pytest.approx(expected)


def test_schedules_go_on_where_they_were() -> None:
    first = Sharpen(TopK(4), 10)
    for _ in range(7):
        first.step()
    model = TopK(4)
    again = Sharpen(model, 10)
    again.load_state_dict(copy.deepcopy(first.state_dict()))
    assert again.get_last_boost() == first.get_last_boost() == pytest.approx(float(model.sharpness))
    assert repr(again) == "Sharpen(step 7 of 10, boost 1.52)"
    other = Sharpen(TopK(4), 3, start=1.0, end=100.0, hold=0.0)
    other.load_state_dict(first.state_dict())
    assert other.get_last_boost() == first.get_last_boost()
    for state in ({"epoch": 3}, LinearBoost(TopK(4), 10).state_dict(), {**first.state_dict(), "steps": 0}):
        with pytest.raises(ValueError, match=r"state must come from|steps.* must be at least 1"):
            again.load_state_dict(state)


def test_what_a_schedule_needs() -> None:
    with pytest.raises(ValueError, match=r"model must contain a knockout\.nn\.TopK"):
        Sharpen(nn.Linear(2, 2), 10)
    with pytest.raises(TypeError, match=r"Relative or Fixed; got Power\(b=20"):
        Sharpen(TopK(4, Power(20)), 10)
    with pytest.raises(ValueError, match="steps must be at least 1; got 0"):
        Sharpen(TopK(4), 0)
    for hold in (2.0, "x"):
        with pytest.raises(ValueError, match="hold must be a number from 0 to 1"):
            Sharpen(TopK(4), 10, hold=hold)
    with pytest.raises(TypeError, match=r"model must be an nn\.Module; got list"):
        Sharpen([TopK(4)], 10)
    with pytest.raises(ValueError, match="start must be positive"):
        LinearBoost(TopK(4), 10, start=0.0)


# --- PyramidEncoder ---


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


# --- everything around it ---

MODELS: dict[str, Callable[[], nn.Module]] = {
    "pool": lambda: pool(k=8, boost=1.0),
    "pool by ratio": lambda: pool(ratio=0.3, boost=1.0),
    "pool with kept": lambda: pool(k=8, keep=1, hard=True),
    "pyramid": lambda: encoder(lengths={0: 12, 1: 5}),
    "pyramid by ratio, blocks": lambda: encoder(ratios={0: 0.4}, block=8),
}


def loss_of(model: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    out = model(x, mask)
    loss: Tensor = out.x.float().square().sum() + out.positions.sum()
    return loss


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
