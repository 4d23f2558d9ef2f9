"""Token pooling."""

# mypy: disable-error-code="arg-type, operator, union-attr"

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import knockout
from knockout.boost import Adaptive
from knockout.nn import TokenPool, evaluate_hard
from tests.nn_cases import DIM, masked, pool, tokens


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


def test_the_built_in_scorer_starts_as_a_linear_layer_does() -> None:
    torch.manual_seed(0)
    made = TokenPool(DIM, 4)
    torch.manual_seed(0)
    ordinary = nn.Linear(DIM, 1, bias=False)
    assert torch.equal(made.scorer.weight, ordinary.weight)
    assert dict(made.scorer.named_parameters()).keys() == {"weight"}
    torch.testing.assert_close(made.scorer(tokens(2, 16)), ordinary(tokens(2, 16)).squeeze(-1))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_pool_learns_as_it_is_at_any_scale_of_its_tokens(scale: float) -> None:
    """One token of 48 has the answer; which, says its first component. Nothing is tuned to the scale."""
    torch.manual_seed(0)
    made, place = TokenPool(DIM, k=1), torch.arange(48)

    def batch() -> tuple[Tensor, Tensor]:
        x, where = torch.randn(32, 48, DIM), torch.randint(48, (32, 1))
        x[..., 0] = torch.where(place == where, 3.0, x[..., 0].clamp(max=1.5))
        return x, x.gather(1, where.unsqueeze(-1).expand(-1, 1, DIM))[..., 1:]

    optimizer = torch.optim.Adam(made.parameters(), lr=0.03)
    for _ in range(300):
        x, answer = batch()
        loss = (made(x * scale).x[..., 1:] / scale - answer).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, answer = batch()
    with evaluate_hard(made.eval()):
        found = made(x * scale).x[..., 1:] / scale
    assert (found - answer).norm(dim=-1).lt(1e-3).float().mean() > 0.9


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


@pytest.mark.parametrize("keep", [0, 2])
@pytest.mark.parametrize("n", [30, 5, 2])
def test_a_k_for_each_sequence(keep: int, n: int) -> None:
    x, k = tokens(4, n), torch.tensor([3, 8, 0, 2])
    made = pool(k=8, keep=keep, boost=1.0)
    out = made(x, k=k)
    assert out.mask.sum(-1).tolist() == [min(n, max(count, keep)) for count in k.tolist()]
    for row, count in enumerate(k.tolist()):
        if count <= keep:
            assert out.leaders[row, :keep].tolist() == list(range(keep))
            continue
        alone = TokenPool(DIM, count, scorer=made.scorer, keep=keep, boost=1.0)(x[row])
        torch.testing.assert_close(out.x[row, : len(alone.x)], alone.x)
        assert torch.equal(out.leaders[row, : len(alone.x)], alone.leaders)


def test_boost_of_a_pool() -> None:
    made = pool(k=4)
    made.boost = Adaptive(0.25, unit=3)
    assert float(made.topk.sharpness) == 0.25
    assert made.boost == made.topk.boost == Adaptive(0.25, unit=3)


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
    made = pool(k=4)
    out = made(x)
    assert out.x.shape == (2, 3, 4, DIM)
    assert torch.equal(out.x[1, 2], made(x[1, 2]).x)
    assert pool(k=4)(x, torch.ones(12, dtype=torch.bool)).x.shape == (2, 3, 4, DIM)
