"""Every transform of PyTorch that the operator supports, each with a test of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import knockout
from knockout.boost import Boost, Fixed, Power, Relative
from knockout.functional import Order
from tests.cases import BOOSTS, Watch, randn, same_bits, separated

Step = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
SELECTIONS: dict[str, dict[str, Any]] = {
    "relative": {"boost": Relative(1)},
    "softmax": {"boost": Fixed(3)},
    "power": {"boost": Power(20)},
    "number": {"boost": 2.0},
    "hard": {"boost": 1.0, "hard": True},
    "position": {"boost": 1.0, "order": "position"},
}


def step(options: dict[str, Any], k: int = 5) -> Step:
    """Forward and backward, as one function of values and scores."""

    def run(values: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        out = knockout.topk(values, scores, k, **options)
        return (*out, *torch.autograd.grad(out.values.square().sum() + out.scores.sum(), (values, scores)))

    return run


def inputs(batch: int, n: int) -> tuple[Tensor, Tensor]:
    return (
        randn(batch, n, 4, dtype=torch.float32).requires_grad_(),
        separated(batch, n).float().requires_grad_(),
    )


@pytest.mark.parametrize("name", SELECTIONS)
def test_compile_without_a_graph_break(name: str) -> None:
    torch._dynamo.reset()
    values, scores = inputs(3, 50)
    options = SELECTIONS[name]
    compiled = torch.compile(lambda v, s: knockout.topk(v, s, 5, **options), backend="aot_eager", fullgraph=True)
    out = compiled(values, scores)
    gradients = torch.autograd.grad(out.values.square().sum() + out.scores.sum(), (values, scores))
    for one, other in zip((*out, *gradients), step(options)(values, scores), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["relative", "hard"])
def test_compile_with_dynamic_n(name: str) -> None:
    torch._dynamo.reset()
    eager = step(SELECTIONS[name])

    def forward(values: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        return knockout.topk(values, scores, 5, **SELECTIONS[name])

    frames = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(forward, backend=frames, fullgraph=True, dynamic=True)
    graphs = []
    for n in (15, 11, 20, 21):
        values, scores = inputs(3, n)
        out = compiled(values, scores)
        graphs.append(frames.frame_count)
        gradients = torch.autograd.grad(out[0].square().sum() + out[1].sum(), (values, scores))
        for one, other in zip((*out, *gradients), eager(values, scores), strict=True):
            torch.testing.assert_close(one, other)
    # 11 to 20 candidates: two rounds, one graph for all. 21: a third round, and another graph.
    assert graphs[0] == graphs[1] == graphs[2] < graphs[3]


def test_compile_with_k_as_an_argument() -> None:
    torch._dynamo.reset()
    values, scores = inputs(2, 33)
    compiled = torch.compile(lambda v, s, k: knockout.topk(v, s, k).values, backend="eager", fullgraph=True)
    for k in (2, 3, 5):
        torch.testing.assert_close(compiled(values, scores, k), knockout.topk(values, scores, k).values)


def test_compile_with_the_default_backend() -> None:
    torch._dynamo.reset()
    values, scores = inputs(2, 33)
    mask = torch.rand(2, 33, generator=torch.Generator().manual_seed(0)) > 0.2
    compiled = torch.compile(lambda v, s, m: knockout.topk(v, s, 4, mask=m), fullgraph=True)
    out, expected = compiled(values, scores, mask), knockout.topk(values, scores, 4, mask=mask)
    for one, other in zip(
        (*out, *torch.autograd.grad(out.values.square().sum(), (values, scores))),
        (*expected, *torch.autograd.grad(expected.values.square().sum(), (values, scores))),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("method", [knockout.methods.hard, knockout.methods.iterative])
def test_compile_the_other_methods(method: Callable[[Tensor, int], knockout.Selection]) -> None:
    torch._dynamo.reset()
    values, scores = inputs(2, 33)
    compiled = torch.compile(lambda v, s: method(s, 4).apply(v), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(values, scores), method(scores, 4).apply(values))


class Pool(torch.nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, values: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        return knockout.topk(values, scores, 5, **self.options)


@pytest.mark.parametrize("name", SELECTIONS)
def test_export_with_dynamic_batch_and_n(name: str) -> None:
    batch, n = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("n", min=11, max=20)
    dynamic = {"values": {0: batch, 1: n}, "scores": {0: batch, 1: n}}
    pool = Pool(**SELECTIONS[name])
    example = tuple(x.detach() for x in inputs(3, 15))
    program = torch.export.export(pool, example, dynamic_shapes=dynamic).module()
    for size in ((2, 11), (5, 20)):
        values, scores = (x.detach() for x in inputs(*size))
        for one, other in zip(program(values, scores), pool(values, scores), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", SELECTIONS)
def test_vmap_equals_a_loop(name: str) -> None:
    values, scores = (x.detach() for x in inputs(4, 30))
    mask = torch.rand(4, 30, generator=torch.Generator().manual_seed(0)) > 0.2

    def one(values: Tensor, scores: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return knockout.topk(values, scores, 5, mask=mask, **SELECTIONS[name])

    for mapped, looped in zip(
        torch.vmap(one)(values, scores, mask),
        zip(*[one(values[i], scores[i], mask[i]) for i in range(4)], strict=True),
        strict=True,
    ):
        same_bits(mapped, torch.stack(looped))


@pytest.mark.parametrize("in_dims", [(0, 0), (None, 0), (0, None), (1, 1), (2, 0)])
def test_vmap_along_any_dimension(in_dims: tuple[int | None, int | None]) -> None:
    values = randn(6, 6, 6) if in_dims[0] is not None else randn(6, 6)
    scores = separated(6, 6) if in_dims[1] is not None else separated(6)

    def loss(values: Tensor, scores: Tensor) -> Tensor:
        return knockout.topk(values, scores, 2, 1.0).values.square().sum()

    mapped = torch.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=in_dims)(values, scores)
    for i in range(6):
        row = [x if dim is None else x.select(dim, i) for x, dim in zip((values, scores), in_dims, strict=True)]
        for one, other in zip(mapped, torch.func.grad(loss, argnums=(0, 1))(*row), strict=True):
            torch.testing.assert_close(one[i], other)


def test_jacobians_and_hessians_through_torch_func() -> None:
    values, scores = randn(9, 2), separated(9)

    def pooled(scores: Tensor) -> Tensor:
        return knockout.topk(values, scores, 2, Relative(0.7, alpha=1)).values

    jacobian = torch.func.jacrev(pooled)(scores)
    torch.testing.assert_close(jacobian, torch.autograd.functional.jacobian(pooled, scores))
    hessian = torch.func.jacrev(torch.func.jacrev(lambda s: pooled(s).square().sum()))(scores)
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(lambda s: pooled(s).square().sum(), scores))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_changes_no_bit(dtype: torch.dtype) -> None:
    values, scores = inputs(3, 50)
    mask = torch.rand(3, 50, generator=torch.Generator().manual_seed(0)) > 0.2
    makes: list[Callable[[], knockout.Selection]] = [
        lambda: knockout.select(scores, 5, mask=mask),
        lambda: knockout.methods.iterative(scores, 5, mask=mask),
        lambda: knockout.methods.hard(scores, 5, mask=mask),
    ]
    for make in makes:
        plain = make()
        with torch.autocast("cpu", dtype=dtype):
            cast = make()
            out, nccs = cast.apply(values), knockout.metrics.nccs(values, cast.apply(values))
        assert out.dtype == nccs.dtype == torch.float32
        same_bits(out, plain.apply(values))
        same_bits(cast.scores, plain.scores)
        same_bits(cast.weights(), plain.weights())


def test_inference_mode_and_no_grad() -> None:
    values, scores = inputs(3, 50)
    expected = knockout.topk(values, scores, 5)
    for inference in (True, False):
        with torch.inference_mode(inference), torch.no_grad():
            out = knockout.topk(values, scores, 5)
            assert not out.values.requires_grad
            same_bits(out.values, expected.values)


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
@pytest.mark.parametrize("hard", [False, True])
def test_no_step_waits_for_the_device(boost: Boost, hard: bool) -> None:
    # Meta tensors have shapes and a device but no numbers: whoever asks for a number, or mixes devices, fails.
    values = torch.empty(3, 50, 4, device="meta", requires_grad=True)
    scores = torch.empty(3, 50, device="meta", requires_grad=True)
    mask = torch.empty(3, 50, device="meta", dtype=torch.bool)
    orders: list[Order] = ["score", "position"]
    for order in orders:
        selection = knockout.select(scores, 5, boost, mask=mask, order=order, hard=hard)
        out = selection.apply(values)
        shown = (selection.scores, selection.weights(), selection.mass(), selection.perplexity())
        total = torch.stack([x.sum() for x in (out, *shown)]).sum()
        gradients = torch.autograd.grad(total, (values, scores), create_graph=True)
        torch.autograd.grad(gradients[0].square().sum() + gradients[1].square().sum(), (values, scores))
        assert {x.device.type for x in (out, *shown, *gradients, selection.indices, selection.mask)} == {"meta"}
    for method in (knockout.methods.hard(scores, 5, mask), knockout.methods.iterative(scores, 5, mask=mask)):
        assert knockout.metrics.nccs(values, method.apply(values)).device.type == "meta"


def test_tensors_without_numbers_do_catch_a_wait() -> None:
    scores = torch.empty(3, device="meta")
    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        scores.sum().item()
    with pytest.raises(RuntimeError, match="device"):
        _ = scores + torch.arange(3)


@pytest.mark.parametrize("hard", [False, True])
def test_a_selection_can_be_returned_from_vmap_and_compile(hard: bool) -> None:
    values, scores = inputs(4, 30)
    makes: list[Callable[[Tensor], knockout.Selection]] = [
        lambda s: knockout.select(s, 5, hard=hard),
        lambda s: knockout.methods.iterative(s, 5),
        lambda s: knockout.methods.hard(s, 5),
    ]
    for make in makes:
        expected = make(scores)
        torch._dynamo.reset()
        for selection in (torch.vmap(make)(scores), torch.compile(make, backend="aot_eager", fullgraph=True)(scores)):
            assert repr(selection) == repr(expected)
            same_bits(selection.apply(values), expected.apply(values))
            same_bits(selection.scores, expected.scores)
            same_bits(selection.weights(), expected.weights())


def test_scores_asked_for_without_gradient_have_one_later() -> None:
    scores = separated(10).requires_grad_()
    for selection in (knockout.select(scores, 3), knockout.methods.iterative(scores, 3)):
        with torch.no_grad():
            assert not knockout.select(scores, 3).scores.requires_grad
            _ = selection.scores
        assert torch.autograd.grad(selection.scores.sum(), scores)[0].any()


def test_a_selection_can_be_saved(tmp_path: Path) -> None:
    values, scores = inputs(2, 40)
    expected = knockout.topk(values, scores, 4).values.detach()
    torch.save(knockout.select(scores.detach(), 4), tmp_path / "selection.pt")
    same_bits(torch.load(tmp_path / "selection.pt", weights_only=False).apply(values.detach()), expected)


@pytest.mark.parametrize("order", ["score", "position"])
@pytest.mark.parametrize("hard", [False, True])
def test_no_tensor_is_made_on_another_device(order: Any, hard: bool) -> None:
    values = torch.empty(3, 50, 4, device="meta", requires_grad=True)
    scores = torch.empty(3, 50, device="meta", requires_grad=True)
    mask = torch.empty(3, 50, device="meta", dtype=torch.bool)
    seen: list[Tensor] = []
    with Watch(seen):
        selections = [
            knockout.select(scores, 5, mask=mask, order=order, hard=hard),
            knockout.methods.hard(scores, 5, mask),
            knockout.methods.iterative(scores, 5, mask=mask),
        ]
        for selection in selections:
            shown = (selection.apply(values), selection.weights(), selection.mass(), selection.perplexity())
            torch.autograd.grad(torch.stack([x.sum() for x in shown]).sum(), (values, scores), allow_unused=True)
    assert {x.device.type for x in seen if x.dim()} == {"meta"}
