"""How long something takes, on any device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def timed(device: torch.device, run: Callable[..., Result], *arguments: object) -> tuple[Result, float]:
    """What a call returns, and the seconds it took; on a device that works by itself, until its work was done."""
    _wait(device)
    start = time.perf_counter()
    result = run(*arguments)
    _wait(device)
    return result, time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
