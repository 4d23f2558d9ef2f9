"""Exported layers: torch.export, ONNX, AOTInductor; plain tensors as results; and what cannot be exported says so."""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import knockout
from knockout.nn import PyramidEncoder, TokenPool, TopK, evaluate_hard
from knockout.nn.pyramid import make_pools
from tests.cases import randn, random_mask, run_python, same_bits

DIM = 16
BATCH, N = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("n", min=9, max=1000)
# Those of the exporter, about names of axes and its own deprecated calls.
QUIET = [
    pytest.mark.filterwarnings("ignore:# The axis name"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Plain(nn.Module):
    """The least that is an encoder layer."""

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:  # noqa: ARG002
        return x.sin()


class Encode(nn.Module):
    """A layer before and after a pool, as a model would have them."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(DIM, DIM), nn.Linear(DIM, 4)
        self.pool = TokenPool(DIM, k=6, keep=1, hard_eval=True, output=("x", "mask", "positions", "leaders"))

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        pooled, *rest = self.pool(self.before(x), mask)
        return self.after(pooled), *rest


def pyramid() -> PyramidEncoder:
    made = [nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=True, dropout=0.0)]
    return PyramidEncoder(made, lengths={0: 8}, hard_eval=True, order="score", output=("x", "mask", "leaders"))


def topk() -> TopK:
    return TopK(7, hard_eval=True, output=("values", "scores", "indices", "mask"))


def inputs(batch: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    return randn(batch, n, DIM, seed=seed, dtype=torch.float32), random_mask(batch, n, kept=0.7, seed=seed)


def scored(batch: int, n: int, seed: int = 0) -> tuple[Tensor, ...]:
    x, mask = inputs(batch, n, seed)
    return x, x[..., 0].contiguous(), mask


def unpooled() -> PyramidEncoder:
    layers = [nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=True, dropout=0.0)]
    return PyramidEncoder(layers, lengths={0: 8}, keep=1, hard_eval=True, unpool=True, output=("x", "leaders"))


# What makes a layer, and what draws inputs for it.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., tuple[Tensor, ...]]]] = {
    "pool": (Encode, inputs),
    "pyramid": (pyramid, inputs),
    "unpooled": (unpooled, inputs),
    "topk": (topk, scored),
}


def made(name: str) -> tuple[nn.Module, Callable[..., tuple[Tensor, ...]]]:
    torch.manual_seed(0)
    make, draw = MODELS[name]
    return make().eval(), draw


def varying(arguments: tuple[Tensor, ...]) -> tuple[Any, ...]:
    return ({0: BATCH, 1: N},) * len(arguments)


# --- torch.export ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def programs() -> dict[str, Any]:
    """A program for each model; one that is exported serves torch.export and ONNX."""
    found = {}
    for name in MODELS:
        model, draw = made(name)
        found[name] = torch.export.export(model, draw(3, 40), dynamic_shapes=varying(draw(3, 40)))
    return found


@pytest.fixture(scope="module")
def saved(programs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, program in programs.items():
        operators = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
        assert "aten.topk.default" in operators
        assert not any("knockout" in each for each in operators)
        torch.export.save(program, folder / f"{name}.pt2")
        model, draw = made(name)
        arguments = draw(5, 70, seed=1)
        torch.save((arguments, model(*arguments)), folder / f"{name}.pt")
    return folder


def test_a_saved_program_runs_where_knockout_is_not_installed(saved: Path) -> None:
    code = f"""
import sys
sys.modules["knockout"] = None  # importing it fails
import torch
for name in {list(MODELS)}:
    arguments, expected = torch.load("{saved}/" + name + ".pt")
    found = torch.export.load("{saved}/" + name + ".pt2").module()(*arguments)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    print(name, end=" ")
"""
    assert run_python(code).stdout.split() == list(MODELS)


def test_a_saved_program_can_return_all_results() -> None:
    pool, file = TokenPool(DIM, k=6, hard_eval=True).eval(), io.BytesIO()
    x, mask = inputs(3, 40)
    program = torch.export.export(pool, (x, mask), dynamic_shapes=varying((x, mask)))
    torch.export.save(program, file)
    file.seek(0)
    x, mask = inputs(5, 70, seed=1)
    found, expected = torch.export.load(file).module()(x, mask), pool(x, mask)
    assert type(found) is type(expected)
    assert repr(found.selection) == repr(expected.selection)  # of 70 candidates
    same_bits(found.x, expected.x)
    same_bits(found.selection.mass(), expected.selection.mass())
    same_bits(found.selection.apply(x), expected.selection.apply(x))


@pytest.mark.parametrize("name", ["TopK", "PyramidEncoder", "soft"])
def test_all_result_types_can_be_saved(name: str) -> None:
    x, file = inputs(2, 12)[0], io.BytesIO()
    made: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
        "TopK": (TopK(4, hard_eval=True), (x, x[..., 0])),
        "PyramidEncoder": (PyramidEncoder([Plain()], lengths={0: 4}, dim=DIM, hard_eval=True), (x,)),
        "soft": (TokenPool(DIM, k=4), (x,)),
    }
    model, arguments = made[name]
    torch.export.save(torch.export.export(model.eval(), arguments), file)
    file.seek(0)
    found, expected = torch.export.load(file).module()(*arguments), model(*arguments)
    assert type(found) is type(expected)
    same_bits(found[0], expected[0])


# --- ONNX -----------------------------------------------------------------------------------------


def export(model: Any, arguments: tuple[Tensor, ...] = (), shapes: Any = None) -> Any:
    program = torch.onnx.export(model, arguments, dynamo=True, dynamic_shapes=shapes, opset_version=20, verbose=False)
    assert program is not None
    return program


def session(program: Any, folder: Path) -> Callable[..., list[Tensor]]:
    """The program in onnxruntime, as a function of tensors."""
    from onnxruntime import InferenceSession  # type: ignore[import-untyped]

    program.save(folder / "program.onnx")
    ready = InferenceSession(folder / "program.onnx", providers=["CPUExecutionProvider"])
    names = [each.name for each in ready.get_inputs()]

    def run(*arguments: Tensor) -> list[Tensor]:
        feed = {name: each.numpy() for name, each in zip(names, arguments, strict=True)}
        return [torch.from_numpy(each) for each in ready.run(None, feed)]

    return run


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[*QUIET, *[pytest.mark.slow] * (name == "pyramid")]) for name in MODELS]
)
def test_onnx(name: str, programs: dict[str, Any], tmp_path: Path) -> None:
    model, draw = made(name)
    program = export(programs[name])
    nodes = list(program.model.graph)
    assert {"TopK", "Gather"} <= {node.op_type for node in nodes}
    assert {node.domain for node in nodes} == {""}  # operators of ONNX alone
    run = session(program, tmp_path)
    for seed, (batch, n) in enumerate(((1, 9), (5, 70), (2, 333))):
        arguments = draw(batch, n, seed)
        arguments[-1][0, n // 2 :] = False
        arguments[-1][-1] = seed != 1  # all padding
        with torch.no_grad():
            expected = model(*arguments)
        for one, other in zip(run(*arguments), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=5e-6)
    if name == "topk":
        x, scores, mask = draw(2, 64)
        tied = (4 * scores).round()
        assert torch.equal(run(x, tied, mask)[2], model(x, tied, mask)[2])
        scores[0, 3], mask[:, 3] = torch.nan, True
        found = run(x, scores, mask)[:2]
        for one, other in zip(found, model(x, scores, mask)[:2], strict=True):
            same_bits(one, other)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_onnx_of_a_pooled_model(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64
    )
    model = knockout.hf.pool(BertModel(config), lengths={0: 16, 1: 8}, hard_eval=True).eval()  # type: ignore[no-untyped-call]

    class Embed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            return knockout.hf.mean(self.model(tokens, attention_mask=mask))

    def draw(batch: int, n: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(0, 100, (batch, n), generator=torch.Generator().manual_seed(n))
        return tokens, (torch.arange(n) < torch.randint(1, n + 1, (batch, 1))).long()

    batch, n = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("n", min=18, max=500)
    program = export(Embed().eval(), draw(3, 40), ({0: batch, 1: n},) * 2)
    assert {node.domain for node in program.model.graph} == {""}
    run = session(program, tmp_path)
    for arguments in (draw(2, 20), draw(7, 100)):
        with torch.no_grad():
            expected = Embed()(*arguments)
        torch.testing.assert_close(run(*arguments)[0], expected, rtol=0, atol=5e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_soft_layer_cannot_become_onnx_and_says_what_to_do() -> None:
    pool, x = TokenPool(DIM, k=4, output="x").eval(), inputs(2, 12)[0]
    with pytest.raises(torch.onnx.errors.OnnxExporterError) as caught:
        export(pool, (x,))
    assert "a soft choice cannot be exported to ONNX" in str(caught.value)
    assert "hard_eval=True" in str(caught.value)
    torch.export.export(pool, (x,))  # no ONNX: its operators are those of the library


@pytest.mark.filterwarnings("ignore")
def test_a_fraction_of_a_varying_n(tmp_path: Path) -> None:
    layer = TopK(0.3, hard_eval=True, output=("values", "indices", "mask")).eval()
    shapes = ({1: N},) * 3
    run = session(export(layer, scored(2, 12), shapes), tmp_path)
    program = torch.export.export(
        layer, scored(2, 12), dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=True
    ).module()
    for n in (9, 10, 11, 100):  # 0.3 of them, rounded up, are 3, 3, 4 and 30
        arguments = scored(2, n, seed=n)
        for one, other, expected in zip(run(*arguments), program(*arguments), layer(*arguments), strict=True):
            same_bits(one, expected)
            same_bits(other, expected)


# --- AOTInductor ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_aot_inductor(tmp_path: Path) -> None:
    model, draw = made("pool")
    program = torch.export.export(model, draw(3, 40), dynamic_shapes=varying(draw(3, 40)))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "pool.pt2"))
    compiled = torch._inductor.aoti_load_package(path)
    arguments = draw(5, 70, seed=1)
    with torch.no_grad():
        for one, other in zip(compiled(*arguments), model(*arguments), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


# --- results as plain tensors ---------------------------------------------------------------------


def test_output_chooses_what_is_returned() -> None:
    x, mask = inputs(2, 12)
    pool = TokenPool(DIM, k=4).eval()
    everything = pool(x, mask)
    for keep in (0, 2, 12):
        pools = [TokenPool(DIM, ratio=0.5, keep=keep, scorer=pool.scorer, output=each) for each in (None, "x")]
        whole, alone = (each.eval()(x, mask) for each in pools)
        same_bits(alone, whole.x)
    some = TokenPool(DIM, k=4, scorer=pool.scorer, output=["mask", "x"]).eval()
    found = some(x, mask)
    assert type(found) is tuple
    same_bits(found[0], everything.mask)
    same_bits(found[1], everything.x)
    assert repr(some).splitlines()[1] == "  16, k=4, output=('mask', 'x')"
    for hard in (False, True):
        layer = TopK(4, hard=hard, output="indices")
        assert torch.equal(layer(x, x[..., 0]), TopK(4, hard=hard)(x, x[..., 0]).indices)
        assert "output='indices'" in repr(layer)
    assert PyramidEncoder([nn.Dropout(0.0)], [2], dim=DIM, output="x").extra_repr() == "output='x'"


@pytest.mark.parametrize("layer", [nn.Linear(DIM, 2), nn.ReLU(), nn.LayerNorm(DIM), nn.Conv1d(4, 2, 1)])
def test_a_layer_behind_a_pool_needs_the_tensor_and_says_so(layer: nn.Module) -> None:
    x = inputs(2, 12)[0]
    with pytest.raises(TypeError, match=r'got a Pooled in place of a tensor: take result.x, .* with output="x"'):
        nn.Sequential(nn.Linear(DIM, DIM), TokenPool(DIM, k=4), layer)(x)
    model = nn.Sequential(nn.Linear(DIM, DIM), TokenPool(DIM, k=4, output="x"), layer)
    assert model(x).shape[0] == 2
    with evaluate_hard(model.eval()):
        program = torch.export.export(model, (x,)).module()
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: TokenPool(DIM, k=4, output="y"), ValueError, "output must be one of 'x', 'mask'"),
        (lambda: TokenPool(DIM, k=4, output=("x", 3)), ValueError, "output must be one of 'x', 'mask'"),
        (lambda: TopK(4, output=True), TypeError, "output must be None, .* out of values, scores"),
        (lambda: TopK(4, output=()), TypeError, "output must be None"),
        (lambda: PyramidEncoder([nn.ReLU()], [2], dim=DIM, output="leader"), ValueError, "output must be one of 'x'"),
        (lambda: make_pools(TokenPool, DIM, 2, [4, None], None, {"output": "x"}), ValueError, "output cannot be set"),
    ],
)
def test_bad_outputs(make: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make()


# --- TorchScript ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused_by_a_sentence_that_says_what_to_use() -> None:
    x = inputs(2, 12)[0]
    pool = TokenPool(DIM, k=4, output="x")
    encoder = PyramidEncoder([nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=True)], [4], output="x")
    for model in (pool, nn.Sequential(nn.Linear(DIM, DIM), pool), TopK(4), encoder):
        with pytest.raises(RuntimeError, match=r"cannot be compiled by torch.jit.script. Use torch.export.export"):
            torch.jit.script(model)
    traced: list[tuple[Any, Any]] = [
        (pool, x),
        (pool.eval(), x),
        (encoder, x),
        (TopK(4, output="values"), (x, x[..., 0])),
        (lambda scores: knockout.select(scores, 4).scores, x[..., 0]),
        (lambda scores: knockout.topk(scores.unsqueeze(-1), scores, 4).values, x[..., 0]),
        (lambda scores: knockout.methods.hard(scores, 4).scores, x[..., 0]),
    ]
    for model, arguments in traced:
        with pytest.raises(RuntimeError, match=r"cannot be traced by torch.jit.trace. Use torch.export.export"):
            torch.jit.trace(model, arguments)
