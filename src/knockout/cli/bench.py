"""``knockout bench``: the time of ``knockout.topk`` as a ratio to ``torch.topk`` + gather, on this machine."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import knockout
from knockout import backends
from knockout.boost import Relative
from knockout.cli.habits import CommandError, device, first_line, progress, table
from knockout.cli.info import devices, environment, processor
from knockout.cli.timing import gradients, hard_topk, passes, threads


class Cell(NamedTuple):
    """Sizes of one measurement."""

    batch: int
    n: int
    k: int
    d: int


CELLS = (Cell(16, 1024, 16, 32), Cell(16, 4096, 64, 32), Cell(16, 16384, 512, 32), Cell(4, 4096, 64, 512))
SMALL = Cell(2, 300, 7, 8)
BOOSTS = (1.0, 4.0, 16.0)
HARD = "torch.topk + gather"


def run(options: argparse.Namespace) -> int:
    """``knockout bench``."""
    used = devices() if options.device is None else [torch.device(device(options.device))]
    with threads(options.threads):
        _bench(used, options)
    return 0


def _bench(used: Sequence[torch.device], options: argparse.Namespace) -> None:
    cells, rounds, seconds = ((SMALL,), 3, 0.0) if options.quick else (CELLS, 7, 0.5)
    rows = []
    try:
        for each in used:
            check(each)
        for done, (each, cell) in enumerate(itertools.product(used, cells), 1):
            progress(f"measuring: {done} of {len(used) * len(cells)}")
            rows += measure(each, cell, rounds, seconds)
    except RuntimeError as error:  # of the device: out of memory, lost, without some operator
        raise CommandError(f"on {each}: {first_line(error)}") from error
    progress("")
    if options.json:
        print(json.dumps({"environment": environment(), "rows": rows}, indent=2))
        return
    print(f"Median milliseconds of knockout.topk, and their ratio to {HARD}. Normal scores, float32.")
    print("Results and gradients agree with the reference backend.")
    print(f"processor: {processor()}; threads: {torch.get_num_threads()}\n")
    header = ["device", "backend", "batch", "n", "k", "d", "boost", "forward", "ratio", "with backward", "ratio"]
    print(table(header, [_cells(row) for row in rows]))


def measure(place: torch.device, cell: Cell, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Time every boost and the hard twin, in turn, on one cell: a row per boost."""
    values, scores = _inputs(place, cell)
    boosts = {f"{c:g}": partial(_soft, k=cell.k, c=c) for c in BOOSTS}
    taken = passes({HARD: partial(hard_topk, k=cell.k), **boosts}, values, scores, rounds, seconds)
    hard = taken[HARD]
    return [
        {
            "device": str(place), "backend": backends.chosen_for(place), **cell._asdict(), "boost": float(name),
            "seconds": taken[name].forward, "ratio": taken[name].forward / hard.forward,
            "seconds_with_backward": taken[name].both, "ratio_with_backward": taken[name].both / hard.both,
        }
        for name in boosts
    ]  # fmt: skip


def check(place: torch.device) -> None:
    """Compare results and gradients on a device with those of the reference backend on the CPU.

    Raises CommandError where they differ.
    """
    for c in BOOSTS:
        operator = partial(_soft, k=SMALL.k, c=c)
        found = _result_and_gradients(operator, place)
        with backends.force("reference"):
            expected = _result_and_gradients(operator, torch.device("cpu"))
        for what, one, other in zip(
            ("values", "gradients of values", "gradients of scores"), found, expected, strict=True
        ):
            if not torch.allclose(one.cpu(), other, rtol=1e-4, atol=1e-5):
                raise CommandError(
                    f"on {place} the backend {backends.chosen_for(place)!r} is wrong: its {what} with a boost of {c:g} "
                    "differ from those of the reference backend; no times are reported"
                )


def _result_and_gradients(operator: Callable[[Tensor, Tensor], Tensor], place: torch.device) -> tuple[Tensor, ...]:
    values, scores = (each.requires_grad_() for each in _inputs(place, SMALL))
    result = operator(values, scores).detach()
    return result, *gradients(operator, values, scores, torch.ones_like(result))


def _inputs(place: torch.device, cell: Cell) -> tuple[Tensor, Tensor]:
    """Values and scores, the same on every device."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(cell.batch, cell.n, cell.d, generator=generator)
    return values.to(place), torch.randn(cell.batch, cell.n, generator=generator).to(place)


def _soft(values: Tensor, scores: Tensor, k: int, c: float) -> Tensor:
    return knockout.topk(values, scores, k, Relative(c)).values


def _cells(row: dict[str, Any]) -> list[str]:
    sizes = [str(row[name]) for name in ("device", "backend", "batch", "n", "k", "d")]
    times = [f"{1e3 * row['seconds']:.3f}", f"{row['ratio']:.2f}"]
    both = [f"{1e3 * row['seconds_with_backward']:.3f}", f"{row['ratio_with_backward']:.2f}"]
    return [*sizes, f"{row['boost']:g}", *times, *both]
