"""Values that are no tensor: rows that are read where they lie, some at a time, and only those that carry weight.

The arithmetic is that of ``knockout.gather``, over places instead of slots. A place p, one of k times m, holds the
candidate j(p) with weight w(p) for slot s(p). With V the rows and G the gradient of the result,

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

from knockout.checks import computing_dtype
from knockout.sources import RowSource, as_tensor, check_source, is_source, named, reader_of

__all__ = ["Progress", "RowSource", "blend_rows", "check_source", "is_source"]

BLOCK = 2**23  # numbers that are read at a time: 64 MiB of float64, the widest there is
PATIENCE = 2.0  # seconds that a read may take before a line on the terminal says how far it is

Progress = Callable[[int, int], object] | Literal[False] | None


def blend_rows(
    source: RowSource, weight: Tensor, member: Tensor, hard: bool = False, progress: Progress = None
) -> Tensor:
    """Weighted sums (*batch, k, d) of the rows of a source (n, d) that each slot's members name.

    weight and member have shape (*batch, k, m), the leader first; a member of n stands for nobody, and a slot without
    anybody gives 0. A slot with NaN for a first weight is spoiled: it gives NaN, and nothing is read for it. With
    ``hard`` only the leaders' rows are read, and are the result; a slot that has nobody in the first place gives 0. The
    gradient of the weights is the same; it reads the rows once more, unless they were one block and are still there.

    The result has the dtype of the rows, and is on the device of the weights.

    >>> import numpy as np, torch
    >>> from knockout.rows import blend_rows
    >>> weight, member = torch.tensor([[0.75, 0.25], [1.0, 0.0]]), torch.tensor([[4, 0], [2, 5]])
    >>> blend_rows(np.arange(10.0).reshape(5, 2), weight, member)
    tensor([[6., 7.],
            [4., 5.]], dtype=torch.float64)
    """
    if torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            "values that are no tensor cannot be read under vmap or torch.func; pass a tensor, or batch dimensions"
        )
    out: Tensor = _Blend.apply(weight, member, source, hard, progress)  # type: ignore[no-untyped-call]
    return out


# --- what is computed ---


class _Blend(Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, member: Tensor, source: RowSource, hard: bool, progress: Progress) -> Tensor:
        reader, slots = reader_of(source), weight.shape[:-1]
        read = 1 if hard else weight.shape[-1]  # places of each slot
        places = _places(weight[..., :read], member[..., :read], reader.shape[0])
        out, kept, weights = None, None, weight.flatten()
        for block in _blocks(reader, places, weight.device, progress):
            dtype, table = block.rows.dtype, block.rows.to(computing_dtype(block.rows.dtype))
            if out is None:
                out = table.new_zeros(slots.numel(), table.shape[-1])
            if hard:
                out[block.place] = table[block.which]
            else:
                out += _bags(table, block, weights[block.place], read, len(out))
            kept = block if len(block.rows) == len(places.rows) and not hard else None
        assert out is not None  # there is a block, be it empty
        ctx.save_for_backward(weight, member)
        ctx.source, ctx.kept, ctx.progress = source, kept, progress
        spoiled = weight[..., :1].isnan().any(dim=-1, keepdim=True)
        return torch.where(spoiled, torch.nan, out.reshape(*slots, out.shape[-1])).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, member = ctx.saved_tensors
        d_weight = _Match.apply(grad, weight.detach(), member, ctx.source, ctx.kept, ctx.progress)  # type: ignore[no-untyped-call]
        return d_weight, None, None, None, None


class _Match(Function):
    @staticmethod
    def forward(
        ctx: Any,
        grad: Tensor,
        weight: Tensor,
        member: Tensor,
        source: RowSource,
        kept: _Block | None,
        progress: Progress,
    ) -> Tensor:
        reader, size = reader_of(source), weight.shape[-1]
        out = torch.zeros_like(weight, memory_format=torch.contiguous_format).flatten()
        grads = grad.reshape(weight.shape[:-1].numel(), grad.shape[-1]).contiguous()
        if kept is not None:
            blocks: Iterator[_Block] = iter([kept])
        else:
            blocks = _blocks(reader, _places(weight, member, reader.shape[0]), weight.device, progress)
        for block in blocks:
            table = block.rows.to(computing_dtype(block.rows.dtype))
            if block.which.numel() == 0 or table.numel() == 0:
                continue
            slot = block.place // size
            # What autograd calls for the weights of an embedding_bag; the last argument is its mode, a sum.
            dots = torch.ops.aten._embedding_bag_per_sample_weights_backward(
                grads.to(table.dtype), table, block.which, torch.zeros_like(slot[:1]), slot, 0
            )
            out[block.place] = dots.to(out.dtype)
        ctx.save_for_backward(weight, member)
        ctx.source, ctx.progress = source, progress
        return out.reshape(weight.shape)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        weight, member = ctx.saved_tensors
        up = torch.where(weight.isnan(), weight, up)  # a spoiled slot stays one
        return blend_rows(ctx.source, up, member, progress=ctx.progress), None, None, None, None, None


def _bags(table: Tensor, block: _Block, weight: Tensor, size: int, count: int) -> Tensor:
    """Weighted sums (count, d) of the rows of a block, by slot."""
    if block.which.numel() == 0 or table.numel() == 0:
        return table.new_zeros(count, table.shape[-1])
    starts = torch.searchsorted(block.place, torch.arange(count, device=table.device) * size)
    return embedding_bag(block.which, table, starts, mode="sum", per_sample_weights=weight.to(table.dtype))


# --- what is read ---


class _Places(NamedTuple):
    """The places that have somebody, in their order."""

    place: Tensor  # (places,): flat, out of *batch, k, m
    which: Tensor  # (places,): where in rows the candidate is
    rows: Tensor  # (rows,): the candidates, each once, ascending


class _Block(NamedTuple):
    """Rows that were read, and the places that they are for."""

    rows: Tensor  # (rows, d)
    place: Tensor  # (places,), ascending
    which: Tensor  # (places,): the row of each


def _places(weight: Tensor, member: Tensor, n: int) -> _Places:
    place = ((member < n) & ~weight.isnan()).flatten().nonzero().squeeze(-1)
    rows, which = torch.unique(member.flatten()[place], return_inverse=True)
    return _Places(place, which, rows)


def _blocks(reader: RowSource, places: _Places, device: torch.device, progress: Progress) -> Iterator[_Block]:
    """One after the other; if nobody is wanted a single one, empty, for the sake of its dtype."""
    width = reader.shape[1]
    rows, total, dtype = places.rows.long().cpu().numpy(), len(places.rows), None
    size = max(1, BLOCK // max(1, width))
    say = _Teller(progress, total)
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
        say(start + len(wanted))
    say.end()


def _by_block(places: _Places, size: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each block of so many rows: its first row, its places, and the row in the block of each."""
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


class _Teller:
    """Says how far a read is: to a callable, or on a terminal once it takes long."""

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
