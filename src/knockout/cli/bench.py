"""``knockout bench``: the time of ``knockout.topk`` as a ratio to ``torch.topk`` + gather, on this machine."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import knockout
from knockout import backends
from knockout.cli.checking import SMALL, Cell, cases_for, check, inputs
from knockout.cli.habits import CommandError, device, first_line, progress, table
from knockout.cli.info import devices, environment, processor
from knockout.cli.timing import hard_topk, passes, threads

CELLS = (Cell(16, 1024, 16, 32), Cell(16, 4096, 64, 32), Cell(16, 16384, 512, 32), Cell(4, 4096, 64, 512))
PAPER = tuple(Cell(16, 2**n, 2**k, 32) for n in range(4, 15) for k in range(1, min(n, 12)))  # 85 cells
BOOSTS = (None, 1.0, 4.0, 16.0)  # None: the default
HARD = "torch.topk + gather"


def run(options: argparse.Namespace) -> int:
    """``knockout bench``."""
    used = devices() if options.device is None else [torch.device(device(options.device))]
    with threads(options.threads):
        _bench(used, options)
    return 0


def _bench(used: Sequence[torch.device], options: argparse.Namespace) -> None:
    cells, rounds, seconds = (PAPER if options.paper else CELLS), 7, 0.1 if options.paper else 0.5
    if options.quick:
        cells, rounds, seconds = (SMALL,), 3, 0.0
    rows, checks = [], {}
    try:
        for each in used:
            progress(f"checking {each}")
            checks[str(each)] = _checked(each)
        for done, (each, cell) in enumerate([] if options.check else list(itertools.product(used, cells)), 1):
            progress(f"measuring: {done} of {len(used) * len(cells)}")
            rows += measure(each, cell, rounds, seconds)
    except RuntimeError as error:  # of the device: out of memory, lost, without some operator
        raise CommandError(f"on {each}: {first_line(error)}") from error
    progress("")
    if options.json:
        print(json.dumps({"environment": environment(), "checks": checks, "rows": rows}, indent=2))
        return
    # What others have measured on a GPU is worth an issue: as a block of code, columns stay aligned there.
    fence = any(backends.chosen_for(each) == "triton" for each in used)
    if fence:
        print("Paste this into an issue:\n\n```")
    print(_text(checks, rows))
    if fence:
        print("```")


def _text(checks: dict[str, str], rows: list[dict[str, Any]]) -> str:
    found = environment()
    about = ", ".join(f"{name} {found[name]}" for name in ("knockout", "torch", "python", "system"))
    lines = [f"{about}; processor: {processor()}; threads: {torch.get_num_threads()}"]
    lines += [f"{place}: {_name(torch.device(place))}. {said}" for place, said in checks.items()]
    if rows:
        header = ["device", "backend", "batch", "n", "k", "d", "boost", "forward", "ratio", "with backward", "ratio"]
        lines += ["", f"Median milliseconds of knockout.topk, and their ratio to {HARD}. Normal scores, float32.", ""]
        lines += [table(header, [_cells(row) for row in rows])]
    return "\n".join(lines)


def _checked(place: torch.device) -> str:
    """What the check of a device has found."""
    rounded, count = check(place, _soft), len(cases_for(place))
    same = f"indices, weights and scores are the same bits in {count - len(rounded)} of {count} cases"
    different = f" (not: {', '.join(rounded)})" if rounded else ""
    return f"Results and gradients agree with the reference backend; {same}{different}."


def _name(place: torch.device) -> str:
    """The name of a device, and the backend that it uses."""
    module = torch.get_device_module(place)
    name = module.get_device_name(place) if hasattr(module, "get_device_name") else place.type
    return f"{name}, backend {backends.chosen_for(place)}"


def measure(place: torch.device, cell: Cell, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Time every boost and the hard twin, in turn, on one cell: a row per boost."""
    values, scores = inputs(place, cell)
    boosts = {"default" if c is None else f"{c:g}": partial(_soft, k=cell.k, boost=c) for c in BOOSTS}
    taken = passes({HARD: partial(hard_topk, k=cell.k), **boosts}, values, scores, rounds, seconds)
    hard = taken[HARD]
    return [
        {
            "device": str(place), "backend": backends.chosen_for(place), **cell._asdict(), "boost": name,
            "seconds": taken[name].forward, "ratio": taken[name].forward / hard.forward,
            "seconds_with_backward": taken[name].both, "ratio_with_backward": taken[name].both / hard.both,
        }
        for name in boosts
    ]  # fmt: skip


def _soft(values: Tensor, scores: Tensor, k: int | float, **settings: Any) -> Tensor:
    return knockout.topk(values, scores, k, **settings).values


def _cells(row: dict[str, Any]) -> list[str]:
    sizes = [str(row[name]) for name in ("device", "backend", "batch", "n", "k", "d", "boost")]
    times = [f"{1e3 * row['seconds']:.3f}", f"{row['ratio']:.2f}"]
    both = [f"{1e3 * row['seconds_with_backward']:.3f}", f"{row['ratio_with_backward']:.2f}"]
    return [*sizes, *times, *both]
