"""Values that do not fit in memory: 64 of 2^23 rows of 256 numbers, in a file of 8.6 GB, forward and backward.

Scores are dot products with a query, computed chunk by chunk from the same file, with a gradient to the query; rows
that carry weight are read from the file. What is measured: the most memory that the process has resident, seconds, and
how many rows are read. Each boost gets a fresh process, so that nothing that was done before counts. The result and the
gradient of the weights are compared with those from a tensor of the same rows, read by hand.

The file is in the page cache as far as that has room: scores have just been computed from it. It needs 9 GB of disk and
is removed at the end, unless it is to be kept.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

import knockout
from benchmarks.timing import peak, save
from knockout.gather import blend

N, D, K = 2**23, 256, 64
CHUNK = 2**17  # rows that are made, or scored, at a time: 128 MiB
BOOSTS = (4.0, 2.0, 1.0)
FOLDER = Path("build/beyond_memory")


def make(path: Path, n: int) -> None:
    """The file, in blocks, under its name only when it is whole."""
    if path.exists() and path.stat().st_size == n * D * 4:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    unfinished = path.with_suffix(".unfinished")
    try:
        with unfinished.open("wb") as file:
            for start in range(0, n, CHUNK):
                file.write(torch.randn(min(CHUNK, n - start), D, generator=generator).numpy().data)
                print(f"\r{path}: {start + CHUNK:,} of {n:,} rows", end="", flush=True)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
        print()


def scores(path: Path, n: int, query: Tensor) -> Iterator[Tensor]:
    """Scores (chunk,) of one chunk of rows after the other, read again in the backward pass instead of being kept."""

    def score(query: Tensor, start: int) -> Tensor:
        # Mapped anew: what was touched of a mapping stays resident until it is gone.
        shape = (min(CHUNK, n - start), D)
        return torch.from_numpy(np.memmap(path, np.float32, "c", start * D * 4, shape)) @ query

    for start in range(0, n, CHUNK):
        yield checkpoint(score, query, start, use_reentrant=False, preserve_rng_state=False)


def measure(path: Path, n: int, boost: float) -> dict[str, Any]:
    """One selection with its gradient; to be run in a process of its own."""
    small = torch.randn(K * 4, 8).numpy()
    knockout.topk(small, torch.randn(K * 4, requires_grad=True), K).values.sum().backward()  # whatever is set up once
    query = normalize(torch.randn(D, generator=torch.Generator().manual_seed(1)), dim=0).requires_grad_()
    values, read, times = np.memmap(path, np.float32, "r", shape=(n, D)), [0], [time.perf_counter()]
    start = peak(anew=True)

    picked = knockout.select(scores(path, n, query), K, boost)
    times.append(time.perf_counter())
    out = picked.apply(values, progress=lambda _, total: read.append(total))
    times.append(time.perf_counter())
    upstream = torch.randn(K, D, generator=torch.Generator().manual_seed(2))
    (d_query,) = torch.autograd.grad(out, query, upstream, retain_graph=True)
    times.append(time.perf_counter())
    most = peak()

    # By hand: the same rows, as a tensor.
    member, weight = picked._plan.member, picked._plan.weight  # type: ignore[attr-defined]
    wanted, place = member[member < n].long().unique(return_inverse=True)
    begin = time.perf_counter()
    table = torch.from_numpy(values[wanted.numpy()])
    hand = time.perf_counter() - begin
    of_table = torch.full_like(member, len(wanted))
    of_table[member < n] = place.to(member.dtype)
    expected = blend(table, weight, of_table)
    # With a low boost, sums of a hundred thousand rows in another order.
    far = 1e-5 if len(wanted) < 100 * K else 1e-4
    check_close = partial(torch.testing.assert_close, rtol=far, atol=far)
    check_close(out, expected)
    gradients = [torch.autograd.grad(each, weight, upstream, retain_graph=True)[0] for each in (out, expected)]
    check_close(*gradients)
    assert d_query.isfinite().all()
    assert read[-1] == len(wanted)
    chosen, blended, back = (later - earlier for earlier, later in pairwise(times))
    return {
        "boost": boost, "rows read": read[-1], "n": n, "scores and select, s": round(chosen, 2),
        "apply, s": round(blended, 4), "values[rows] by hand, s": round(hand, 4), "backward, s": round(back, 2),
        "resident before, MiB": round(start), "resident at most, MiB": round(most),
    }  # fmt: skip


def main() -> None:
    """A table."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.beyond_memory", description=__doc__)
    options.add_argument("--rows", type=int, default=N, help="1024 bytes each, on disk")
    options.add_argument("--keep", action="store_true", help="do not remove the file")
    chosen = options.parse_args()
    path = FOLDER / f"values-{chosen.rows}.f32"
    try:
        make(path, chosen.rows)
        rows = []
        for boost in BOOSTS:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                rows.append(process.submit(measure, path, chosen.rows, boost).result())
            print(", ".join(f"{name}: {value:,}" for name, value in rows[-1].items()), flush=True)
    finally:
        if not chosen.keep:
            path.unlink(missing_ok=True)
    print(save("beyond_memory", rows))


if __name__ == "__main__":
    main()
