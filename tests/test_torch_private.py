"""Every private PyTorch API that the library uses, tried by itself: a new version of PyTorch may break any of them.

Without one of them the library may not even load, so it is loaded in the tests, not here.
"""

from __future__ import annotations

import ast
import importlib
import io
import os
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from knockout import torch_private


class Api(NamedTuple):
    """A private API: its name in PyTorch, what the library needs it for, and a function that tries it."""

    name: str
    purpose: str
    attempt: Callable[[], None]


class _Pair:
    """What ``register_pytree_node`` is tried with."""

    def __init__(self, one: Tensor, other: Tensor) -> None:
        self.one, self.other = one, other


def _register() -> None:
    torch_private.register_pytree_node(
        _Pair, lambda pair: ([pair.one, pair.other], None), lambda parts, _: _Pair(*parts), serialized_type_name="_Pair"
    )
    pair = torch.vmap(lambda x: _Pair(x, 2 * x))(torch.arange(3.0))
    assert isinstance(pair, _Pair)
    assert pair.other.tolist() == [0.0, 2.0, 4.0]


def _forward_mode() -> None:
    assert not torch_private.is_in_forward_mode()
    with torch.autograd.forward_ad.dual_level():
        assert torch_private.is_in_forward_mode()


def _transforming() -> None:
    inside: list[bool] = []

    def note(x: Tensor) -> Tensor:
        inside.append(torch_private.is_transforming())
        return x.sum()

    note(torch.zeros(3))
    torch.vmap(note)(torch.zeros(3, 3))
    torch.func.grad(note)(torch.zeros(3))
    assert inside == [False, True, True]


def _constant() -> None:
    def process() -> int:
        return os.getpid()

    def compiled(function: Callable[[], int]) -> Callable[[Tensor], Tensor]:
        return torch.compile(lambda x: x + function(), backend="eager", fullgraph=True)

    with pytest.raises(RuntimeError):
        compiled(process)(torch.zeros(1, dtype=torch.int64))
    marked = torch_private.assume_constant_result(process)
    assert compiled(marked)(torch.zeros(1, dtype=torch.int64)).item() == os.getpid()


def _levels() -> None:
    inside: list[int] = []

    def note(x: Tensor) -> Tensor:
        inside.append(torch_private.differentiation_levels())
        return x.square().sum()

    note(torch.zeros(3))
    torch.vmap(note)(torch.zeros(3, 3))
    torch.vmap(torch.func.grad(note))(torch.zeros(3, 3))
    torch.func.grad(lambda x: torch.func.grad(note)(x).sum())(torch.zeros(3))
    assert inside == [0, 0, 1, 2]


def _dot_products() -> None:
    table, grad = torch.arange(12.0).reshape(3, 4), torch.arange(8.0).reshape(2, 4)
    rows, bag = torch.tensor([2, 0, 1, 2]), torch.tensor([0, 0, 1, 1])
    out = torch_private.embedding_bag_weight_gradient(grad, table, rows, bag)
    torch.testing.assert_close(out, (table[rows] * grad[bag]).sum(-1))


class _Named(NamedTuple):
    """What ``register_namedtuple`` is tried with."""

    one: Tensor


class _ReturnsNamed(torch.nn.Module):
    def forward(self, x: Tensor) -> _Named:
        return _Named(2 * x)


def _register_named() -> None:
    torch_private.register_namedtuple(_Named, serialized_type_name="_Named")
    file = io.BytesIO()
    torch.export.save(torch.export.export(_ReturnsNamed(), (torch.ones(2),)), file)
    file.seek(0)
    found = torch.export.load(file).module()(torch.ones(2))
    assert isinstance(found, _Named)
    assert found.one.tolist() == [2.0, 2.0]


