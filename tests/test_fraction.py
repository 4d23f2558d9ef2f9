"""k as a fraction: a share of the candidates that take part, row by row, whatever padding is around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import pad

import knockout
from knockout.backends import force
from knockout.boost import Boost, Fixed, Pairs, Power, Relative
from knockout.functional import Order, TopKResult
from knockout.quota import DENOMINATOR, Quota
from tests import oracle
from tests.cases import BOOSTS, randn, same_bits, separated

INF, NAN = float("inf"), float("nan")
shares = st.floats(0.001, 0.999) | st.sampled_from([1e-12, 0.1, 0.25, 0.3, 0.5, 0.75, 1 - 2**-40])


@pytest.fixture(params=["cpu", "reference"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with force(request.param):
        yield request.param


def slots(share: float, count: int) -> int:
    """ceil(share * count), of the share cut off after 30 bits; at least one if there is anybody."""
    return max(math.ceil(Fraction(math.floor(Fraction(share) * 2**30), 2**30) * count), min(count, 1))


# --- counting -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "count", "expected"),
    [(0.1, 10, 1), (0.1, 11, 2), (0.3, 10, 3), (0.7, 10, 7), (0.5, 7, 4), (1 / 3, 9, 3), (1e-12, 5, 1), (0.9, 0, 0)],
)
def test_a_share_is_rounded_up(share: float, count: int, expected: int) -> None:
    assert slots(share, count) == expected
    assert knockout.select(torch.randn(max(count, 1)), share).k == max(expected, 1)
    mask = torch.arange(20) < count
    assert knockout.select(torch.randn(20), share, mask=mask).mask.sum() == expected


@given(shares, st.integers(1, 300))
@settings(max_examples=200, deadline=None)
def test_counts_and_rounds_are_enough_for_every_row(share: float, n: int) -> None:
    quota = Quota.of_fraction(share, n)
    alive = torch.arange(n) < torch.arange(n + 1).unsqueeze(-1)
    own = quota.slots(alive).flatten().tolist()
    assert own == [slots(share, count) for count in range(n + 1)]
    assert quota.k == own[-1]
    places = 2 ** quota.rounds(n)
    assert all(mine * places >= count for count, mine in enumerate(own))
    assert places == 1 or places < 2 * n  # and not far too many
    assert places == 1 or (places // 2) * quota.numerator < DENOMINATOR


# --- a row is what it is alone --------------------------------------------------------------------


def gradients(scores: Tensor, values: Tensor, k: float, ups: list[Tensor], **options: Any) -> list[Tensor]:
    """Results and gradients of one selection; ``ups`` are the gradients of values, scores and mass."""
    scores, values = scores.detach().requires_grad_(), values.detach().requires_grad_()
    selection = knockout.select(scores, k, **options)
    outputs = [selection.apply(values), selection.scores, selection.mass()]
    back = torch.autograd.grad(outputs, (scores, values), [up.to(x.dtype) for up, x in zip(ups, outputs, strict=True)])
    shown = [*outputs, selection.weights(), selection.perplexity(), *back]
    return [x.detach() for x in (*shown, selection.indices, selection.mask, selection.support())]


@pytest.mark.parametrize("name", ["cpu", "reference"])
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_each_row_is_that_without_its_padding(name: str, data: st.DataObject) -> None:
    n, share = data.draw(st.integers(1, 40), "n"), data.draw(shares, "share")
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
    k = slots(share, n)
    ups = [torch.randn(5, *shape, generator=generator, dtype=dtype) for shape in ((k, 2), (k,), (n,))]
    with force(name):
        if data.draw(st.booleans(), "by score"):
            together = gradients(scores.masked_fill(~mask, -INF), values, share, ups, **options)
        else:
            together = gradients(scores.masked_fill(~mask, NAN), values, share, ups, mask=mask, **options)
        for row in range(5):
            out = [x[row] for x in together]
            places = mask[row].nonzero().flatten()
            own = slots(share, len(places))
            assert out[8].tolist() == [True] * own + [False] * (k - own)
            for blank in (out[0], out[1], out[3], out[4], out[9]):
                assert not blank[own:].any()
            assert (out[7][own:] == -1).all()
            assert not out[5][~mask[row]].any()
            assert not out[6][~mask[row]].any()
            if own == 0:
                continue
            mine = [ups[0][row, :own], ups[1][row, :own], ups[2][row, places]]
            alone = gradients(scores[row, places], values[row, places], own, mine, **options)
            for one, other in zip(
                (*(x[:own] for x in out[:2]), out[2][places], out[3][:own, places]), alone, strict=False
            ):
                same_bits(one, other)
            same_bits(out[4][:own], alone[4])
            same_bits(out[5][places], alone[5])
            same_bits(out[6][places], alone[6])
            assert torch.equal(out[7][:own], places[alone[7]])
            assert torch.equal(out[9][:own], alone[9])


@pytest.mark.usefixtures("backend")
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


def test_the_scale_of_a_round_does_not_depend_on_the_room_around_its_pairs() -> None:
    # So many pairs, and one so much larger than the others, that the last bits of a sum are at stake.
    better, worse = (randn(2**19, seed=seed).abs().sort(descending=True).values for seed in (1, 2))
    better[0] = better.sum()
    results = []
    for room in (0, 7 * 2**19):
        top, low = (pad(x, (room, 0)).requires_grad_() for x in (better, -worse))
        real = pad(torch.ones_like(better, dtype=torch.bool), (room, 0))
        boost = Relative(1e-6, unit=1e-3)
        share, scale = boost.share(Pairs(top, low, top - low, real), boost.start(top))
        (gradient,) = torch.autograd.grad(share.sum(), top)
        results.append((scale, gradient[room:]))
    for one, other in zip(*results, strict=True):
        same_bits(one, other)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("boost", BOOSTS, ids=str)
@pytest.mark.parametrize("share", [0.07, 0.25, 0.6])
def test_each_row_is_that_of_the_oracle(share: float, boost: Boost) -> None:
    scores, values = separated(4, 23), randn(4, 23, 3)
    mask = torch.arange(23) < torch.tensor([[23], [13], [2], [1]])
    out = knockout.topk(values, scores, share, boost, mask=mask)
    for row in range(4):
        own = slots(share, int(mask[row].sum()))
        expected = oracle.halving(values[row].tolist(), scores[row].tolist(), own, boost, mask[row].tolist())
        assert out.indices[row, :own].tolist() == expected.indices
        torch.testing.assert_close(out.values[row, :own], torch.tensor(expected.values, dtype=torch.float64))
        torch.testing.assert_close(out.scores[row, :own], torch.tensor(expected.scores, dtype=torch.float64))


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("hard", [False, True])
def test_a_spoiled_row_is_spoiled_in_all_its_slots(bad: float, hard: bool) -> None:
    scores, values = separated(3, 20), randn(3, 20, 2)
    scores[1, 4] = bad
    mask = torch.arange(20) < torch.tensor([[20], [10], [5]])
    picked = knockout.select(scores, 0.25, mask=mask, hard=hard)
    for out in (picked.apply(values), picked.scores, picked.weights(), picked.mass(), picked.perplexity()):
        assert out[1].isnan().all()
        assert out[[0, 2]].isfinite().all()
    assert picked.mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2, [True] * 2 + [False] * 3]
    assert picked.indices[1].tolist() == [0, 1, 2, -1, -1]


# --- derivatives and transforms -------------------------------------------------------------------

MASK = torch.arange(12) < torch.tensor([[12], [7], [1], [0]])


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    "boost", [Relative(0.7), Relative(1, unit=0.01, alpha=1), Fixed(1, alpha=2), Power(2)], ids=str
)
@pytest.mark.parametrize("order", ["score", "position"])
def test_derivatives(boost: Boost, order: Order) -> None:
    def operator(values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        return knockout.topk(values, scores, 0.3, boost, mask=MASK, order=order)[:2]

    arguments = randn(4, 12, 2).requires_grad_(), separated(4, 12).requires_grad_()
    assert gradcheck(operator, arguments)
    assert gradgradcheck(operator, arguments)


def pool(values: Tensor, scores: Tensor, mask: Tensor) -> TopKResult:
    return knockout.topk(values, scores, 0.3, 1.0, mask=mask)


def loss(values: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    out = pool(values, scores, mask)
    return out.values.square().sum() + out.scores.sum()


@pytest.mark.usefixtures("backend")
def test_compile_has_one_graph_for_every_n() -> None:
    torch._dynamo.reset()
    frames = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(pool, backend=frames, fullgraph=True, dynamic=True)
    graphs = []
    for n in (15, 11, 20, 21, 100):
        values, scores = randn(3, n, 4).requires_grad_(), separated(3, n).requires_grad_()
        mask = torch.arange(n) < torch.tensor([[n], [5], [0]])
        out, expected = compiled(values, scores, mask), pool(values, scores, mask)
        graphs.append(frames.frame_count)
        for one, other in zip(out, expected, strict=True):
            same_bits(one, other)
        for one, other in zip(
            torch.autograd.grad(out.values.square().sum() + out.scores.sum(), (values, scores)),
            torch.autograd.grad(loss(values, scores, mask), (values, scores)),
            strict=True,
        ):
            torch.testing.assert_close(one, other)
    assert len(set(graphs)) == 1


class Pool(torch.nn.Module):
    def forward(self, values: Tensor, scores: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return pool(values, scores, mask)


@pytest.mark.usefixtures("backend")
def test_export() -> None:
    arguments = randn(4, 12, 3), separated(4, 12), MASK
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Pool(), arguments, dynamic_shapes=({0: batch},) * 3).module()
    for rows in (2, 4):
        few = tuple(x[:rows] for x in arguments)
        for one, other in zip(program(*few), pool(*few), strict=True):
            same_bits(one, other)


def test_export_with_dynamic_n() -> None:
    n = torch.export.Dim("n", min=11, max=100)
    program = torch.export.export(
        Pool(), (randn(4, 12, 3), separated(4, 12), MASK), dynamic_shapes=({1: n},) * 3
    ).module()
    for size in (11, 100):
        arguments = randn(4, size, 3), separated(4, size), separated(4, size) > 0
        for one, other in zip(program(*arguments), pool(*arguments), strict=True):
            same_bits(one, other)


@pytest.mark.usefixtures("backend")
def test_vmap_equals_a_loop() -> None:
    arguments = randn(4, 12, 3), separated(4, 12), MASK
    functions: list[Callable[..., tuple[Tensor, ...]]] = [pool, torch.func.grad(loss, argnums=(0, 1))]
    for function in functions:
        looped = [function(*(x[i] for x in arguments)) for i in range(4)]
        for mapped, rows in zip(torch.vmap(function)(*arguments), zip(*looped, strict=True), strict=True):
            same_bits(mapped, torch.stack(rows))


def test_no_step_waits_for_the_device() -> None:
    values, scores = (torch.empty(*shape, device="meta", requires_grad=True) for shape in ((3, 50, 4), (3, 50)))
    mask = torch.empty(3, 50, device="meta", dtype=torch.bool)
    for picked in (
        knockout.select(scores, 0.3, mask=mask),
        knockout.select(scores, 0.3, mask=mask, order="position", hard=True),
        knockout.methods.hard(scores, 0.3, mask),
        knockout.methods.iterative(scores, 0.3, mask=mask),
    ):
        assert picked.apply(values).shape == (3, 15, 4)
        assert picked.indices.is_meta
        torch.autograd.grad(picked.apply(values).sum(), values)


# --- what goes with it ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", [knockout.methods.hard, knockout.methods.iterative])
def test_the_other_methods(method: Callable[..., knockout.Selection]) -> None:
    scores, values = separated(4, 12), randn(4, 12, 3)
    picked = method(scores, 0.3, mask=MASK)
    for row, count in enumerate(MASK.sum(-1).tolist()):
        own = slots(0.3, count)
        assert picked.mask[row].tolist() == [True] * own + [False] * (4 - own)
        assert (picked.indices[row, own:] == -1).all()
        assert not picked.apply(values)[row, own:].any()
        assert not picked.scores[row, own:].any()
        if own:
            alone = method(scores[row, :count], own)
            assert torch.equal(picked.indices[row, :own], alone.indices)
            torch.testing.assert_close(picked.weights()[row, :own, :count], alone.weights())
            torch.testing.assert_close(picked.scores[row, :own], alone.scores)


def test_the_mass_on_the_true_top_is_that_of_each_row() -> None:
    scores = separated(4, 12)
    picked = knockout.select(scores, 0.3, 1.0, mask=MASK)
    shares = knockout.metrics.topk_mass(picked, scores, MASK)
    for row in range(3):
        places = MASK[row].nonzero().flatten()
        alone = knockout.select(scores[row, places], slots(0.3, len(places)), 1.0)
        torch.testing.assert_close(shares[row], knockout.metrics.topk_mass(alone, scores[row, places]))
    assert shares[1] < 1


def test_a_bracket_is_that_of_its_row() -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    scores = separated(4, 12)

    def shown(picked: knockout.Selection, row: int, names: Any = None) -> tuple[int, list[str]]:
        axes = knockout.plot.bracket(picked, row, names)
        found = len(axes.lines), [text.get_text() for text in axes.texts]
        plt.close("all")
        return found

    picked = knockout.select(scores, 0.3, 1.0, mask=MASK, order="position")
    for row, count in enumerate(MASK.sum(-1).tolist()):
        if count:
            alone = knockout.select(scores[row, :count], slots(0.3, count), 1.0, order="position")
            assert shown(picked, row) == shown(alone, 0)
        else:
            assert shown(picked, row) == (0, [])


def test_any_real_number_will_do() -> None:
    np = pytest.importorskip("numpy")
    for share in (np.float32(0.25), np.float64(0.25), Fraction(1, 4)):
        assert knockout.select(separated(12), share).k == 3  # type: ignore[arg-type]
