"""Sorting in registers: a bitonic network on blocks (rows, width), every row by itself, in ascending order.

A block of 2^d numbers is seen as a cube with d dimensions of two. A step compares the two ends of one dimension: the
other end is the sum of both minus one's own, which is exact for integers, overflow or not.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def log2(size: int) -> int:
    """The binary logarithm of a power of two."""
    return size.bit_length() - 1


@triton.constexpr_function
def _cube(dims: int) -> list[int]:
    return [2] * dims


@triton.constexpr_function
def _line(dims: int, dim: int) -> list[int]:
    return [2 if i == dim else 1 for i in range(dims)]


@triton.jit
def _ends(dims: tl.constexpr, bit: tl.constexpr):
    """0 and 1 along the dimension of a bit of the index."""
    return tl.reshape(tl.arange(0, 2), _line(dims, dims - 1 - bit))


@triton.jit
def _other_end(x, dims: tl.constexpr, bit: tl.constexpr):
    return tl.sum(x, dims - 1 - bit, keep_dims=True) - x


@triton.jit
def _compare(key, payload, descending, dims: tl.constexpr, bit: tl.constexpr, WIDE: tl.constexpr):
    """Order the two ends of a dimension, in the runs that are not ``descending``; the other way round in those."""
    upper = _ends(dims, bit) ^ descending
    other = _other_end(key, dims, bit)
    if WIDE:
        other_payload = _other_end(payload, dims, bit)
        greater = (key > other) | ((key == other) & (payload > other_payload))
        swap = greater.to(tl.int32) != upper
        payload = tl.where(swap, other_payload, payload)
    else:
        swap = (key > other).to(tl.int32) != upper
    return tl.where(swap, other, key), payload


@triton.jit
def sort(key, payload, WIDE: tl.constexpr):
    """Sort int64 keys; if WIDE, by key and payload, both int64. Otherwise the payload is returned as it is.

    Stage s merges runs of 2^(s-1), alternately ascending and descending, into runs of 2^s. The stages are a loop at run
    time: unrolled, they would take many times as long to compile.
    """
    dims: tl.constexpr = log2(key.numel)
    width: tl.constexpr = log2(key.shape[1])
    shape: tl.constexpr = key.shape
    index = tl.reshape(tl.arange(0, key.numel) % key.shape[1], _cube(dims))
    key = tl.reshape(key, _cube(dims))
    if WIDE:
        payload = tl.reshape(payload, _cube(dims))
    for stage in range(1, width + 1):
        descending = (index >> stage) & 1
        for step in tl.static_range(width):
            if stage >= width - step:
                key, payload = _compare(key, payload, descending, dims, width - 1 - step, WIDE)
    key = tl.reshape(key, shape)
    if WIDE:
        payload = tl.reshape(payload, shape)
    return key, payload


@triton.jit
def flip(x):
    """Each row of an integer block (rows, width) backwards."""
    dims: tl.constexpr = log2(x.numel)
    width: tl.constexpr = log2(x.shape[1])
    shape: tl.constexpr = x.shape
    x = tl.reshape(x, _cube(dims))
    for bit in tl.static_range(width):
        x = _other_end(x, dims, bit)
    return tl.reshape(x, shape)


@triton.jit
def part(x, PART: tl.constexpr, WIDTH: tl.constexpr):
    """The columns from PART * WIDTH to (PART + 1) * WIDTH of an integer block."""
    rows: tl.constexpr = x.shape[0]
    parts: tl.constexpr = x.shape[1] // WIDTH
    wanted = tl.arange(0, parts)[None, :, None] == PART
    return tl.sum(tl.where(wanted, tl.reshape(x, [rows, parts, WIDTH]), 0), 1)
