"""``knockout.report``, what layers remember for it, and the warning about rows without a gradient."""

from __future__ import annotations

import copy
import gc
import io
import json
import math
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import knockout
from knockout import Selection, functional, methods, no_gradient, report
from knockout.backends import force
from knockout.boost import Boost, Fixed, Power, Relative
from knockout.nn import PyramidEncoder, TokenPool, TopK
from knockout.reporting import _LAST
from tests.cases import INF, NAN, run_python

pytestmark = pytest.mark.filterwarnings("ignore:knockout gives no gradient")  # which tests of it turn on again

SHARP = Fixed(1e4, alpha=1.5)  # decides all pairs of scores that are not nearly equal
SOFT = Fixed(0.01)  # decides none


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def expected(selection: Selection, active: Tensor) -> dict[str, float]:
    """The same in plain Python, from the dense weights of a soft selection and the active candidates (*batch, n)."""
    weights = selection.weights().double().flatten(end_dim=-3) if active.dim() > 1 else selection.weights()[None]
    rows = zip(
        weights.tolist(),
        selection.indices.reshape(-1, selection.k).tolist(),
        active.reshape(-1, selection.n).sum(dim=-1).tolist(),
        strict=True,
    )
    learns, heard, candidates, perplexities, gaps = [], 0, 0, [], []
    for slots, leaders, count in rows:
        filled = [(slot, leader) for slot, leader in zip(slots, leaders, strict=True) if leader >= 0]
        if count <= len(filled) or any(math.isnan(weight) for slot in slots for weight in slot):
            continue
        blends = [{i for i, weight in enumerate(slot) if weight} for slot, _ in filled]
        blends = [blend for blend in blends if len(blend) > 1]
        learns.append(bool(blends))
        heard += len(set().union(*blends))
        candidates += count
        for slot, leader in filled:
            shares = [weight / sum(slot) for weight in slot]
            perplexities.append(math.exp(-sum(share * math.log(share) for share in shares if share)))
            gaps.append(1 - shares[leader])
    if not learns:
        return {}
    return {
        "rows_with_gradient": sum(learns) / len(learns),
        "candidates_with_gradient": heard / candidates,
        "perplexity": sum(perplexities) / len(perplexities),
        "soft_hard_gap": sum(gaps) / len(gaps),
    }


# --- of a selection ---


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("shape", [(20,), (1, 20), (7, 20), (2, 3, 20)])
@pytest.mark.parametrize("boost", [SOFT, Relative(1), Relative(8), Fixed(4, alpha=2), SHARP])
@pytest.mark.parametrize("k", [1, 3, 0.3, 20])
def test_the_numbers_of_a_tournament(backend: str, shape: tuple[int, ...], boost: Boost, k: int | float) -> None:
    scores, mask = randn(*shape), randn(*shape, seed=1) < 0.8
    scores[..., 0] = -INF
    with force(backend):
        selection = knockout.select(scores, k, boost, mask)
        hard = knockout.select(scores, k, boost, mask, hard=True)
    found = report(selection)
    assert found == pytest.approx(expected(selection, mask & (scores != -INF)), rel=1e-5, abs=1e-6)
    assert report(hard) == found
    assert all(type(value) is float for value in found.values())


@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_the_shares_are_those_of_the_gradient(scale: float) -> None:
    scores, values = (scale * randn(50, 12)).requires_grad_(), randn(50, 12, 64, seed=1)
    selection = knockout.select(scores, 2, Fixed(1, alpha=1.5))  # a boost without a scale, which all scores would set
    (gradient,) = torch.autograd.grad(selection.apply(values).sin().sum(), scores)
    found = report(selection)
    assert found["rows_with_gradient"] == pytest.approx(float((gradient != 0).any(dim=-1).float().mean()))
    assert found["candidates_with_gradient"] == pytest.approx(float((gradient != 0).float().mean()))


