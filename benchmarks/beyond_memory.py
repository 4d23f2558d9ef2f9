"""64 of 2^23 value rows of 256 numbers, in a file of 8.6 GB, forward and backward.

Scores are dot products with a query, computed chunk by chunk from the same file, with a gradient to the query; value
rows with weight are read from the file. Every boost gets a process of its own, so that no memory of the one before
counts. In each, the result and the gradient of the weights are compared with those from a tensor of the same rows.

The file is in the page cache as far as that has room, because scores have just been computed from it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import knockout
from benchmarks.common import blend, in_new_process, sparse
from benchmarks.registry import Benchmark, Effort, Row
from harness.memory import peak_resident, reset_peak_resident
from knockout.cli.habits import number, progress

N, D, K = 2**23, 256, 64
CHUNK = 2**17  # value rows that are made, or scored, at a time: 128 MiB


class Cell(NamedTuple):
    """How many value rows, and the boost."""

    n: int
    boost: float


class BeyondMemory(Benchmark[Cell]):
    """Values in a file."""

    name = "beyond_memory"
    description = "values in a file larger than memory: resident memory, seconds, and how many rows are read"
    left_out = "it needs 9 GB of disk"
    tiny = Cell(2**12, 2.0)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--rows", type=number(K, 2**40), default=N, help="of the values, 1024 bytes each (2^23)")
        parser.add_argument("--keep", action="store_true", help="do not remove the file at the end")
        folder = Path("build/beyond_memory")
        parser.add_argument("--folder", type=Path, default=folder, help="of the file (%(default)s)")

    def cells(self, options: argparse.Namespace) -> Sequence[Cell]:
        return [Cell(options.rows, boost) for boost in (4.0, 2.0, 1.0)]

    @contextmanager
    def prepared(self, cells: Sequence[Cell], options: argparse.Namespace) -> Iterator[None]:
        # The checks use a file of their own, which is small.
        self._paths = {n: options.folder / f"values-{n}.f32" for n in {self.tiny.n, *(cell.n for cell in cells)}}
        try:
            for n, path in self._paths.items():
                make(path, n)
            yield
        finally:
            if not options.keep:
                for path in self._paths.values():
                    path.unlink(missing_ok=True)

    def check(self, cell: Cell) -> None:
        run(cell._replace(n=self.tiny.n), self._paths[self.tiny.n])

    def measure(self, cell: Cell, effort: Effort) -> list[Row]:  # noqa: ARG002
        return [in_new_process(run, cell, self._paths[cell.n])]


def make(path: Path, n: int) -> None:
    """Write the file, block by block, under its name only when it is complete."""
    if path.exists() and path.stat().st_size == n * D * 4:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    unfinished = path.with_suffix(".unfinished")
    try:
        with unfinished.open("wb") as file:
            for start in range(0, n, CHUNK):
                progress(f"{path}: {start:,} of {n:,} rows")
                file.write(torch.randn(min(CHUNK, n - start), D, generator=generator).numpy().data)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def scores(path: Path, n: int, query: Tensor) -> Iterator[Tensor]:
    """Scores (chunk,) of one chunk of value rows after the other, read again in the backward pass."""

    def score(query: Tensor, start: int) -> Tensor:
        # Mapped anew: what was read of a mapping stays resident until the mapping is gone.
        shape = (min(CHUNK, n - start), D)
        return torch.from_numpy(np.memmap(path, np.float32, "c", start * D * 4, shape)) @ query

    for start in range(0, n, CHUNK):
        yield checkpoint(score, query, start, use_reentrant=False, preserve_rng_state=False)


def run(cell: Cell, path: Path) -> Row:
    """Measure one selection with its gradient, and check both; an AssertionError if they are wrong."""
    small = torch.randn(K * 4, 8).numpy()
    chunk = checkpoint(torch.neg, torch.randn(K * 4, requires_grad=True), use_reentrant=False)
    knockout.topk(small, [chunk], K, 4.0).values.sum().backward()  # load all code
    query = normalize(torch.randn(D, generator=torch.Generator().manual_seed(1)), dim=0).requires_grad_()
    upstream = torch.randn(K, D, generator=torch.Generator().manual_seed(2))
    values, read = np.memmap(path, np.float32, "r", shape=(cell.n, D)), [0]
    start, times = reset_peak_resident(), [time.perf_counter()]

    picked = knockout.select(scores(path, cell.n, query), K, cell.boost)
    times.append(time.perf_counter())
    out = picked.apply(values, progress=lambda _, total: read.append(total))
    times.append(time.perf_counter())
    (d_query,) = torch.autograd.grad(out, query, upstream, retain_graph=True)
    times.append(time.perf_counter())
    most = peak_resident()

    # The same value rows, read into a tensor.
    member, weight = sparse(picked)
    wanted, place = member[member < cell.n].unique(return_inverse=True)
    begin = time.perf_counter()
    rows = torch.from_numpy(values[wanted.numpy()])
    by_hand = time.perf_counter() - begin
    row = torch.full_like(member, len(wanted))
    row[member < cell.n] = place
    expected = blend(rows, weight, row)
    # With a low boost these are sums of a hundred thousand rows in another order.
    tolerance = 1e-5 if len(wanted) < 100 * K else 1e-4
    gradients = [torch.autograd.grad(each, weight, upstream, retain_graph=True)[0] for each in (out, expected)]
    assert_close(out, expected, rtol=tolerance, atol=tolerance)
    assert_close(*gradients, rtol=tolerance, atol=tolerance)
    assert_close(read[-1], len(wanted))
    assert_close(d_query.isfinite().all().item(), True)
    selecting, applying, back = (later - earlier for earlier, later in pairwise(times))
    return {
        **cell._asdict(), "rows read": read[-1], "scores and select, s": selecting, "apply, s": applying,
        "values[rows] by hand, s": by_hand, "backward, s": back,
        "resident before, MiB": start / 2**20, "resident at most, MiB": most / 2**20,
    }  # fmt: skip


BENCHMARK = BeyondMemory()
