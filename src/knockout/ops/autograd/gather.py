"""The differentiable weighted gather: values follow the plan in one pass, and gradients come back the same way.

Every slot s has members j = member[s, i] with weights w[s, i], and no candidate is a member of two slots. With V the
values and G the gradient of the result, everything here is a derivative of one form, linear in each of V, w and G:

    T(V, w, G) = sum over s, i of  w[s, i] <V[j], G[s]>

    blend  = dT/dG    out[s]   = sum over i of w[s, i] V[j]       the result
    spread = dT/dV    dV[j]    = w[s, i] G[s]                     the gradient of the values; a result, too
    match  = dT/dw    dw[s, i] = <V[j], G[s]>                     the gradient of the weights

so the derivatives of each are the other two, to any order. Padding (a member of n) is not read and has gradient 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.compiler import is_compiling

from knockout.ops import schema
from knockout.ops.autograd.function import apply, batch_first, is_in_graph
from knockout.ops.choice import BACKENDS
from knockout.torch_private import is_transforming

Gradients = tuple[Tensor | None, ...]


def blend(
    values: Tensor, weight: Tensor, member: Tensor, valid: Tensor | None = None, hard: bool = False, *, backend: str
) -> Tensor:
    """Weighted sums (*batch, k, d) of the value rows (*rows, n, d) that are the members of each slot.

    weight and member have shape (*batch, k, m), the leader first; a member of n is padding. ``*rows`` has as many
    dimensions as ``*batch`` and broadcasts to it. ``valid`` (*batch, 1) is False for rows whose result is NaN. With
    ``hard`` the result is the leaders' value rows, 0 for a leader that is padding; the gradients are the same. The
    result has the dtype of the values; half types are added up in float32.
    """
    call = _blend_in_graph if is_in_graph() else _blend
    out: Tensor = call(values, weight, member, valid, hard, backend)
    return out


def _blend(*args: Any) -> Tensor:
    out: Tensor = apply(_Blend, *args)
    return out


_blend_in_graph = schema.define_in_graph(
    "blend_in_graph",
    "(Tensor values, Tensor weight, Tensor member, Tensor? valid, bool hard, str backend) -> Tensor",
    _blend,
)


def spread(
    grad: Tensor,
    weight: Tensor,
    member: Tensor,
    shape: Sequence[int],
    valid: Tensor | None = None,
    hard: bool = False,
    *,
    backend: str,
) -> Tensor:
    """The gradient of the values, of this shape (*rows, n, d): see above. Candidates in no slot get 0.

    ``valid`` and ``hard`` are as of ``blend``; with ``valid``, the values are not shared: *rows is *batch.
    """
    call = _spread_in_graph if is_in_graph() else _spread
    out: Tensor = call(grad, weight, member, shape, valid, hard, backend)
    return out


def _spread(*args: Any) -> Tensor:
    out: Tensor = apply(_Spread, *args)
    return out


_spread_in_graph = schema.define_in_graph(
    "spread_in_graph",
    "(Tensor grad, Tensor weight, Tensor member, SymInt[] shape, Tensor? valid, bool hard, str backend) -> Tensor",
    _spread,
)


def match(grad: Tensor, values: Tensor, member: Tensor, dtype: torch.dtype, backend: str) -> Tensor:
    """The gradient of the weights (*batch, k, m), which have this dtype: see above."""
    out: Tensor = apply(_Match, grad, values, member, dtype, backend)
    return out


class _Gather(Function):
    """What the three functions share: two factors, the members, and last of all the backend.

    Each is linear in both factors, so the gradient of one needs only the other. A factor that no gradient needs is not
    saved: it may be freed, or changed in place.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        first, second, member, *_, ctx.backend = inputs
        wanted = ctx.needs_input_grad
        ctx.save_for_backward(first if wanted[1] else None, second if wanted[0] else None, member)
        ctx.shapes, ctx.dtype = (first.shape, second.shape), second.dtype