def test_rows_with_nothing_to_choose_are_left_out() -> None:
    scores = torch.tensor([[5.0, 0.0, 0.0, 0.0], [0.1, 0.2, 0.0, 0.3], [1.0, 2.0, 3.0, NAN], [1.0, 2.0, 3.0, 4.0]])
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()
    chosen = report(knockout.select(scores[1], 2, 1.0))
    assert chosen["rows_with_gradient"] == 1
    assert report(knockout.select(scores, 2, 1.0, mask)) == pytest.approx(chosen)
    assert report(knockout.select(scores[[0, 2, 3]], 2, 1.0, mask[[0, 2, 3]])) == {}
    assert report(knockout.select(torch.zeros(0, 4), 2)) == {}


def test_a_mask_with_more_rows_than_the_scores() -> None:
    scores, mask = randn(6), randn(5, 6) < 0.5
    found = report(knockout.select(scores, 1, 1.0, mask))
    assert found == pytest.approx(report(knockout.select(scores.expand(5, 6), 1, 1.0, mask)))


SLOTS: list[Callable[..., Selection]] = [
    methods.iterative,
    methods.softsort,
    methods.neuralsort,
    methods.sinkhorn,
    methods.perturbed,
    methods.gumbel,
]


@pytest.mark.parametrize("method", SLOTS)
def test_methods_that_weigh_all_candidates(method: Callable[..., Selection], monkeypatch: pytest.MonkeyPatch) -> None:
    scores = 2 * randn(3, 8)
    mask = torch.tensor([[1] * 8, [1] * 2 + [0] * 6, [1] * 7 + [0]]).bool()
    torch.manual_seed(0)  # some add noise
    selection = method(scores, 3, mask=mask)
    found = report(selection)
    assert found == pytest.approx(expected(selection, mask), rel=1e-5, abs=1e-6)
    monkeypatch.setattr(type(selection._plan), "CHUNK", 24)  # slot by slot
    assert report(selection) == pytest.approx(found)
    assert report(method(scores[0].double(), 3)).keys() == found.keys()


@pytest.mark.parametrize(
    "method", [methods.lapsum, methods.lml, methods.projection, methods.coordinate_descent, methods.threshold]
)
def test_the_gap_of_a_mask_is_what_it_has_outside_of_the_leaders(method: Callable[..., Selection]) -> None:
    selection = method(randn(4, 16), 3, temperature=0.5)
    on_leaders = selection.mass().gather(-1, selection.indices)
    assert report(selection) == pytest.approx({"perplexity": 1.0, "soft_hard_gap": 1 - float(on_leaders.mean())})


def test_methods_that_choose_hard() -> None:
    scores = randn(4, 16)
    assert report(methods.hard(scores, 3)) == {"perplexity": 1.0, "soft_hard_gap": 0.0}
    assert report(methods.straight_through(scores, 3)) == {"perplexity": 1.0, "soft_hard_gap": 0.0}
    assert report(methods.gated(scores, 3, scale=2.0)) == {"perplexity": 1.0}


def test_a_selection_out_of_vmap_has_no_shares() -> None:
    scores = randn(4, 16)
    mapped: Selection = torch.vmap(lambda each: knockout.select(each, 3, 1.0))(scores)
    whole = report(knockout.select(scores, 3, 1.0))
    assert report(mapped) == pytest.approx({name: whole[name] for name in ("perplexity", "soft_hard_gap")})


def test_a_distributed_selection_has_no_shares() -> None:
    code = """
import json, torch, torch.distributed as dist, knockout, knockout.distributed
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
scores = torch.arange(12.0).reshape(2, 6) ** 1.5
selections = [module.select(scores, 2, 1.0) for module in (knockout.distributed, knockout)]
print(json.dumps([knockout.report(each, before=each.indices) for each in selections]))
dist.destroy_process_group()
"""
    distributed, whole = json.loads(run_python(code).stdout)
    assert distributed == pytest.approx({name: whole[name] for name in ("perplexity", "leaders_changed")})


