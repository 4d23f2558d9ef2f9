"""The operators ``blend``, ``spread`` and ``match`` by Triton kernels: see ops/autograd/gather.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from knockout.dtypes import computing_dtype
from knockout.ops.triton.call import NUMBERS
from knockout.ops.triton.gather_kernels import (
    blend_kernel,
    invert_kernel,
    match_kernel,
    spread_kernel,
    spread_shared_kernel,
)
from knockout.ops.triton.launch import launch

_TILE = 2048  # numbers that a program reads at a time
_MEMBERS = 16  # of a slot, that are read at a time; a constant, or the order of addition would change


def blend(values: Tensor, weight: Tensor, member: Tensor, valid: Tensor | None, hard: bool) -> Tensor:
    """As the schema says."""
    *batch, k, m = member.shape
    n, d = values.shape[-2:]
    out = values.new_empty((*batch, k, d))
    if out.numel() == 0:
        return out
    values, tables, row_stride = _tables(values, batch)
    count, columns = math.prod(batch) * k, _columns(d)
    slots = max(1, _TILE // (_MEMBERS * columns))
    launch(
        blend_kernel, (triton.cdiv(count, slots), triton.cdiv(d, columns)), slots * _MEMBERS * columns, values=values,
        weight=weight.contiguous(), member=member.contiguous(),
        valid=None if valid is None else valid.contiguous().view(torch.uint8), tables=tables, out=out, slots=count, k=k,
        m=m, n=n, d=d, row_stride=row_stride, value_stride=values.stride(-2), SLOTS=slots, MEMBERS=_MEMBERS,
        COLUMNS=columns, NUMBER=_number(values), HARD=hard, HAS_VALID=valid is not None, TABLES=tables is not None,
    )  # fmt: skip
    return out


def match(grad: Tensor, values: Tensor, member: Tensor, float64: bool) -> Tensor:
    """As the schema says."""
    *batch, k, m = member.shape
    n, d = values.shape[-2:]
    out = grad.new_empty(member.shape, dtype=torch.float64 if float64 else torch.float32)
    if out.numel() == 0:
        return out
    values, tables, row_stride = _tables(values, batch)
    columns = _columns(d)
    entries = _TILE // columns
    launch(
        match_kernel, (triton.cdiv(member.numel(), entries),), _TILE, grad=grad.contiguous(), values=values,
        member=member.contiguous(), tables=tables, out=out, entries=member.numel(), k=k, m=m, n=n, d=d,
        row_stride=row_stride, value_stride=values.stride(-2), ENTRIES=entries, COLUMNS=columns, NUMBER=_number(values),
        TABLES=tables is not None,
    )  # fmt: skip
    return out


def spread(grad: Tensor, weight: Tensor, member: Tensor, shape: Sequence[int]) -> Tensor:
    """As the schema says."""
    *batch, k, m = member.shape
    *tables, n, d = shape
    rows = math.prod(tables) * n
    if member.numel() == 0 or rows * d == 0:
        return grad.new_zeros(shape)
    grad, weight, member = grad.contiguous(), weight.contiguous(), member.contiguous()
    entries, columns = member.numel(), _columns(d)
    tile = _TILE // columns
    if tables == batch:
        out = grad.new_zeros(shape)
        launch(
            spread_kernel, (triton.cdiv(entries, tile),), _TILE, grad=grad, weight=weight, member=member, out=out,
            entries=entries, k=k, m=m, n=n, d=d, ENTRIES=tile, COLUMNS=columns, NUMBER=_number(grad),
        )  # fmt: skip
        return out
    out = grad.new_empty(shape)
    slot_of = torch.full((*batch, n), -1, dtype=torch.int64, device=grad.device)
    weight_of = weight.new_empty((*batch, n))
    launch(
        invert_kernel, (triton.cdiv(entries, _TILE),), _TILE, weight=weight, member=member, slot_of=slot_of,
        weight_of=weight_of, entries=entries, k=k, m=m, n=n, ENTRIES=_TILE,
    )  # fmt: skip
    batch_rows = _batch_rows(batch, tables, grad.device)
    launch(
        spread_shared_kernel, (triton.cdiv(rows, tile), triton.cdiv(d, columns)), _TILE, grad=grad, slot_of=slot_of,
        weight_of=weight_of, batch_rows=batch_rows, out=out, rows=rows, n=n, d=d,
        shared=math.prod(batch) // math.prod(tables), ROWS=tile, COLUMNS=columns, NUMBER=_number(grad),
    )  # fmt: skip
    return out


def _number(values: Tensor) -> Any:
    return NUMBERS[computing_dtype(values.dtype)]


def _columns(d: int) -> int:
    """How many columns of the values a program takes at a time."""
    return int(min(max(triton.next_power_of_2(d), 4), 128))


def _tables(values: Tensor, batch: Sequence[int]) -> tuple[Tensor, Tensor | None, int]:
    """Values with contiguous value rows; which table (n, d) each batch row has, if no stride says so; the stride."""
    n, d = values.shape[-2:]
    if d > 1 and values.stride(-1) != 1:
        values = values.contiguous()
    try:
        return values, None, values.expand(*batch, n, d).view(math.prod(batch), n, d).stride(0)
    except RuntimeError:  # rows share tables by a pattern that is not a stride, or their memory is not one
        values = values.contiguous()
        tables = torch.arange(math.prod(values.shape[:-2]), device=values.device, dtype=torch.int32)
        return values, tables.reshape(values.shape[:-2]).expand(batch).contiguous(), n * d


def _batch_rows(batch: Sequence[int], tables: Sequence[int], device: torch.device) -> Tensor:
    """The batch rows that share each table (tables, shared), in order."""
    rows = torch.arange(math.prod(batch), dtype=torch.int32, device=device).reshape(*batch)
    own = [dim for dim, size in enumerate(tables) if size == batch[dim]]
    shared = [dim for dim, size in enumerate(tables) if size != batch[dim]]
    return rows.permute(*own, *shared).contiguous()
