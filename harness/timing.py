"""Time calls on a noisy machine: calls that are compared are interleaved in one process, and medians are taken."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

Result = TypeVar("Result")


def timed(device: torch.device, call: Callable[..., Result], *arguments: object) -> tuple[Result, float]:
    """Return what a call returns and the seconds it took, including work that an accelerator does asynchronously."""
    _synchronize(device)
    start = time.perf_counter()
    result = call(*arguments)
    _synchronize(device)
    return result, time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def interleaved(calls: Mapping[str, Callable[[], object]], rounds: int, seconds: float = 0.0) -> dict[str, list[float]]:
    """Seconds of each call in every round, after a warm-up: at least so many rounds, and until ``seconds`` have passed.

    Every round makes each call once, so that a disturbance of the machine affects all of them alike.
    """
    cpu = torch.device("cpu")
    for call in calls.values():
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    start, done = time.perf_counter(), 0
    while done < rounds or time.perf_counter() - start < seconds:
        for name, call in calls.items():
            taken[name].append(timed(cpu, call)[1])
        done += 1
    return taken


def median(seconds: Sequence[float]) -> float:
    """The median of some times."""
    return statistics.median(seconds)