def test_it_is_fetched_at_once_and_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    selection = knockout.select(randn(4, 16).requires_grad_(), 3, 1.0)
    fetched: list[Tensor] = []
    tolist = Tensor.tolist

    def record(tensor: Tensor) -> Any:
        fetched.append(tensor)
        return tolist(tensor)

    for name in ("item", "__bool__", "__int__", "__float__", "__index__", "numpy", "cpu", "nonzero"):
        monkeypatch.setattr(Tensor, name, None)
    monkeypatch.setattr(Tensor, "tolist", record)
    found = report(selection, before=selection.indices)
    monkeypatch.undo()
    assert len(found) == 5
    assert len(fetched) == 1
    assert not fetched[0].requires_grad
    with torch.inference_mode():
        assert report(knockout.select(randn(4, 16), 3, 1.0)) == pytest.approx(report(selection))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    scores = randn(4, 16).to(dtype)
    assert report(knockout.select(scores, 3, 1.0)) == pytest.approx(
        report(knockout.select(scores.double(), 3, 1.0)), rel=1e-5
    )


def test_leaders_changed() -> None:
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0, 0.0]] * 2 + [[1.0, -INF, -INF, -INF, -INF]])
    first = knockout.select(scores, 2)
    assert first.indices.tolist() == [[0, 1], [0, 1], [0, -1]]
    assert report(first, before=first.indices)["leaders_changed"] == 0
    assert report(first, before=first.indices.flip(-1))["leaders_changed"] == 0  # sets, whatever the slots
    later = scores.clone()
    later[1, 4] = 9.0
    found = report(knockout.select(later, 2), before=first.indices)
    assert found["leaders_changed"] == 0.25  # the third row has nothing to choose
    assert report(knockout.select(later, 2)).keys() == found.keys() - {"leaders_changed"}
    assert report(knockout.select(-scores[:2], 2), before=first.indices[:2])["leaders_changed"] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of searchsorted, about tensors that are not contiguous
        swapped = first.indices.mT.contiguous().mT
        assert report(first, before=swapped)["leaders_changed"] == 0


def test_bad_arguments() -> None:
    selection = knockout.select(randn(4, 16), 3)
    with pytest.raises(TypeError, match=r"report takes a knockout.Selection.*pooled.selection.*got TopKResult"):
        report(knockout.topk(randn(4, 16, 2), randn(4, 16), 3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"before must be the indices of an earlier selection.*got Selection"):
        report(selection, before=selection)  # type: ignore[arg-type]
    for wrong in (selection.indices[:2], selection.indices[:, :2], selection.indices.int()):
        with pytest.raises(ValueError, match=r"before must be the indices.*int64 of shape \(4, 3\); got torch"):
            report(selection, before=wrong)
    with pytest.raises(ValueError, match="before must be on the device of the selection"):
        report(selection, before=selection.indices.to("meta"))
    with pytest.raises(ValueError, match=r"a model must contain a knockout.nn.TopK or TokenPool.*got a Linear"):
        report(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="before must be None for a model"):
        report(TopK(2), before=selection.indices)


# --- of a model ---


def pools() -> PyramidEncoder:
    layers = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(3)]
    made = PyramidEncoder(layers, lengths={0: 8, 1: 4}, boost=1.0)
    for each in made.pools.values():
        nn.init.normal_(each.scorer.weight)  # type: ignore[union-attr, arg-type]
    return made


def test_a_model_has_the_numbers_of_its_last_training_step() -> None:
    encoder = pools()
    model = nn.ModuleDict({"encoder": encoder})
    assert report(model) == {}
    encoder(randn(2, 32, 16))
    out = encoder(randn(2, 32, 16, seed=1))
    found = report(model)
    levels = [report(level.selection) for level in out.levels]
    expected = {f"encoder.pools.{i}.topk/{name}": value for i in (0, 1) for name, value in levels[i].items()}
    assert found == pytest.approx(expected)
    assert len(found) == 8
    model.eval()
    encoder(randn(2, 32, 16, seed=2))
    assert report(model) == found


def test_a_call_without_gradients_is_no_training_step() -> None:
    layer = TopK(2, boost=SOFT)
    with torch.no_grad():
        layer(randn(4, 16, 3), randn(4, 16))
        layer.select(randn(4, 16))
    assert report(layer) == {}


