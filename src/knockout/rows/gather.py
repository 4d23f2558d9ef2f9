"""The weighted gather over a source of value rows.

The arithmetic is that of ops/autograd/gather.py, over places instead of slots. A place p, one of k times m, holds the
candidate j(p) with weight w(p) for slot s(p). With V the value rows and G the gradient of the result,

    blend    out[s] = sum over p in s of  w(p) V[j(p)]         the result
    match    dw(p)  = <V[j(p)], G[s(p)]>                       the gradient of the weights

and each is the derivative of the other. Both go through the source once, in ascending order, and hold one block.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import embedding_bag

from knockout.dtypes import computing_dtype
from knockout.rows.sources import RowSource, as_tensor, named, reader_of
from knockout.torch_private import embedding_bag_weight_gradient, is_transforming

BLOCK = 2**23  # numbers that are read at a time: 64 MiB of float64, the widest there is
PATIENCE = 2.0  # seconds that a read may take before a line on the terminal tells its progress

Progress = Callable[[int, int], object] | Literal[False] | None


def blend_rows(
    source: RowSource,
    weight: Tensor,
    member: Tensor,
    valid: Tensor | None = None,
    hard: bool = False,
    progress: Progress = None,
) -> Tensor:
    """Weighted sums (*batch, k, d) of the value rows of a source (n, d) that are the members of each slot.

    weight and member have shape (*batch, k, m), the leader first; a member of n is padding, and a slot of padding alone
    gives 0. ``valid`` (*batch, 1) is False for rows whose result is NaN; nothing is read for them. With ``hard`` only
    the leaders' value rows are read, and are the result; a slot whose first place is padding gives 0. The gradient of
    the weights is the same; it reads the value rows once more, unless they were one block and are still in memory.

    The result has the dtype of the value rows, and is on the device of the weights.

    >>> import numpy as np, torch
    >>> from knockout.rows.gather import blend_rows
    >>> weight, member = torch.tensor([[0.75, 0.25], [1.0, 0.0]]), torch.tensor([[4, 0], [2, 5]])
    >>> blend_rows(np.arange(10.0).reshape(5, 2), weight, member)
    tensor([[6., 7.],
            [4., 5.]], dtype=torch.float64)
    """
    if is_transforming():
        raise NotImplementedError(
            "values that are no tensor cannot be read under vmap or torch.func; pass a tensor, or batch dimensions"
        )
    if valid is None:
        valid = weight.new_ones((*weight.shape[:-2], 1), dtype=torch.bool)
    # A hard selection reads other value rows than its gradient.
    keep = torch.is_grad_enabled() and weight.requires_grad and not hard
    out: Tensor = _Blend.apply(weight, member, valid, source, hard, keep, progress)  # type: ignore[no-untyped-call]
    return out


class _Blend(Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        member: Tensor,
        valid: Tensor,
        source: RowSource,
        hard: bool,
        keep: bool,
        progress: Progress,
    ) -> Tensor:
        reader, slots = reader_of(source), weight.shape[:-1]
        read = 1 if hard else weight.shape[-1]  # places of each slot
        places = _places(member[..., :read], valid, reader.shape[0])
        out, kept, weights = None, tuple[Tensor, ...](), weight.flatten()
        for block in _blocks(reader, places, weight.device, progress):
            dtype, table = block.rows.dtype, block.rows.to(computing_dtype(block.rows.dtype))
            if out is None:
                out = table.new_zeros(slots.numel(), table.shape[-1])
            if hard:
                out[block.place] = table[block.which]
            else:
                out += _weighted_sums(table, block, weights[block.place], read, len(out))
            if keep and len(block.rows) == len(places.rows):
                # Our own readers return new memory. What another source returned may be its buffer, or its table.
                kept = block._replace(rows=block.rows.clone()) if reader is source else block
        assert out is not None  # there is always a block, perhaps an empty one
        ctx.save_for_backward(member, valid, *kept)
        ctx.source, ctx.shape, ctx.dtype, ctx.progress = source, tuple(reader.shape), weight.dtype, progress
        return torch.where(valid.unsqueeze(-1), out.reshape(*slots, out.shape[-1]), torch.nan).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        member, valid, *kept = ctx.saved_tensors
        block = _Block(*kept) if kept else None
        if block is None and (shape := tuple(reader_of(ctx.source).shape)) != ctx.shape:
            raise RuntimeError(
                f"values: {named(ctx.source)} had shape {ctx.shape} in the forward pass and has {shape} now, in the "
                f"backward pass, which reads it again: it must not change in between"
            )
        d_weight = _Match.apply(grad, member, valid, ctx.source, block, ctx.dtype, ctx.progress)  # type: ignore[no-untyped-call]
        return d_weight, *(None,) * 6


class _Match(Function):
    @staticmethod
    def forward(
        ctx: Any,
        grad: Tensor,
        member: Tensor,
        valid: Tensor,
        source: RowSource,
        kept: _Block | None,
        dtype: torch.dtype,
        progress: Progress,
    ) -> Tensor:
        reader, size = reader_of(source), member.shape[-1]
        out = torch.zeros(member.numel(), dtype=dtype, device=member.device)
        grads = grad.reshape(member.shape[:-1].numel(), grad.shape[-1]).contiguous()
        if kept is not None:
            blocks: Iterator[_Block] = iter([kept])
        else:
            blocks = _blocks(reader, _places(member, valid, reader.shape[0]), member.device, progress)
        for block in blocks:
            table = block.rows.to(computing_dtype(block.rows.dtype))
            if block.which.numel() == 0 or table.numel() == 0:
                continue
            slot = block.place // size
            dots = embedding_bag_weight_gradient(grads.to(table.dtype), table, block.which, slot)
            out[block.place] = dots.to(dtype)
        ctx.save_for_backward(member, valid)
        ctx.source, ctx.progress = source, progress
        return out.reshape(member.shape)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        member, valid = ctx.saved_tensors
        return blend_rows(ctx.source, up, member, valid, progress=ctx.progress), *(None,) * 6


def _weighted_sums(table: Tensor, block: _Block, weight: Tensor, size: int, count: int) -> Tensor:
    """Weighted sums (count, d) of the value rows of a block, one for each slot."""
    if block.which.numel() == 0 or table.numel() == 0:
        return table.new_zeros(count, table.shape[-1])
    starts = torch.searchsorted(block.place, torch.arange(count, device=table.device) * size)
    return embedding_bag(block.which, table, starts, mode="sum", per_sample_weights=weight.to(table.dtype))


class _Places(NamedTuple):
    """The places that are not padding, in their order."""

    place: Tensor  # (places,): flat, out of *batch, k, m
    which: Tensor  # (places,): the candidate, as an index into rows
    rows: Tensor  # (rows,): all candidates among them, each once, ascending


class _Block(NamedTuple):
    """Value rows that were read, and the places that they are for."""

    rows: Tensor  # (rows, d); perhaps memory of the source, which it may use again for the next block
    place: Tensor  # (places,), ascending
    which: Tensor  # (places,): the row of each


def _places(member: Tensor, valid: Tensor, n: int) -> _Places:
    place = ((member < n) & valid.unsqueeze(-1)).flatten().nonzero().squeeze(-1)
    rows, which = torch.unique(member.flatten()[place], return_inverse=True)
    return _Places(place, which, rows)


def _blocks(reader: RowSource, places: _Places, device: torch.device, progress: Progress) -> Iterator[_Block]:
    """Read the blocks one after the other; if nothing is to be read, one empty block, for the sake of its dtype."""
    width = reader.shape[1]
    rows, total, dtype = places.rows.long().cpu().numpy(), len(places.rows), None
    size = max(1, BLOCK // max(1, width))
    report = _ProgressReport(progress, total)
    for start, place, which in _by_block(places, size):
        wanted = rows[start : start + size]
        came = as_tensor(reader.take(wanted), reader)
        if came.shape != (len(wanted), width):
            raise ValueError(
                f"values: take(rows) must return an array of shape (len(rows), d), here {(len(wanted), width)}; "
                f"got shape {tuple(came.shape)} from {named(reader)}"
            )
        if dtype is not None and came.dtype != dtype:
            raise TypeError(
                f"values: take(rows) must return the same dtype every time; got {came.dtype} from {named(reader)}, "
                f"which returned {dtype} before"
            )
        dtype = came.dtype
        yield _Block(came.to(device), place, which)
        report(start + len(wanted))
    report.end()


def _by_block(places: _Places, size: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Split into blocks of ``size`` value rows: the first row of each, its places, and which of its rows these read."""
    place, which, rows = places
    if len(rows) <= size:
        yield 0, place, which
        return
    number, order = (which // size).int().sort(stable=True)
    starts = range(0, len(rows), size)
    ends = torch.searchsorted(number, torch.arange(len(starts), device=number.device), right=True).tolist()
    for start, first, last in zip(starts, [0, *ends], ends, strict=False):
        mine = order[first:last]
        yield start, place[mine], which[mine] - start


class _ProgressReport:
    """Tells how far a read is: to a callable, or on a terminal once it takes long."""

    def __init__(self, progress: Progress, total: int) -> None:
        if progress is not None and progress is not False and not callable(progress):
            raise TypeError(
                f"progress must be None, False or a function of (done, total); got {progress!r} "
                f"of type {type(progress).__name__}"
            )
        self.progress, self.total = progress, total
        self.begun, self.width = time.monotonic(), 0
        self.terminal = progress is None and sys.stderr is not None and sys.stderr.isatty()

    def __call__(self, done: int) -> None:
        if callable(self.progress):
            self.progress(done, self.total)
        elif self.terminal and time.monotonic() - self.begun > PATIENCE:
            line = f"knockout: {done:,} of {self.total:,} rows read"
            self.width = max(self.width, len(line))
            print(f"\r{line}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.width:
            print("\r" + " " * self.width + "\r", end="", file=sys.stderr, flush=True)
