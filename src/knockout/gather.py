"""The weighted gather: values follow the plan in one pass, and gradients come back the same way.

Every slot s has members j = member[s, i] with weights w[s, i], and no candidate is a member of two slots. With V the
values and G the gradient of the result, everything here is a derivative of one form, linear in each of V, w and G:

    T(V, w, G) = sum over s, i of  w[s, i] <V[j], G[s]>

    blend  = dT/dG    out[s]   = sum over i of w[s, i] V[j]       the result
    spread = dT/dV    dV[j]    = w[s, i] G[s]                     the gradient of the values
    match  = dT/dw    dw[s, i] = <V[j], G[s]>                     the gradient of the weights

so the derivatives of each are the other two, to any order.

Nobody's row (a member of n) is not read, its gradients are 0, whatever the rows hold. Where a place has to name a row
all the same, it names the slot's leader, whose row is at hand.

All three run on ``embedding_bag``, which gathers, weighs and adds in one pass on every device: ten times faster than
gather + multiply + sum, or than scatter_add, at n = 16384 (benchmarks/gather.py). But it has no second derivative.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import embedding_bag, pad

from knockout import native
from knockout.checks import computing_dtype

Gradients = tuple[Tensor | None, ...]


def blend(values: Tensor, weight: Tensor, member: Tensor, hard: bool = False) -> Tensor:
    """Weighted sums (*batch, k, d) of the rows of values (*rows, n, d) that each slot's members name.

    weight and member have shape (*batch, k, m), the leader first; a member of n stands for nobody. ``*rows`` has as
    many dimensions as ``*batch`` and broadcasts to it. With ``hard`` the result is the leaders' rows; the gradients are
    the same. The result has the dtype of the values; half types are added up in float32.
    """
    out: Tensor = native.apply(_Blend, values, weight, member, hard)
    return out


def _spread(grad: Tensor, weight: Tensor, member: Tensor, shape: torch.Size) -> Tensor:
    out: Tensor = native.apply(_Spread, grad, weight, member, shape)
    return out


def _match(grad: Tensor, values: Tensor, member: Tensor, dtype: torch.dtype) -> Tensor:
    out: Tensor = native.apply(_Match, grad, values, member, dtype)
    return out


class _Blend(Function):
    @staticmethod
    def forward(values: Tensor, weight: Tensor, member: Tensor, hard: bool) -> Tensor:
        if native.takes(values, values.shape[-2]):
            return native.blend(values, weight, member, hard)  # type: ignore[no-any-return]
        rows, table = _rows(member, values), _table(values)
        blended = table[rows[..., 0]] if hard else _bags(table, weight, rows)
        # An empty slot holds zeros, whatever was looked up for it; a spoiled one NaN.
        weight, empty = weight[..., :1].to(table.dtype), member[..., :1] == values.shape[-2]
        fixed = torch.where(weight.isnan(), weight, 0.0)
        return torch.where(empty | weight.isnan(), fixed, blended).to(values.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        values, weight, member = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        # First what reads rows that the forward pass has just read; the gradient of all values would drive them out.
        d_weight = _match(grad, values, member, weight.dtype) if wanted[1] else None
        d_values = _spread(grad, weight, member, values.shape) if wanted[0] else None
        return d_values, d_weight, None, None

    @staticmethod
    def vmap(info: Any, dims: Any, values: Tensor, weight: Tensor, member: Tensor, hard: bool) -> tuple[Tensor, int]:
        weight, member = (native.lift(x, dim, info.batch_size) for x, dim in ((weight, dims[1]), (member, dims[2])))
        return blend(native.lift(values, dims[0], 1), weight, member, hard), 0


class _Spread(Function):
    @staticmethod
    def forward(grad: Tensor, weight: Tensor, member: Tensor, shape: torch.Size) -> Tensor:
        if native.takes(grad, shape[-2]):
            return native.spread(grad, weight, member, shape)  # type: ignore[no-any-return]
        batch, k, m, n = weight.shape[:-2], weight.shape[-2], weight.shape[-1], shape[-2]
        # Seen from the candidates: whose slot am I in, with which weight? One more column takes what is nobody's. Who
        # is in no slot gets the row of zeros below the gradients of all slots.
        place = member.long().flatten(-2)
        slot = torch.arange(k, device=member.device).repeat_interleave(m) + _offsets(batch, k, member.device)
        slot = torch.full((*batch, n + 1), math.prod(batch) * k, device=member.device).scatter(-1, place, slot)
        share = weight.new_zeros(*batch, n + 1).scatter(-1, place, weight.flatten(-2))
        table = pad(_table(grad), (0, 0, 0, 1))
        # A row that several batch entries share gets the sum of their parts: they go last, and are summed as a bag.
        shared = [dim for dim, size in enumerate(shape[:-2]) if size == 1]
        last = list(range(-len(shared), 0))
        bags = (*shape[:-1], math.prod([batch[dim] for dim in shared]))
        share, slot = (x[..., :n].movedim(shared, last).reshape(bags) for x in (share, slot))
        return _bags(table, share, slot).to(grad.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> Gradients:
        grad, weight, member = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        d_grad = blend(up, weight, member) if wanted[0] else None
        d_weight = _match(grad, up, member, weight.dtype) if wanted[1] else None
        return d_grad, d_weight, None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, grad: Tensor, weight: Tensor, member: Tensor, shape: torch.Size
    ) -> tuple[Tensor, int]:
        grad, weight, member = (
            native.lift(x, dim, info.batch_size) for x, dim in zip((grad, weight, member), dims[:3], strict=True)
        )
        return _spread(grad, weight, member, torch.Size((info.batch_size, *shape))), 0


class _Match(Function):
    @staticmethod
    def forward(grad: Tensor, values: Tensor, member: Tensor, dtype: torch.dtype) -> Tensor:
        if native.takes(values, values.shape[-2]):
            return native.match(grad, values, member, dtype == torch.float64)  # type: ignore[no-any-return]
        rows, table = _rows(member, values), _aligned(_table(values))
        if table.numel() == 0 or rows.numel() == 0:
            return values.new_zeros(rows.shape, dtype=dtype)
        size = rows.shape[-1]
        bag = torch.arange(math.prod(rows.shape[:-1]), device=rows.device)
        # What autograd itself calls for the weights of an embedding_bag; the last argument is its mode, a sum.
        dots = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            _aligned(_table(grad)), table, rows.flatten(), bag * size, bag.repeat_interleave(size), 0
        )
        return torch.where(member < values.shape[-2], dots.reshape(rows.shape), 0.0).to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> Gradients:
        grad, values, member = ctx.saved_tensors
        up = torch.where(member < values.shape[-2], up, 0.0)
        wanted = ctx.needs_input_grad
        d_grad = blend(values, up, member) if wanted[0] else None
        d_values = _spread(grad, up, member, values.shape) if wanted[1] else None
        return d_grad, d_values, None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, grad: Tensor, values: Tensor, member: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, int]:
        grad, member = (native.lift(x, dim, info.batch_size) for x, dim in ((grad, dims[0]), (member, dims[2])))
        return _match(grad, native.lift(values, dims[1], 1), member, dtype), 0


def _offsets(batch: torch.Size, step: int, device: torch.device) -> Tensor:
    """0, step, 2 step, ... (*batch, 1): where the rows of each batch entry start in a flat table."""
    return (torch.arange(math.prod(batch), device=device) * step).reshape(*batch, 1)


def _rows(member: Tensor, values: Tensor) -> Tensor:
    """Members (*batch, k, m) as rows of the flat table of values; nobody, as the leader."""
    n, member = values.shape[-2], member.long()
    member = torch.where(member < n, member, member[..., :1].clamp(max=n - 1))
    return member + _offsets(values.shape[:-2], n, member.device).unsqueeze(-1)


def _table(values: Tensor) -> Tensor:
    """(..., d) as contiguous rows (rows, d), half types as float32."""
    values = values.to(computing_dtype(values.dtype))
    return values.reshape(math.prod(values.shape[:-1]), values.shape[-1]).contiguous()


def _aligned(table: Tensor) -> Tensor:
    """Rows of a multiple of four numbers: a dot product may round by how its rows are aligned in memory."""
    odd = -table.shape[-1] % 4
    return pad(table, (0, odd)) if odd else table


def _bags(table: Tensor, weight: Tensor, rows: Tensor) -> Tensor:
    """Weighted sums (..., d) of the rows (..., m) of a table, one for every bag of m."""
    shape = (*rows.shape[:-1], table.shape[-1])
    if table.numel() == 0 or rows.numel() == 0:
        return table.new_zeros(shape)
    bags = (math.prod(rows.shape[:-1]), rows.shape[-1])
    weight = weight.to(table.dtype).reshape(bags).contiguous()
    return embedding_bag(rows.reshape(bags), table, mode="sum", per_sample_weights=weight).reshape(shape)
