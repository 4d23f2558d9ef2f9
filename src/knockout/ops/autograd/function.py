"""What the differentiable operators share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.compiler import is_compiling, is_dynamo_compiling, is_exporting

from knockout.torch_private import is_in_forward_mode, is_transforming


def is_in_graph() -> bool:
    """Whether ``torch.compile`` traces this call, and takes an operator of ``schema.define_in_graph`` instead."""
    return is_dynamo_compiling() and not is_exporting() and not is_transforming() and not is_in_forward_mode()


def apply(function: type[Function], *args: Any) -> Any:
    """``function.apply``, without its signature binding when no transform is active.

    The last ``internal_outputs`` outputs of a function exist only for ``setup_context`` to save. They are not returned
    when a gradient is recorded without an active transform.

    ``Function.apply`` binds the arguments to their names on every call, for the sake of ``torch.func``: that takes
    longer than a small selection.
    """
    # In forward mode PyTorch raises that there is no derivative; without it the tangents would be lost silently.
    if is_transforming() or is_compiling() or is_in_forward_mode():
        return function.apply(*args)
    if torch.is_grad_enabled():
        for each in args:
            if isinstance(each, Tensor) and each.requires_grad:
                return _combined(function).apply(*args)
    return function.forward(*args)


_COMBINED: dict[type[Function], type[Function]] = {}


def _combined(function: type[Function]) -> type[Function]:
    """The same function with ``forward`` and ``setup_context`` in one, which autograd calls directly."""
    if function not in _COMBINED:
        internal = getattr(function, "internal_outputs", 0)

        class Combined(Function):
            @staticmethod
            def forward(ctx: Any, *args: Any) -> Any:
                out = function.forward(*args)
                function.setup_context(ctx, args, out)
                return out[:-internal] if internal else out

            backward = function.backward

        Combined.__name__ = Combined.__qualname__ = function.__name__
        _COMBINED[function] = Combined
    return _COMBINED[function]


def batch_first(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """For a vmap rule: the mapped dimension first; expanded to ``size`` if the tensor is not mapped."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