def _torchscript() -> None:
    inside: list[bool] = []

    def note(x: Tensor) -> Tensor:
        inside.append(torch_private.is_traced_by_torchscript())
        return x + 1

    note(torch.zeros(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(note, torch.zeros(3), check_trace=False)
    assert inside == [False, True]


def _onnx() -> None:
    from torch.onnx._internal.exporter import _flags

    inside = []
    _flags.set_onnx_exporting_flag(lambda: inside.append(torch_private.is_exporting_to_onnx()))()
    assert not torch_private.is_exporting_to_onnx()
    assert inside == [True]


def _collectives() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        assert group is not None
        operators, name, x = torch_private.collectives(), group.group_name, torch.arange(4.0)
        for out in (
            operators.all_gather_into_tensor(x, 1, name),
            operators.all_reduce(x, "sum", name),
            operators.all_to_all_single(x, [4], [4], name),
        ):
            assert out is not x
            assert torch.equal(operators.wait_tensor(out), x)
    finally:
        dist.destroy_process_group()


APIS = {
    "assume_constant_result": Api(
        "torch._dynamo.assume_constant_result", "graphs contain calls that look at environment variables", _constant
    ),
    "register_pytree_node": Api(
        "torch.utils._pytree.register_pytree_node", "vmap, compile and export can return a Selection", _register
    ),
    "is_transforming": Api(
        "torch._C._are_functorch_transforms_active", "calls inside of torch.func are recognized", _transforming
    ),
    "differentiation_levels": Api(
        "torch._C._functorch.get_interpreter_stack", "nested torch.func runs in the reference", _levels
    ),
    "embedding_bag_weight_gradient": Api(
        "torch.ops.aten._embedding_bag_per_sample_weights_backward",
        "the reference computes gradients of weights without copies of value rows",
        _dot_products,
    ),
    "is_in_forward_mode": Api(
        "torch.autograd.forward_ad._current_level",
        "forward-mode differentiation raises instead of losing tangents",
        _forward_mode,
    ),
    "register_namedtuple": Api(
        "torch.utils._pytree._register_namedtuple", "programs that return results of layers are saved", _register_named
    ),
    "is_traced_by_torchscript": Api("torch._C._is_tracing", "torch.jit.trace is refused", _torchscript),
    "is_exporting_to_onnx": Api(
        "torch.onnx._internal.exporter._flags._is_onnx_exporting", "what ONNX cannot hold is refused", _onnx
    ),
    "collectives": Api("torch.ops._c10d_functional", "ranks of knockout.distributed exchange tensors", _collectives),
}


def load() -> ModuleType:
    """``knockout.torch_private``, for the functions above."""
    globals()["torch_private"] = importlib.import_module("knockout.torch_private")
    return torch_private


def test_every_entry_is_tried() -> None:
    assert sorted(APIS) == sorted(load().__all__)


@pytest.mark.parametrize("entry", APIS)
def test_the_private_api_still_works(entry: str) -> None:
    api = APIS[entry]
    broken = f"PyTorch {torch.__version__} broke {api.name}, through which {api.purpose} (torch_private.{entry}): "
    try:
        pkgutil.resolve_name(api.name)
    except Exception as error:
        pytest.fail(f"{broken}{type(error).__name__}: {error}")
    load()
    try:
        api.attempt()
    except Exception as error:
        pytest.fail(f"{broken}{type(error).__name__}: {error}")


# --- no other file uses one -----------------------------------------------------------------------


def private_names(source: str) -> Iterator[str]:
    """The private names of PyTorch in a file: under a module that it imports from torch, and in its imports."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}  # what a name in the file stands for
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.split(".")[0] == "torch":
                    modules[each.asname or "torch"] = each.name if each.asname else "torch"
                    yield from _if_private(each.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for each in node.names:
                modules[each.asname or each.name] = f"{node.module}.{each.name}"
                yield from _if_private(f"{node.module}.{each.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts = [node.attr]
            value = node.value
            while isinstance(value, ast.Attribute):
                parts.append(value.attr)
                value = value.value
            if isinstance(value, ast.Name) and value.id in modules:
                yield from _if_private(".".join([modules[value.id], *reversed(parts)]))


def _if_private(name: str) -> list[str]:
    parts = name.split(".")
    return [name] if any(part.startswith("_") and not part.startswith("__") for part in parts) else []


def test_private_names_are_found() -> None:
    source = """
import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.ops import aten as a
from torch.utils._pytree import tree_map
torch.__version__, torch.compile, nn.functional.relu, other._C
torch._C._functorch
torch.ops._c10d_functional
dist._functional_collectives
nn.modules._functions
a._embedding_bag(1)
"""
    assert sorted(set(private_names(source))) == [
        "torch._C",
        "torch._C._functorch",
        "torch._dynamo",
        "torch.distributed._functional_collectives",
        "torch.nn.modules._functions",
        "torch.ops._c10d_functional",
        "torch.ops.aten._embedding_bag",
        "torch.utils._pytree.tree_map",
    ]


def test_only_torch_private_uses_private_names() -> None:
    package = Path(str(load().__file__)).parent
    found = {str(path.relative_to(package)): set(private_names(path.read_text())) for path in package.rglob("*.py")}
    assert len(found) > 20
    assert len(found.pop("torch_private.py")) >= len(torch_private.__all__)
    assert {name: names for name, names in found.items() if names} == {}