class _Blend(_Gather):
    @staticmethod
    def forward(
        values: Tensor, weight: Tensor, member: Tensor, valid: Tensor | None, hard: bool, backend: str
    ) -> Tensor:
        return BACKENDS[backend].blend(values, weight, member, valid, hard)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        values, weight, member = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        # The weights first: that reads value rows which the forward pass has just read, and which the gradient of all
        # values would drive out of the cache.
        d_weight = match(grad, values, member, ctx.dtype, ctx.backend) if wanted[1] else None
        d_values = spread(grad, weight, member, ctx.shapes[0], backend=ctx.backend) if wanted[0] else None
        return d_values, d_weight, None, None, None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, values: Tensor, weight: Tensor, member: Tensor, valid: Tensor | None, *rest: Any
    ) -> tuple[Tensor, int]:
        weight, member = (batch_first(x, dim, info.batch_size) for x, dim in ((weight, dims[1]), (member, dims[2])))
        valid = None if valid is None else batch_first(valid, dims[3], info.batch_size)
        return apply(_Blend, batch_first(values, dims[0], 1), weight, member, valid, *rest), 0


class _Spread(_Gather):
    @staticmethod
    def forward(
        grad: Tensor,
        weight: Tensor,
        member: Tensor,
        shape: Sequence[int],
        valid: Tensor | None,
        hard: bool,
        backend: str,
    ) -> Tensor:
        if hard:
            member = member[..., :1]
            weight = torch.ones_like(member, dtype=weight.dtype)
        out = BACKENDS[backend].spread(grad, weight, member, shape)
        # As many numbers to write as of the result itself: not if it can be told at once that all rows are valid.
        if valid is None or _are_all(valid):
            return out
        return out.masked_fill_(~valid.unsqueeze(-1), torch.nan)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> Gradients:
        grad, weight, member = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        d_grad = blend(up, weight, member, backend=ctx.backend) if wanted[0] else None
        d_weight = match(grad, up, member, ctx.dtype, ctx.backend) if wanted[1] else None
        return d_grad, d_weight, None, None, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        dims: Any,
        grad: Tensor,
        weight: Tensor,
        member: Tensor,
        shape: Sequence[int],
        valid: Tensor | None,
        *rest: Any,
    ) -> tuple[Tensor, int]:
        tensors = zip((grad, weight, member), dims[:3], strict=True)
        grad, weight, member = (batch_first(x, dim, info.batch_size) for x, dim in tensors)
        valid = None if valid is None else batch_first(valid, dims[4], info.batch_size)
        return apply(_Spread, grad, weight, member, (info.batch_size, *shape), valid, *rest), 0


def _are_all(valid: Tensor) -> bool:
    """Whether all are True; also False where that takes a device synchronisation or cannot be asked."""
    known = type(valid) is Tensor and valid.is_cpu and not is_compiling() and not is_transforming()
    return known and bool(valid.all())


class _Match(_Gather):
    @staticmethod
    def forward(grad: Tensor, values: Tensor, member: Tensor, dtype: torch.dtype, backend: str) -> Tensor:
        return BACKENDS[backend].match(grad, values, member, dtype == torch.float64)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> Gradients:
        grad, values, member = ctx.saved_tensors
        up = torch.where(member < ctx.shapes[1][-2], up, 0.0)
        wanted = ctx.needs_input_grad
        d_grad = blend(values, up, member, backend=ctx.backend) if wanted[0] else None
        d_values = spread(grad, up, member, ctx.shapes[1], backend=ctx.backend) if wanted[1] else None
        return d_grad, d_values, None, None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, grad: Tensor, values: Tensor, member: Tensor, dtype: torch.dtype, backend: str
    ) -> tuple[Tensor, int]:
        grad, member = (batch_first(x, dim, info.batch_size) for x, dim in ((grad, dims[0]), (member, dims[2])))
        return match(grad, batch_first(values, dims[1], 1), member, dtype, backend), 0
