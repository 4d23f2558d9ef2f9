"""The kernels of gather.py. Members out of range are padding, and what they would point to is not read.

The sum of a slot is added up in an order that depends on the number of columns alone: not on how many members there is
room for, nor on the other slots that a program works on.
"""

from __future__ import annotations

import triton
import triton.language as tl

from knockout.ops.triton.arithmetic import rounded, widened

_SCAN = tl.constexpr(128)  # members of each slot that are looked at together, to find the last one


@triton.jit
def _members_up_to(member, slot, inside, m, n):
    """The number of places up to the last member of any of these slots (slots, 1)."""
    last = tl.zeros([1], tl.int32)
    for start in range(0, m, _SCAN):
        at = start + tl.arange(0, _SCAN)[None, :]
        j = tl.load(member + slot * m + at, inside & (at < m), other=-1)
        found = tl.where((j >= 0) & (j < n), at + 1, 0)
        last = tl.maximum(last, tl.max(tl.max(found, 1), 0))
    return tl.max(last, 0)


@triton.jit
def _table_of(row, inside, tables, row_stride, TABLES: tl.constexpr):
    """Where the values of batch rows begin."""
    if TABLES:
        return tl.load(tables + row, inside, other=0).to(tl.int64) * row_stride
    else:
        return row * row_stride


@triton.jit(do_not_specialize=["slots", "k", "m", "n", "d", "row_stride", "value_stride"])
def blend_kernel(
    values, weight, member, valid, tables, out, slots, k, m, n, d, row_stride, value_stride, SLOTS: tl.constexpr,
    MEMBERS: tl.constexpr, COLUMNS: tl.constexpr, NUMBER: tl.constexpr, HARD: tl.constexpr, HAS_VALID: tl.constexpr,
    TABLES: tl.constexpr,
):  # fmt: skip
    """The results of SLOTS slots (axis 0), COLUMNS of them (axis 1), MEMBERS members at a time."""
    slot = (tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS))[:, None]
    inside = slot < slots
    row = slot // k
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    table = _table_of(row, inside, tables, row_stride, TABLES)
    if HARD:
        leader = tl.load(member + slot * m, inside, other=-1).to(tl.int64)
        real = (leader >= 0) & (leader < n)
        x = tl.load(values + table + leader * value_stride + column, real & (column < d), other=0.0)
        total = widened(x, NUMBER)
    else:
        total = tl.zeros([SLOTS, COLUMNS], NUMBER)
        for start in range(0, _members_up_to(member, slot, inside, m, n), MEMBERS):
            at = start + tl.arange(0, MEMBERS)[None, :]
            j = tl.load(member + slot * m + at, inside & (at < m), other=-1).to(tl.int64)
            real = (j >= 0) & (j < n)
            w = tl.load(weight + slot * m + at, real, other=0.0).to(NUMBER)
            here = (table + j * value_stride)[:, :, None] + column[:, None, :]
            x = tl.load(values + here, real[:, :, None] & (column < d)[:, None, :], other=0.0)
            total += tl.sum(w[:, :, None] * widened(x, NUMBER), 1)
    if HAS_VALID:
        total = tl.where(tl.load(valid + row, inside, other=1) != 0, total, float("nan"))
    tl.store(out + slot * d + column, rounded(total, out.dtype.element_ty), inside & (column < d))


@triton.jit
def _members_at(member, entries, m, n, ENTRIES: tl.constexpr):
    """Of ENTRIES entries (entries, 1) of the flat list of all members: number, slot, member, and whether it is one."""
    entry = (tl.program_id(0).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES))[:, None]
    j = tl.load(member + entry, entry < entries, other=-1).to(tl.int64)
    return entry, entry // m, j, (j >= 0) & (j < n)


@triton.jit(do_not_specialize=["entries", "k", "m", "n", "d", "row_stride", "value_stride"])
def match_kernel(
    grad, values, member, tables, out, entries, k, m, n, d, row_stride, value_stride, ENTRIES: tl.constexpr,
    COLUMNS: tl.constexpr, NUMBER: tl.constexpr, TABLES: tl.constexpr,
):  # fmt: skip
    """The derivatives of ENTRIES weights, COLUMNS of the values at a time."""
    entry, slot, j, real = _members_at(member, entries, m, n, ENTRIES)
    total = tl.zeros([ENTRIES, 1], NUMBER)
    if tl.max(tl.max(real.to(tl.int32), 1), 0) > 0:
        here = _table_of(slot // k, real, tables, row_stride, TABLES) + j * value_stride
        for start in range(0, d, COLUMNS):
            column = start + tl.arange(0, COLUMNS)[None, :]
            inside = real & (column < d)
            g = widened(tl.load(grad + slot * d + column, inside, other=0.0), NUMBER)
            x = widened(tl.load(values + here + column, inside, other=0.0), NUMBER)
            total += tl.sum(g * x, 1, keep_dims=True)
    tl.store(out + entry, rounded(total, out.dtype.element_ty), entry < entries)


@triton.jit(do_not_specialize=["entries", "k", "m", "n", "d"])
def spread_kernel(
    grad, weight, member, out, entries, k, m, n, d, ENTRIES: tl.constexpr, COLUMNS: tl.constexpr, NUMBER: tl.constexpr
):
    """Write the derivatives of the value rows of ENTRIES members, where every batch row has values of its own."""
    entry, slot, j, real = _members_at(member, entries, m, n, ENTRIES)
    if tl.max(tl.max(real.to(tl.int32), 1), 0) > 0:
        w = tl.load(weight + entry, real, other=0.0).to(NUMBER)
        target = (slot // k * n + j) * d
        for start in range(0, d, COLUMNS):
            column = start + tl.arange(0, COLUMNS)[None, :]
            inside = real & (column < d)
            g = widened(tl.load(grad + slot * d + column, inside, other=0.0), NUMBER)
            tl.store(out + target + column, rounded(w * g, out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["entries", "k", "m", "n"])
def invert_kernel(weight, member, slot_of, weight_of, entries, k, m, n, ENTRIES: tl.constexpr):
    """Write the slot and the weight of each candidate that is one of ENTRIES members."""
    entry, slot, j, real = _members_at(member, entries, m, n, ENTRIES)
    candidate = slot // k * n + j
    tl.store(slot_of + candidate, slot, real)
    tl.store(weight_of + candidate, tl.load(weight + entry, real, other=0.0), real)


@triton.jit(do_not_specialize=["rows", "n", "d", "shared"])
def spread_shared_kernel(
    grad, slot_of, weight_of, batch_rows, out, rows, n, d, shared, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    NUMBER: tl.constexpr,
):  # fmt: skip
    """The derivatives of ROWS of all value rows (axis 0), COLUMNS of them (axis 1).

    Each is a sum over the ``shared`` batch rows that have this value row, in their order.
    """
    value_row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    in_rows = value_row < rows
    table = value_row // n
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros([ROWS, COLUMNS], NUMBER)
    for i in range(shared):
        row = tl.load(batch_rows + table * shared + i, in_rows, other=0).to(tl.int64)
        candidate = row * n + value_row % n
        slot = tl.load(slot_of + candidate, in_rows, other=-1)
        w = tl.load(weight_of + candidate, slot >= 0, other=0.0).to(NUMBER)
        g = widened(tl.load(grad + slot * d + column, (slot >= 0) & (column < d), other=0.0), NUMBER)
        total += w * g
    tl.store(out + value_row * d + column, rounded(total, out.dtype.element_ty), in_rows & (column < d))
