"""Every private PyTorch API that the library uses, behind a name of its own.

PyTorch may move any of these without notice. Each entry says what it is for, since which version of PyTorch it has been
there, and what would replace it. tests/test_torch_private.py tries each and names the one that broke.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import _register_namedtuple, register_pytree_node

__all__ = [
    "assume_constant_result",
    "collectives",
    "differentiation_levels",
    "embedding_bag_weight_gradient",
    "is_exporting_to_onnx",
    "is_in_forward_mode",
    "is_traced_by_torchscript",
    "is_transforming",
    "register_namedtuple",
    "register_pytree_node",
]

# register_pytree_node: lets vmap, torch.compile and torch.export return a Selection. Since 2.2. Replacement:
# torch.utils.pytree, once it is public in every supported version.

# is_transforming(): whether a torch.func transform (vmap, grad, vjp, ...) is active. Since 2.0. There is no public way
# to ask; torch.compile evaluates this one while tracing. Replacement: a public torch.func.is_active(), if it comes.
is_transforming = torch._C._are_functorch_transforms_active

# register_namedtuple(kind, serialized_type_name=...): lets torch.export.save save a program that returns one. Since
# 2.6. Replacement: torch.export.register_dataclass, if it takes a NamedTuple.
register_namedtuple = _register_namedtuple

# is_traced_by_torchscript(): whether torch.jit.trace runs this call. Since 1.0; torch.jit.is_tracing asks it, and may
# warn that TorchScript is deprecated. Replacement: none needed once TorchScript is gone.
is_traced_by_torchscript = torch._C._is_tracing


Function = TypeVar("Function", bound=Callable[..., Any])


def assume_constant_result(function: Function) -> Function:
    """Let ``torch.compile`` call a function once, while it traces, and take its result for a constant.

    Since 2.0. ``torch.compiler.assume_constant_result`` does the same, but first imports ``torch._dynamo``, which takes
    as long as to import ``torch``. Replacement: that function, once it imports nothing.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def differentiation_levels() -> int:
    """How many active torch.func transforms differentiate: grad, vjp and jvp, but not vmap and functionalize.

    Since 2.0. There is no public way to ask. Replacement: none needed once second derivatives of the tournament can be
    taken under torch.func.
    """
    levels = torch._C._functorch.get_interpreter_stack() or ()
    kinds = torch._C._functorch.TransformType
    return sum(level.key() in (kinds.Grad, kinds.Jvp) for level in levels)


def is_in_forward_mode() -> bool:
    """Whether ``torch.autograd.forward_ad.dual_level`` is active. Since 1.10. There is no public way to ask.

    Replacement: none needed once the operators have forward derivatives.
    """
    return forward_ad._current_level >= 0


def is_exporting_to_onnx() -> bool:
    """Whether ``torch.onnx.export`` traces this call.

    Since 2.9. Replacement: torch.onnx.is_in_onnx_export, once it is right where Dynamo traces, as for ``strict=True``.
    """
    flags = sys.modules.get("torch.onnx._internal.exporter._flags")  # to import it takes seconds
    return flags is not None and bool(flags._is_onnx_exporting)


def embedding_bag_weight_gradient(grad: Tensor, table: Tensor, rows: Tensor, bag: Tensor) -> Tensor:
    """Dot products <table[rows[i]], grad[bag[i]]>, one for each i.

    This is what autograd calls for the ``per_sample_weights`` of ``embedding_bag``. Since 1.0. It needs no copy of the
    rows. Replacement: ``(table[rows] * grad[bag]).sum(-1)``, which is slower and copies them.
    """
    offsets = torch.zeros_like(bag[:1])  # only its device and dtype are looked at; bags are given by `bag`
    mode = 0  # a sum
    dots: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(grad, table, rows, offsets, bag, mode)
    return dots


def collectives() -> Any:
    """Collectives that return new tensors, with work handles that raise when a rank is lost.

    Since 2.3. ``torch.distributed.nn.functional`` has no all-to-all of unequal parts that returns a new tensor.
    Replacement: torch.distributed.all_gather_into_tensor and the like, with buffers of the caller's.
    """
    return torch.ops._c10d_functional
