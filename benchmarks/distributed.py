"""Candidates on many ranks: every rank is a process on this machine, with one thread.

Bytes are counted twice: those that ranks hand over to be sent to others, and those that the loopback interface has
carried, with what TCP adds and what other programs send. The baseline gathers all values and scores on all ranks and
calls knockout.topk there; where that is a GiB for each of them, its bytes are computed, and it is not run."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing import assert_close

import knockout
from benchmarks.registry import Benchmark, Effort, Row
from harness.timing import medians
from knockout import distributed
from knockout.cli.habits import number


class Cell(NamedTuple):
    """Sizes of all ranks together, and the boost."""

    n: int
    d: int
    k: int
    boost: float = 4.0


CELLS = [
    Cell(2**14, 64, 16),
    Cell(2**17, 64, 64),
    Cell(2**17, 256, 64),
    Cell(2**20, 64, 64),
    Cell(2**20, 256, 64),
    Cell(2**20, 256, 1024),
    *(Cell(2**20, 256, 64, boost) for boost in (1.0, 16.0, 64.0)),
]
MOST = 2**26  # numbers that the baseline gathers
FEW = 8  # columns that are compared in float64
KINDS = ("scores", "gradients of scores", "values", "gradients of values")  # of what is sent


class Distributed(Benchmark[Cell]):
    """A selection of candidates on many ranks beside gathering them all."""

    name = "distributed"
    description = "candidates on many ranks: bytes and time, beside gathering all values on all ranks"
    threads = 1
    all_cells = CELLS
    tiny = Cell(2**8, 4, 8)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--ranks", type=number(1, 1024), default=4, help="processes (%(default)s)")

    @contextmanager
    def prepared(self, cells: Sequence[Cell], options: argparse.Namespace) -> Iterator[None]:  # noqa: ARG002
        with process_group(options.ranks) as self._on_all_ranks:
            yield

    def check(self, cell: Cell) -> None:
        self._on_all_ranks(_check, cell)

    def measure(self, cell: Cell, effort: Effort) -> list[Row]:
        return [self._on_all_ranks(_measure, cell, effort.rounds)[0]]


# --- processes ------------------------------------------------------------------------------------


@contextmanager
def process_group(ranks: int) -> Iterator[Callable[..., list[Any]]]:
    """Start so many processes, which form a group; yield a function that calls a function in all of them."""
    context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        arguments = [(folder, rank, ranks, torch.get_num_threads()) for rank in range(ranks)]
        processes = [stack.enter_context(ProcessPoolExecutor(1, context, _join, each)) for each in arguments]

        def on_all_ranks(function: Callable[..., Any], *arguments: Any) -> list[Any]:
            futures = [process.submit(function, *arguments) for process in processes]
            # A rank that fails may leave the others waiting: its error comes first.
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
            return [future.result() for future in futures]

        try:
            yield on_all_ranks
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.kill()  # instead of waiting for one another until their timeout
            raise


def _join(folder: str, rank: int, ranks: int, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one handles it
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(threads)
    init = f"file://{folder}/group"
    dist.init_process_group("gloo", init, world_size=ranks, rank=rank, timeout=timedelta(seconds=60))


# --- in each of them ------------------------------------------------------------------------------


def _check(cell: Cell) -> None:
    """Compare results and gradients with those of the baseline.

    In float64 to many digits, with few columns. In float32 where the baseline is measured, too: there a low boost adds
    up many thousands of value rows, in another order here than there.
    """
    _compare(cell._replace(d=min(cell.d, FEW)), torch.float64, tolerance=1e-9)
    if cell.n * cell.d <= MOST:
        _compare(cell, torch.float32, tolerance=1e-4)


def _compare(cell: Cell, dtype: torch.dtype, tolerance: float) -> None:
    values, scores = (each.to(dtype) for each in inputs(cell))
    for one, other in zip(spread(values, scores, cell), gathered(values, scores, cell), strict=True):
        assert_close(one, other, rtol=tolerance, atol=tolerance)


def _measure(cell: Cell, rounds: int) -> Row:
    ranks = dist.get_world_size()
    values, scores = inputs(cell)
    with distributed.traffic() as traffic:
        spread(values, scores, cell)
    sent = torch.tensor([traffic.total, *(traffic.sent[kind] for kind in KINDS)])
    dist.all_reduce(sent)
    calls = {"spread": lambda: _together(spread, values, scores, cell)}
    if cell.n * cell.d <= MOST:
        calls["gathered"] = lambda: _together(gathered, values, scores, cell)
    wire = {name: _carried_by(call) for name, call in calls.items()}
    taken = medians(calls, rounds)  # by number, not by time: all ranks have to do as many
    gathering = 4 * cell.n * cell.d * (ranks - 1)
    return {
        **cell._asdict(), "ranks": ranks, "sent, kB": sent[0].item() / 1e3,
        **{f"{kind}, kB": each.item() / 1e3 for kind, each in zip(KINDS, sent[1:], strict=True)},
        "gathering all values, kB": gathering / 1e3, "times less": gathering / max(1, sent[0].item()),
        "on the wire, kB": wire["spread"] / 1e3, "gathering on the wire, kB": _or_none(wire.get("gathered"), 1e-3),
        "ms": 1e3 * taken["spread"], "gathering, ms": _or_none(taken.get("gathered"), 1e3),
    }  # fmt: skip


def _or_none(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def inputs(cell: Cell) -> tuple[Tensor, Tensor]:
    """Values and scores of this rank: a part of n that is different on each."""
    sizes = _sizes(cell.n)
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    return torch.rand(sizes[rank], cell.d, generator=generator), torch.randn(sizes[rank], generator=generator)


def _sizes(n: int) -> list[int]:
    """How many candidates each rank has."""
    ranks = dist.get_world_size()
    ends = [n * (rank * rank + rank) // (ranks * ranks + ranks) for rank in range(ranks + 1)]
    return [end - start for start, end in pairwise(ends)]


def spread(values: Tensor, scores: Tensor, cell: Cell) -> list[Tensor]:
    """Values, scores, indices and mask of ``distributed.topk``, and the gradients of values and scores."""
    leaves = values.detach().requires_grad_(), scores.detach().requires_grad_()
    out = distributed.topk(*leaves, cell.k, cell.boost)
    return [*out, *torch.autograd.grad(out.values.sin().sum(), leaves)]


def gathered(values: Tensor, scores: Tensor, cell: Cell) -> list[Tensor]:
    """The same by the baseline; of its gradients, those of this rank's candidates."""
    sizes, rank = _sizes(cell.n), dist.get_rank()
    whole = [_gather(each, sizes).requires_grad_() for each in (values, scores)]
    out = knockout.topk(whole[0], whole[1], cell.k, cell.boost)
    gradients = torch.autograd.grad(out.values.sin().sum(), whole)
    return [*out, *(each.split(sizes)[rank] for each in gradients)]


def _gather(mine: Tensor, sizes: list[int]) -> Tensor:
    """The candidates of all ranks, rank by rank."""
    most = max(sizes)
    padded = mine.new_zeros(most, *mine.shape[1:])
    padded[: len(mine)] = mine
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def _together(function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function, and wait for all ranks: the next call starts at the same time on all."""
    function(*arguments)
    dist.barrier()


def _carried_by(call: Callable[[], object]) -> int:
    """Bytes that the loopback interface carries during a call."""
    dist.barrier()
    before = _carried()
    call()
    return _carried() - before


def _carried() -> int:
    """Bytes that the loopback interface has carried so far; 0 where the system does not tell."""
    file = Path("/proc/net/dev")
    if not file.exists():
        return 0
    return next(int(line.split(":")[1].split()[0]) for line in file.read_text().splitlines() if "lo:" in line)


BENCHMARK = Distributed()
