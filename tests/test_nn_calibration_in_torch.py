"""Layers that calibrate themselves, with the rest of PyTorch: checkpointing, compiling, transforms, devices, DDP."""

# mypy: disable-error-code="arg-type, comparison-overlap, operator, union-attr"

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import knockout
from knockout.boost import Adaptive
from knockout.nn import TopK
from knockout.nn.calibration import SHARPNESS
from tests.cases import same_bits
from tests.nn_cases import DIM, SCORES, masked, pool, tokens, unit_of, unmeasured
from tests.process_group import GROUPS, Workers


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant: bool) -> None:
    plain = pool(k=4)
    kept = copy.deepcopy(plain)
    for number in range(2):
        x = tokens(3, 20, seed=number).requires_grad_()
        (expected,) = torch.autograd.grad(plain(x).x.sin().sum(), x)
        checkpoint(lambda x: kept(x).x, x, use_reentrant=reentrant).sin().sum().backward()
        same_bits(x.grad, expected)
    assert kept.topk.unit == plain.topk.unit > 0


def test_one_graph_for_the_first_batch_and_later_ones() -> None:
    torch._dynamo.reset()
    plain = pool(k=4)
    model = copy.deepcopy(plain)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    empty, mask = torch.zeros(3, 20).bool(), masked(3, 20, [20, 12, 2])
    for x, given in ((tokens(3, 20), empty), (tokens(3, 20, seed=1), mask), (9 * tokens(3, 20, seed=2), mask)):
        one, other = compiled(x, given), plain(x, given)
        torch.testing.assert_close(one.x, other.x)
        torch.testing.assert_close(model.topk.unit, plain.topk.unit)
    assert model.topk.unit > 0
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks at it
def test_compiled_checkpoints() -> None:
    torch._dynamo.reset()
    plain = pool(k=4)
    kept, x = copy.deepcopy(plain), tokens(3, 20).requires_grad_()
    compiled = torch.compile(
        lambda x: checkpoint(lambda x: kept(x).x, x, use_reentrant=False), backend="aot_eager", fullgraph=True
    )
    (found,) = torch.autograd.grad(compiled(x).sin().sum(), x)
    (expected,) = torch.autograd.grad(plain(x).x.sin().sum(), x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(kept.topk.unit, plain.topk.unit)


@pytest.mark.parametrize("known", [False, True])
def test_export_in_evaluation(known: bool) -> None:
    model, x = pool(k=4), tokens(3, 20)
    if known:
        model(x)
    before = model.topk.unit.clone()
    program = torch.export.export(model.eval(), (x,))
    assert not [node for node in program.graph.nodes if "copy_" in str(node.target)]
    torch.testing.assert_close(program.module()(x).x, model(x).x)
    assert model.topk.unit == before


def test_transforms_measure_nothing() -> None:
    layer = TopK(4)
    mapped = torch.vmap(lambda row: layer.select(row).weights())(SCORES)
    expected = knockout.select(SCORES, 4, unmeasured())
    same_bits(mapped, expected.weights())
    torch.func.grad(lambda scores: layer.select(scores).scores.sum())(SCORES)
    assert layer.unit == 0
    layer.select(SCORES)
    mapped = torch.vmap(lambda row: layer.select(row).weights())(SCORES)
    same_bits(mapped, layer.select(SCORES).weights())


def test_functional_call_measures_into_the_buffer_that_it_is_given() -> None:
    layer, values = TopK(4), tokens(3, 20)
    buffers = {"sharpness": torch.tensor(SHARPNESS), "unit": torch.tensor(0.0)}
    out = functional_call(layer, buffers, (values, SCORES))
    assert buffers["unit"].item() == pytest.approx(unit_of(SCORES))
    assert layer.unit == 0
    same_bits(out.values, layer(values, SCORES).values)


def test_autocast() -> None:
    one, other, x = pool(k=4), pool(k=4), tokens(3, 20)
    with torch.autocast("cpu", torch.bfloat16):
        one(x)
    other(x)
    assert one.topk.unit == other.topk.unit > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("unit", [1e-12, 0.1, 1e12])
def test_the_unit_stays_in_full_precision(unit: float, dtype: torch.dtype) -> None:
    model = pool(k=4)
    model.boost = Adaptive(2, unit)
    before = model.topk.unit.clone()
    model.to(dtype)
    same_bits(model.topk.unit, before)
    assert model(tokens(3, 20).to(dtype)).x.isfinite().all()
    fresh = pool(k=4).to(dtype)
    fresh(tokens(3, 20).to(dtype))
    assert fresh.topk.unit.dtype == torch.float32
    assert fresh.topk.unit > 0


def test_on_another_device() -> None:
    """Shapes without data: nothing waits for a number from the device."""
    model = pool(k=4).to("meta")
    for training in (True, False):
        assert model.train(training)(tokens(3, 20).to("meta")).x.shape == (3, 4, DIM)
    model.topk.calibrate(SCORES.to("meta"))
    assert model.topk.unit.device.type == "meta"
    unit = pool(k=4).to("meta", torch.float16).topk.unit
    assert (unit.device.type, unit.dtype) == ("meta", torch.float32)
    assert "unit=<a tensor on meta>" in repr(model)
    layer = TopK(4)  # left on the CPU
    assert layer.select(SCORES.to("meta")).indices.shape == (3, 4)
    assert layer.unit == 0


def test_copies_have_a_unit_of_their_own() -> None:
    layer = TopK(4)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for other in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        other.select(SCORES)
        assert other.unit.item() == pytest.approx(unit_of(SCORES))
        assert layer.unit == 0
        assert copy.deepcopy(other).unit == other.unit


def in_parallel(rank: int) -> float:
    """Each rank measures its own scores first; from the second step on all have the unit of the first rank."""
    model = DistributedDataParallel(pool(k=4), process_group=GROUPS[2])
    units = []
    for number in range(3):
        model(tokens(3, 20, seed=number) * (1 + 9 * rank)).x.sum().backward()
        units.append(model.module.topk.unit.item())
    alone = pool(k=4)
    alone(tokens(3, 20) * (1 + 9 * rank))
    assert units[0] == alone.topk.unit.item()
    assert units[1] == units[2]
    return float(units[2])


def test_ranks_end_with_the_unit_of_the_first(workers: Workers) -> None:
    one = pool(k=4)
    one(tokens(3, 20))
    assert workers.check(in_parallel, size=2) == [one.topk.unit.item()] * 2
