"""What a soft selection costs beside a hard one: the native kernels against ``torch.topk`` + gather.

``python -m benchmarks.kernels [part ...]``, parts: cells, wide, boosts, length, memory (all, if none is named).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import knockout
from benchmarks.timing import medians, save
from knockout.boost import Boost, Fixed, Power, Relative
from knockout.eval.grid import hard

DEFAULT = Relative(4)
BOOSTS: list[Boost] = [Relative(1), DEFAULT, Relative(16), Relative(4, alpha=1), Fixed(100), Power(20)]
PAPER = [(2**i, 2**j) for i in range(4, 15) for j in range(1, 12) if 2**j < 2**i]


def uniform(*shape: int) -> Tensor:
    """As in the paper."""
    return torch.rand(*shape)


def normal(*shape: int) -> Tensor:
    """Above the unit: the mean gap sets the scale."""
    return torch.randn(*shape)


def tied(*shape: int) -> Tensor:
    """Sixteen different scores."""
    return torch.randint(16, shape) / 16


def soft(values: Tensor, scores: Tensor, k: int, boost: Boost) -> Tensor:
    """Ours."""
    return knockout.topk(values, scores, k, boost).values


def with_backward(run: Callable[[], Tensor], inputs: list[Tensor], gradient: Tensor) -> None:
    """Forward, and the gradients of the inputs."""
    torch.autograd.grad(run(), inputs, gradient)


def ratios(batch: int, n: int, k: int, d: int, seconds: float, boost: Boost = DEFAULT, draw: Any = uniform) -> Any:
    """Seconds of both, forward and with backward."""
    torch.manual_seed(n + k)
    values, scores = torch.rand(batch, n, d) * 2 - 1, draw(batch, n)
    runs = {"hard": partial(hard, values, scores, k), "soft": partial(soft, values, scores, k, boost)}
    with torch.no_grad():
        forward = medians(runs, seconds)
    values.requires_grad_()
    learned = scores.clone().requires_grad_()
    gradient = torch.rand(batch, k, d)
    both = medians(
        {
            "hard": partial(with_backward, partial(hard, values, scores, k), [values], gradient),
            "soft": partial(with_backward, partial(soft, values, learned, k, boost), [values, learned], gradient),
        },
        seconds,
    )
    return {"batch": batch, "n": n, "k": k, "d": d, "forward": forward, "forward and backward": both}


def ratio(seconds: dict[str, float]) -> float:
    """Ours / hard."""
    return seconds["soft"] / seconds["hard"]


def geometric_mean(numbers: Iterable[float]) -> float:
    """exp of the mean logarithm."""
    logs = [math.log(number) for number in numbers]
    return math.exp(sum(logs) / len(logs))


def cells(seconds: float = 0.5) -> Any:
    """All cells of the paper: batch 16, d = 32, uniform scores, default boost."""
    rows = []
    for n, k in PAPER:
        rows.append(ratios(16, n, k, 32, seconds))
        _show(rows[-1])
    for kind in ("forward", "forward and backward"):
        all_ratios = {(row["n"], row["k"]): ratio(row[kind]) for row in rows}
        worst = max(all_ratios, key=all_ratios.__getitem__)
        above = sum(each > 2 for each in all_ratios.values())
        print(
            f"  {kind}: geometric mean {geometric_mean(all_ratios.values()):.2f}, "
            f"worst {all_ratios[worst]:.2f} at n = {worst[0]}, k = {worst[1]}; above 2: {above} of {len(rows)}"
        )
    return rows


def wide(seconds: float = 1.0) -> Any:
    """Long vectors."""
    rows = []
    for d in (512, 768):
        for n, k in [(1024, 2), (1024, 64), (4096, 64), (16384, 2), (16384, 64), (16384, 2048)]:
            rows.append(ratios(4, n, k, d, seconds))
            _show(rows[-1])
    return rows


def boosts(seconds: float = 0.5) -> Any:
    """Every boost on every kind of scores."""
    rows = []
    print(f"  {'n, k: forward / with backward':32s}" + "".join(f"{str(boost)[:26]:>28s}" for boost in BOOSTS))
    for draw in (uniform, normal, tied):
        for n, k in [(256, 16), (4096, 64), (16384, 2), (16384, 512)]:
            line = f"  {draw.__name__ + f', {n}, {k}':32s}"
            for boost in BOOSTS:
                row = ratios(16, n, k, 32, seconds, boost, draw) | {"scores": draw.__name__, "boost": str(boost)}
                rows.append(row)
                line += f"{ratio(row['forward']):15.2f} / {ratio(row['forward and backward']):10.2f}"
            print(line, flush=True)
    return rows


def length(seconds: float = 1.0) -> Any:
    """Nanoseconds a candidate, one row, k = 64; and what is left of them without the price of a call."""
    rows = []
    small = torch.rand(1, 64)
    call = medians({"call": lambda: knockout.select(small, 64)}, seconds)["call"]
    for exponent in range(10, 25):
        n = 2**exponent
        scores = torch.rand(1, n)
        times = medians(
            {"soft": partial(knockout.select, scores, 64), "hard": partial(torch.topk, scores, 64)}, seconds, least=3
        )
        rows.append({"n": n, "call": call, **{name: time / n * 1e9 for name, time in times.items()}})
    middle = next(row for row in rows if row["n"] == 2**16)
    for row in rows:
        net, net_middle = (each["soft"] - call / each["n"] * 1e9 for each in (row, middle))
        print(
            f"  n = 2^{row['n'].bit_length() - 1:2d}: {row['soft']:7.2f} ns, {row['soft'] / middle['soft']:5.2f} of"
            f" that at 2^16; without the {call * 1e6:.0f} us of a call {net:6.2f} ns, {net / net_middle:5.2f};"
            f" torch.topk {row['hard']:6.2f} ns"
        )
    return rows


def memory(n: int = 2**20, batch: int = 4, k: int = 64, d: int = 8) -> Any:
    """Peak of the resident memory above what the inputs take, each measured in a process of its own."""
    rows = []
    carried = int(knockout.select(torch.rand(batch, n), k).support().sum())
    for name in ("hard", "soft"):
        for backward in (False, True):
            with get_context("spawn").Pool(1) as pool:
                peak = pool.apply(_peak, (name, backward, batch, n, k, d))
            rows.append({"name": name, "backward": backward, "bytes": peak})
            gradient = 4 * n * d * batch if backward else 0
            print(
                f"  {name} {'forward and backward' if backward else 'forward':20s} {peak / 2**20:8.1f} MiB, "
                f"{peak / (n * batch):6.1f} bytes a candidate"
                + (f" ({(peak - gradient) / (n * batch):.1f} without the gradient of the values)" if backward else "")
                + (f", {peak / carried:.0f} a row that carries weight ({carried})" if name == "soft" else "")
            )
    return rows


def _peak(name: str, backward: bool, batch: int, n: int, k: int, d: int) -> int:
    """Bytes."""
    values, scores = torch.rand(batch, n, d), torch.rand(batch, n)
    run = partial(hard, k=k) if name == "hard" else partial(soft, k=k, boost=DEFAULT)
    run(torch.rand(1, 512, d), torch.rand(1, 512), k=min(k, 512))  # load everything
    if backward:
        values.requires_grad_()
        scores.requires_grad_(name == "soft")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    out = run(values, scores)
    if backward:
        out.backward(torch.ones_like(out))
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def _show(row: Any) -> None:
    print(
        f"  n = {row['n']:5d}, k = {row['k']:4d}, d = {row['d']:3d}:"
        f"  forward {row['forward']['soft'] * 1e3:9.3f} ms, {ratio(row['forward']):5.2f} x hard;"
        f"  with backward {row['forward and backward']['soft'] * 1e3:9.3f} ms,"
        f" {ratio(row['forward and backward']):5.2f} x hard",
        flush=True,
    )


def main() -> None:
    """Run the parts that are named, or all."""
    assert knockout.native.available(), knockout.native.why_not()
    parts: dict[str, Callable[[], Any]] = {
        "cells": cells,
        "wide": wide,
        "boosts": boosts,
        "length": length,
        "memory": memory,
    }
    chosen = sys.argv[1:] or list(parts)
    for name in chosen:
        if name not in parts:
            sys.exit(f"unknown part {name!r}; choose from {', '.join(parts)}")
    for name in chosen:
        print(f"{name}: {parts[name].__doc__}")
        print(f"  written to {save(f'kernels-{name}', parts[name]())}")


if __name__ == "__main__":
    main()