def test_a_layer_by_itself_and_layers_that_were_not_called() -> None:
    layer = TopK(2, 1.0)
    model = nn.Sequential(layer, TopK(2, 1.0))
    picked = layer.select(randn(3, 8))
    assert report(model) == {f"0/{name}": value for name, value in report(picked).items()}
    assert report(layer) == report(picked)
    layer.select(randn(3, 2))  # nothing to choose
    assert report(model) == {}


def test_a_model_is_fetched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pools()
    model(randn(2, 32, 16))
    fetched = []
    tolist = Tensor.tolist
    for name in ("item", "__bool__", "__int__", "__float__", "__index__", "numpy", "cpu", "nonzero"):
        monkeypatch.setattr(Tensor, name, None)
    monkeypatch.setattr(Tensor, "tolist", lambda tensor: fetched.append(0) or tolist(tensor))  # type: ignore[func-returns-value]
    report(model)
    monkeypatch.undo()
    assert len(fetched) == 1


def test_what_is_remembered_is_no_part_of_the_model() -> None:
    model = pools()
    names, attributes = list(model.state_dict()), [set(vars(layer)) for layer in model.modules()]
    x = randn(2, 32, 16)
    model(x).x.sum().backward()
    assert report(model)
    assert list(model.state_dict()) == names
    assert [set(vars(layer)) for layer in model.modules()] == attributes
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        assert report(other) == {}
        other(x)
        assert report(other).keys() == report(model).keys()


class Saved:
    """A tensor that autograd has saved for a backward pass, and that goes with its graph."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def test_no_graph_and_no_layer_is_kept_alive() -> None:
    gc.collect()
    before = len(_LAST)
    model = nn.Sequential(nn.Linear(16, 16), TokenPool(16, 4))
    saved: list[weakref.ref[Saved]] = []

    def pack(tensor: Tensor) -> Saved:
        saved.append(weakref.ref(each := Saved(tensor)))
        return each

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each.tensor):
        out = model(randn(2, 32, 16))
    assert out.x.requires_grad
    assert all(each() for each in saved)
    del out
    gc.collect()
    assert not any(each() for each in saved)
    assert report(model)
    assert len(_LAST) == before + 1
    del model
    gc.collect()
    assert len(_LAST) == before


@pytest.mark.parametrize("backend", ["aot_eager", "counted"])
def test_compiled_layers_remember_nothing_and_are_compiled_once(backend: str) -> None:
    torch.compiler.reset()
    counter = CompileCounter()
    model = nn.Sequential(nn.Linear(16, 16), TokenPool(16, 4, boost=1.0))
    compiled = torch.compile(model, backend=counter if backend == "counted" else backend, fullgraph=True)
    for seed in range(4):
        compiled(randn(2, 32, 16, seed=seed)).x.sum().backward()
        model(randn(2, 32, 16, seed=seed)) if seed == 2 else None  # also after it has remembered something
    assert counter.frame_count == (backend == "counted")
    assert len(report(model)) == 4
    fresh = nn.Sequential(nn.Linear(16, 16), TokenPool(16, 4, boost=1.0))
    again = torch.compile(fresh, backend=backend if backend != "counted" else CompileCounter(), fullgraph=True)
    again(randn(2, 32, 16))
    assert report(fresh) == {}
    with torch.compiler.set_stance("force_eager"):  # as docs/troubleshooting.md says
        again(randn(2, 32, 16))
    assert len(report(fresh)) == 4


@pytest.mark.parametrize("strict", [True, False])
def test_a_model_in_training_mode_can_be_exported(strict: bool) -> None:
    model, x = nn.Sequential(TokenPool(16, 4)), randn(2, 32, 16)
    exported = torch.export.export(model, (x,), strict=strict).module()
    torch.testing.assert_close(exported(x).x, model(x).x)


def test_transforms_and_tensors_without_numbers_are_not_remembered() -> None:
    layer, scores = TopK(2, Power(20)), randn(3, 8)  # a boost without a buffer
    torch.vmap(lambda each: layer.select(each).scores)(scores)
    torch.func.grad(lambda each: layer.select(each).scores.sum())(scores)
    layer.select(scores.to("meta"))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        layer.select(mode.from_tensor(scores))
    assert report(layer) == {}


# --- the warning ---

MESSAGE = "knockout gives no gradient"


@pytest.fixture(autouse=True)
def _unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(no_gradient, "_warned", False)
    monkeypatch.setattr(functional, "is_due", no_gradient.powers_of_two().__next__)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows had a choice, for each call that was looked at."""
    rows: list[int] = []
    count = no_gradient._count

    def record(*args: Any) -> list[int]:
        found = count(*args)
        rows.append(found[0])
        return found

    monkeypatch.setattr(no_gradient, "_count", record)
    return rows


