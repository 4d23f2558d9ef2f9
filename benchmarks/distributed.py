"""Candidates on many ranks: the same result as in one process, how many bytes travel, and how long it takes.

    torchrun --nproc-per-node 4 -m benchmarks.distributed

Bytes are counted twice: those that ranks hand over to be sent to others, and those that the loopback interface has
carried, with whatever TCP adds and other programs send. The rival gathers all values and scores on all ranks and calls
``knockout.topk`` there; where that is a GiB for each of them, it is only reckoned.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor

import knockout
from benchmarks.timing import save
from knockout import distributed
from knockout.boost import Relative

CELLS = [(2**14, 64, 16), (2**17, 64, 64), (2**17, 256, 64), (2**20, 64, 64), (2**20, 256, 64), (2**20, 256, 1024)]
BOOSTS = (1.0, 4.0, 16.0, 64.0)
TURNS = 5
MOST = 2**26  # numbers that the rival gathers


def inputs(n: int, d: int, rank: int, size: int) -> tuple[Tensor, Tensor]:
    """Values and scores of this rank: a part of n, not the same on each."""
    ends = [n * (rank * rank + rank) // (size * size + size) for rank in range(size + 1)]
    generator = torch.Generator().manual_seed(rank)
    count = ends[rank + 1] - ends[rank]
    return torch.rand(count, d, generator=generator), torch.randn(count, generator=generator)


def gathered(values: Tensor, scores: Tensor, sizes: list[int], k: int, boost: float) -> Any:
    """The rival; its gradients of values and scores are those of all ranks' candidates, and are cut down."""
    most, rank = max(sizes), dist.get_rank()
    whole = []
    for mine in (values.detach(), scores.detach()):
        padded = mine.new_zeros(most, *mine.shape[1:])
        padded[: len(mine)] = mine
        all_ = mine.new_empty(len(sizes) * most, *mine.shape[1:])
        dist.all_gather_into_tensor(all_, padded)
        parts = [part[:count] for part, count in zip(all_.split(most), sizes, strict=True)]
        whole.append(torch.cat(parts).requires_grad_())
    out = knockout.topk(whole[0], whole[1], k, boost)
    out.values.sin().sum().backward()
    first = sum(sizes[:rank])
    gradients = [x.grad[first : first + sizes[rank]] for x in whole if x.grad is not None]
    return out, *gradients


def spread(values: Tensor, scores: Tensor, k: int, boost: float) -> Any:
    """Ours."""
    leaves = values.detach().requires_grad_(), scores.detach().requires_grad_()
    out = distributed.topk(*leaves, k, boost)
    out.values.sin().sum().backward()
    return out, leaves[0].grad, leaves[1].grad


def carried() -> int:
    """Bytes that the loopback interface has carried so far; 0 where that cannot be told."""
    table = Path("/proc/net/dev")
    if not table.exists():
        return 0
    return next(int(line.split(":")[1].split()[0]) for line in table.read_text().splitlines() if "lo:" in line)


def measured(run: Callable[[], Any]) -> tuple[float, int]:
    """Median seconds of a call, and bytes on the wire, on all ranks together."""
    times, wire = [], 0
    for _ in range(TURNS):
        dist.barrier()
        before, begin = carried(), time.perf_counter()
        run()
        dist.barrier()
        times.append(time.perf_counter() - begin)
        wire = carried() - before
    return sorted(times)[TURNS // 2], wire


def cell(n: int, d: int, k: int, boost: float) -> dict[str, Any]:
    """One size: results compared, then bytes and seconds."""
    rank, size = dist.get_rank(), dist.get_world_size()
    values, scores = inputs(n, d, rank, size)
    count = torch.zeros(size, dtype=torch.int64)
    count[rank] = len(scores)
    dist.all_reduce(count)
    sizes = count.tolist()
    ours, rival = spread(values, scores, k, boost), n * d <= MOST
    if rival:
        theirs = gathered(values, scores, sizes, k, boost)
        for one, other in zip((*ours[0], *ours[1:]), (*theirs[0], *theirs[1:]), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    with distributed.traffic() as traffic:
        spread(values, scores, k, boost)
    kinds = ["scores", "gradients of scores", "values", "gradients of values"]
    sent = torch.tensor([traffic.total, *(traffic.sent[kind] for kind in kinds)])
    dist.all_reduce(sent)
    seconds, wire = measured(lambda: spread(values, scores, k, boost))
    all_ = measured(lambda: gathered(values, scores, sizes, k, boost)) if rival else (None, None)
    return {
        "n": n, "d": d, "k": k, "boost": boost, "ranks": size,
        "sent": int(sent[0]), **{kind: int(each) for kind, each in zip(kinds, sent[1:], strict=True)},
        "gathering all values": 4 * n * d * (size - 1), "wire": wire, "wire of gathering": all_[1],
        "seconds": seconds, "seconds of gathering": all_[0],
    }  # fmt: skip


def shown(rows: list[dict[str, Any]]) -> Table:
    """A line a cell."""
    columns = ("n", "d", "k", "boost", "sent, kB", "of it scores", "and back", "all values, kB", "times less")
    table = Table(*columns, "on the wire, kB", "all values", "ms", "all values")
    for row in rows:
        sent, all_ = row["sent"] / 1e3, row["gathering all values"] / 1e3
        wire, seconds = row["wire of gathering"], row["seconds of gathering"]
        table.add_row(
            f"{row['n']}", f"{row['d']}", f"{row['k']}", f"{row['boost']:g}", f"{sent:.0f}",
            f"{row['scores'] / 1e3:.0f}", f"{row['gradients of scores'] / 1e3:.0f}",
            f"{all_:.0f}", f"{all_ / sent:.0f}",
            f"{row['wire'] / 1e3:.0f}", f"{wire / 1e3:.0f}" if wire else "-",
            f"{1e3 * row['seconds']:.1f}", f"{1e3 * seconds:.1f}" if seconds else "-",
        )  # fmt: skip
    return table


def main() -> None:
    """All sizes with the default boost, and one with others."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = []
    for (n, d, k), boost in itertools.chain(((size, 4.0) for size in CELLS), ((CELLS[-2], boost) for boost in BOOSTS)):
        rows.append(cell(n, d, k, boost))
        if dist.get_rank() == 0:
            print(f"n = {n}, d = {d}, k = {k}, {Relative(boost)}: done", flush=True)
    if dist.get_rank() == 0:
        Console(width=180).print(shown(rows))
        print(f"written to {save(f'distributed-{dist.get_world_size()}', rows)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
