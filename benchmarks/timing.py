"""Fair timing on a noisy machine: contestants take turns in one process, and medians are compared."""

from __future__ import annotations

import json
import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def medians(contestants: Mapping[str, Callable[[], object]], seconds: float = 2.0, least: int = 5) -> dict[str, float]:
    """Median seconds of each, taking turns until ``seconds`` have passed and everybody had ``least`` turns."""
    for run in contestants.values():
        run()  # warm up
    times: dict[str, list[float]] = {name: [] for name in contestants}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or min(map(len, times.values())) < least:
        for name, run in contestants.items():
            begin = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(each) for name, each in times.items()}


def peak(anew: bool = False) -> float:
    """The most memory in MiB that this process has had; on Linux, since the last time it was asked anew."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if anew:
        reset.write_text("5")
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024


def save(name: str, rows: list[dict[str, Any]]) -> Path:
    """Write the rows as JSON, with what they were measured on."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    machine = {"processor": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    path.write_text(json.dumps({"torch": torch.__version__, **machine, "rows": rows}, indent=2))
    return path