@pytest.fixture
def silence() -> Iterator[None]:
    """No warning may be given."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=MESSAGE)
        yield


@contextmanager
def recorded() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings of the block, also those that the suite ignores."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def trained(*shape: int) -> Tensor:
    return randn(*shape).requires_grad_()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("hard", [False, True])
def test_there_is_one_warning_that_says_what_to_do(backend: str, hard: bool) -> None:
    scores = trained(4, 16)
    with force(backend), recorded() as caught:
        for _ in range(20):
            knockout.select(scores, 3, SHARP, hard=hard)
    (warning,) = caught
    assert warning.category is UserWarning
    text = str(warning.message)
    for words in (
        f"{MESSAGE} to 4 of 4 rows (100%)",
        "boost=Fixed(c=10000.0, alpha=1.5) is too sharp for scores that spread this far",
        "Leave boost out or pass a lower one",
        "a layer of knockout.nn, which calibrates itself",
        "docs/troubleshooting.md",
        f"warnings.filterwarnings('ignore', message='{MESSAGE}')",
    ):
        assert words in text
    assert warning.filename == __file__


@pytest.mark.parametrize("call", ["select", "topk", "chunks", "layer", "model"])
def test_the_warning_names_the_line_of_the_user(call: str) -> None:
    scores, layer = trained(4, 16), TopK(3, SHARP)
    model = nn.Sequential(nn.Sequential(TokenPool(16, 3, scorer=nn.Linear(16, 1), boost=SHARP)))
    calls: dict[str, Callable[[], object]] = {
        "select": lambda: knockout.select(scores, 3, SHARP),  # first: the others follow line by line
        "topk": lambda: knockout.topk(scores.unsqueeze(-1), scores, 3, SHARP),
        "chunks": lambda: knockout.select(scores.split(8, dim=-1), 3, SHARP),
        "layer": lambda: layer(scores.unsqueeze(-1), scores),
        "model": lambda: model(1e3 * randn(4, 16, 16)),
    }
    with recorded() as caught:
        calls[call]()
    first: Any = calls["select"]
    assert caught[0].filename == __file__
    assert caught[0].lineno == first.__code__.co_firstlineno + list(calls).index(call)


@pytest.mark.usefixtures("silence")
def test_the_way_to_silence_it() -> None:
    warnings.filterwarnings("ignore", message="knockout gives no gradient")
    knockout.select(trained(4, 16), 3, SHARP)


@pytest.mark.usefixtures("silence")
def test_it_looks_at_the_calls_1_2_4_8(looked: list[int]) -> None:
    for call in range(1, 41):
        before = len(looked)
        knockout.select(trained(4, 16), 3, SOFT)
        assert len(looked) - before == (call in (1, 2, 4, 8, 16, 32))
        knockout.select(randn(4, 16), 3, SOFT)  # not to be trained, and not counted
        with torch.no_grad():
            knockout.select(trained(4, 16), 3, SOFT)
    assert len(looked) == 6


def test_it_comes_when_the_scores_have_spread() -> None:
    scores = trained(4, 16)
    with recorded() as caught:
        for step in range(1, 40):
            knockout.select(scores * 10.0 ** (step - 10), 3, SHARP)
    assert len(caught) == 1


def rows(decided: int, undecided: int, without_choice: int = 0) -> tuple[Tensor, Tensor]:
    kinds = [[9.0, 0.0, 1.0]] * decided + [[0.0, 0.0, 0.0]] * undecided + [[9.0, 0.0, 0.0]] * without_choice
    mask = torch.ones(len(kinds), 3, dtype=torch.bool)
    mask[decided + undecided :, 1:] = False
    return torch.tensor(kinds, requires_grad=True), mask


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((2, 1), "2 of 3 rows (67%)"),
        ((2, 2), None),
        ((1, 2), None),
        ((1, 0), "1 of 1 rows (100%)"),
        ((2, 1, 5), "2 of 3 rows (67%)"),
        ((1, 1, 5), None),
        ((0, 0, 5), None),
    ],
)
def test_most_rows_that_have_a_choice(kinds: tuple[int, ...], expected: str | None) -> None:
    scores, mask = rows(*kinds)
    with recorded() as caught:
        knockout.select(scores, 1, Fixed(1.0, alpha=2), mask)
    assert len(caught) == (expected is not None)
    assert all(str(expected) in str(each.message) for each in caught)


@pytest.mark.usefixtures("silence")
def test_rows_that_are_invalid_or_have_inactive_candidates_do_not_count(looked: list[int]) -> None:
    scores = torch.tensor([[9.0, NAN, 0.0], [9.0, INF, 0.0], [9.0, -INF, -INF], [-INF] * 3], requires_grad=True)
    knockout.select(scores, 1, SHARP)
    knockout.select(trained(4, 3), 3, SHARP)
    assert looked == [0, 0]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.usefixtures("silence")
def test_a_blend_of_the_last_round_counts(backend: str, looked: list[int]) -> None:
    scores = torch.tensor([1.0, 0.9, 0.0, 0.0], requires_grad=True)  # only the winners of the first round are close
    with force(backend):
        selection = knockout.select(scores, 1, Fixed(2.0, alpha=2))
    assert selection.support().tolist() == [2]
    assert looked == [1]


def decided(scores: Tensor) -> Tensor:
    return knockout.select(scores, 3, SHARP).scores


@pytest.mark.parametrize(
    "use",
    [
        lambda scores: torch.vmap(decided)(scores),
        lambda scores: torch.func.grad(lambda each: decided(each).sum())(scores),
        lambda scores: decided(scores.to("meta")),
        lambda scores: decided(FakeTensorMode().from_tensor(scores)),
        lambda scores: make_fx(decided, tracing_mode="fake")(scores),
        lambda scores: make_fx(decided, tracing_mode="symbolic")(scores),
    ],
)
def test_it_does_not_look_at_other_devices_or_where_nothing_is_computed(
    use: Callable[[Tensor], object], looked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functional, "is_due", lambda: True)
    use(trained(4, 16))
    assert looked == []
    with recorded() as caught:
        decided(trained(4, 16))
    assert len(caught) == 1


def test_a_trace_with_real_tensors_still_works(looked: list[int]) -> None:
    traced = make_fx(lambda each: knockout.select(each, 3, SOFT).weights(), tracing_mode="real")(trained(4, 16))
    assert looked == [4]
    again = trained(4, 16).flip(0)
    assert torch.equal(traced(again), knockout.select(again, 3, SOFT).weights())


@pytest.mark.usefixtures("silence")
def test_it_is_not_in_a_compiled_graph(looked: list[int]) -> None:
    torch.compiler.reset()
    counter = CompileCounter()
    call = torch.compile(decided, backend=counter, fullgraph=True)
    for _ in range(5):
        call(trained(4, 16))
        knockout.select(trained(4, 16), 3, SOFT)  # counts, meanwhile
    assert counter.frame_count == 1
    assert len(looked) == 3


def test_a_new_process_warns_once() -> None:
    code = """
import torch, knockout
scores = (1e3 * torch.arange(32.0)).reshape(2, 16).requires_grad_()
for _ in range(9):
    knockout.select(scores, 3, boost=knockout.boost.Fixed(100))
"""
    assert run_python(code).stderr.count(MESSAGE) == 2  # the warning itself, which names its own message
