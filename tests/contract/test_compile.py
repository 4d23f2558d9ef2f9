"""torch.compile: one graph without a break, the same results and gradients, and few graphs where sizes vary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import AotEagerAndRecordGraphs, CompileCounterWithBackend

import knockout
from knockout.backends import NAMES
from knockout.boost import Boost, Fixed, Relative
from knockout.functional import TopKResult
from tests.cases import NAMESPACES, randn, random_mask, same_bits, separated
from tests.contract.cases import CASES, OTHERS, SELECTIONS, gradients


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    torch._dynamo.reset()


def inputs(batch: int, n: int) -> tuple[Tensor, Tensor]:
    return randn(batch, n, 4, dtype=torch.float32).requires_grad_(), separated(batch, n).float().requires_grad_()


# Tracing the reference takes seconds: most of that are slow tests.
TRACED = [
    pytest.param(backend, name, marks=pytest.mark.slow if backend == "reference" and name != "relative" else ())
    for backend in NAMES
    for name in CASES
]
SLOW_REFERENCE = [pytest.param(backend, marks=pytest.mark.slow if backend == "reference" else ()) for backend in NAMES]


@pytest.mark.parametrize(("backend", "name"), TRACED, indirect=["backend"])
def test_no_graph_break_and_the_same_results(name: str) -> None:
    case = CASES[name]
    values, scores, mask = case.topk_inputs()
    compiled = torch.compile(case.topk, backend="aot_eager", fullgraph=True)
    out, expected = compiled(values, scores, mask), case.topk(values, scores, mask)
    for one, other in zip(out, expected, strict=True):
        same_bits(one, other)
    for one, other in zip(gradients(out, values, scores), gradients(expected, values, scores), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


@pytest.mark.parametrize("backend", OTHERS, indirect=True)
@pytest.mark.filterwarnings("ignore:Your compiler for AOTAutograd")  # that of the recording backend
def test_the_operators_are_in_the_graphs(backend: str) -> None:
    def loss(values: Tensor, scores: Tensor) -> Tensor:
        out = knockout.topk(values, scores, 5, Relative(1))
        return out.values.square().sum() + out.scores.square().sum()

    arguments, recorded = inputs(3, 30), AotEagerAndRecordGraphs()
    compiled = torch.compile(loss, backend=recorded, fullgraph=True)(*arguments)
    same_bits(compiled, loss(*arguments))
    for one, other in zip(
        torch.autograd.grad(compiled, arguments), torch.autograd.grad(loss(*arguments), arguments), strict=True
    ):
        same_bits(one, other)
    for graphs, names in (
        (recorded.fw_graphs, "tournament blend"),
        (recorded.bw_graphs, "tournament_backward spread match"),
    ):
        for name in names.split():
            assert f"torch.ops.{NAMESPACES[backend]}.{name}.default" in graphs[-1].code


@pytest.mark.parametrize("backend", SLOW_REFERENCE, indirect=True)
@pytest.mark.parametrize("name", ["relative", "hard"])
def test_one_graph_for_every_n_with_the_same_number_of_rounds(name: str) -> None:
    case = CASES[name]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(case.topk, backend=counter, fullgraph=True, dynamic=True)
    graphs = []
    for n in (8, 6, 10, 11):
        values, scores = inputs(3, n)
        out, expected = compiled(values, scores, None), case.topk(values, scores, None)
        graphs.append(counter.frame_count)
        for one, other in zip(
            (*out, *gradients(out, values, scores)), (*expected, *gradients(expected, values, scores)), strict=True
        ):
            torch.testing.assert_close(one, other)
    # 6 to 10 candidates: one round, one graph for all. 11: a second round, and another graph.
    assert graphs[0] == graphs[1] == graphs[2] < graphs[3]


@pytest.mark.parametrize("backend", SLOW_REFERENCE, indirect=True)
def test_k_as_an_argument() -> None:
    values, scores = inputs(2, 10)
    compiled = torch.compile(lambda v, s, k: knockout.topk(v, s, k).values, backend="eager", fullgraph=True)
    for k in (2, 3, 5):
        torch.testing.assert_close(compiled(values, scores, k), knockout.topk(values, scores, k).values)


@pytest.mark.parametrize("backend", SLOW_REFERENCE, indirect=True)
def test_the_default_compiler() -> None:
    values, scores = inputs(2, 33)
    mask = random_mask(2, 33, kept=0.8)
    compiled = torch.compile(lambda v, s, m: knockout.topk(v, s, 4, mask=m), fullgraph=True)
    out, expected = compiled(values, scores, mask), knockout.topk(values, scores, 4, mask=mask)
    for one, other in zip(
        (*out, *torch.autograd.grad(out.values.square().sum(), (values, scores))),
        (*expected, *torch.autograd.grad(expected.values.square().sum(), (values, scores))),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("backend", SLOW_REFERENCE, indirect=True)
def test_one_graph_for_every_n_with_a_fraction() -> None:
    counter = CompileCounterWithBackend("aot_eager")

    def pool(values: Tensor, scores: Tensor, mask: Tensor) -> TopKResult:
        return knockout.topk(values, scores, 0.3, 1.0, mask=mask)

    compiled = torch.compile(pool, backend=counter, fullgraph=True, dynamic=True)
    graphs = []
    for n in (15, 11, 20, 21, 100):
        values, scores = inputs(3, n)
        mask = torch.arange(n) < torch.tensor([[n], [5], [0]])
        out, expected = compiled(values, scores, mask), pool(values, scores, mask)
        graphs.append(counter.frame_count)
        for one, other in zip(out, expected, strict=True):
            same_bits(one, other)
        for one, other in zip(gradients(out, values, scores), gradients(expected, values, scores), strict=True):
            torch.testing.assert_close(one, other)
    assert len(set(graphs)) == 1


@pytest.mark.parametrize("backend", SLOW_REFERENCE, indirect=True)
def test_one_graph_for_all_counts() -> None:
    counter = CompileCounterWithBackend("aot_eager")

    def pool(values: Tensor, scores: Tensor, k: Tensor) -> TopKResult:
        return knockout.topk(values, scores, k, 1.0, max_k=4)

    compiled = torch.compile(pool, backend=counter, fullgraph=True)
    values, scores = inputs(3, 15)
    for counts in ([4, 4, 4], [1, 2, 3], [0, 0, 1], [0, 0, 0]):
        k = torch.tensor(counts)
        out, expected = compiled(values, scores, k), pool(values, scores, k)
        for one, other in zip(out, expected, strict=True):
            same_bits(one, other)
        for one, other in zip(gradients(out, values, scores), gradients(expected, values, scores), strict=True):
            torch.testing.assert_close(one, other)
    # Nobody looks at counts in a graph: out of range, they are clamped.
    for one, other in zip(
        compiled(values, scores, torch.tensor([-1, 5, 2**40])), pool(values, scores, torch.tensor([0, 4, 4])),
        strict=True,
    ):  # fmt: skip
        same_bits(one, other)
    assert counter.frame_count == 1


class Pool(torch.nn.Module):
    """Its sharpness is a buffer; the boost is made in every pass, or once."""

    c: Tensor

    def __init__(self, make: Callable[[Tensor], Boost], once: bool) -> None:
        super().__init__()
        self.register_buffer("c", torch.tensor(1.0))
        self.make = make
        self.boost = make(self.c) if once else None

    def forward(self, values: Tensor, scores: Tensor) -> Any:
        return knockout.topk(values, scores, 5, self.boost or self.make(self.c))


@pytest.mark.parametrize("backend", SLOW_REFERENCE, indirect=True)
@pytest.mark.parametrize("make", [Relative, Fixed])
@pytest.mark.parametrize("once", [False, True])
def test_one_graph_for_every_c_of_a_boost(make: Callable[[float | Tensor], Boost], once: bool) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    pool = Pool(make, once)
    compiled = torch.compile(pool, backend=counter, fullgraph=True)
    values, scores = inputs(3, 30)
    for c in (0.5, 0.8, 1.1, 3.8):
        pool.c.fill_(c)
        out, expected = compiled(values, scores), knockout.topk(values, scores, 5, make(pool.c.item()))
        for one, other in zip(out, expected, strict=True):
            same_bits(one, other)
        for one, other in zip(gradients(out, values, scores), gradients(expected, values, scores), strict=True):
            torch.testing.assert_close(one, other)
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", SLOW_REFERENCE, indirect=True)
@pytest.mark.parametrize("name", SELECTIONS)
def test_a_selection_can_be_returned(name: str) -> None:
    values, scores, select = randn(4, 30, 4, dtype=torch.float32), separated(4, 30).float(), SELECTIONS[name]
    selection, expected = torch.compile(select, backend="aot_eager", fullgraph=True)(scores), select(scores)
    assert repr(selection) == repr(expected)
    same_bits(selection.apply(values), expected.apply(values))
    same_bits(selection.scores, expected.scores)
    same_bits(selection.weights(), expected.weights())


@pytest.mark.parametrize("method", [knockout.methods.hard, knockout.methods.iterative])
def test_the_other_methods(method: Callable[[Tensor, int], knockout.Selection]) -> None:
    values, scores = inputs(2, 33)
    compiled = torch.compile(lambda v, s: method(s, 4).apply(v), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(values, scores), method(scores, 4).apply(values))
