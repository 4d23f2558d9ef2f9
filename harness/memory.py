"""The one way to measure memory: of tensors on the CPU, and of the whole process.

``peak_bytes`` counts what PyTorch's allocator hands out: exact, and the same in every run. ``peak_resident`` also sees
what C++ code and other libraries allocate, and rows of a mapped file, but depends on what ran in the process before.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # of mallopt, from malloc.h

# Otherwise the profiler writes to stderr that it starts and stops.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")


def peak_bytes(call: Callable[[], object]) -> int:
    """The most bytes of CPU tensors that were alive at once during a call, beyond those alive before it.

    Tensors inside operators count, as does the result of the call. Scratch memory that C++ code takes from elsewhere
    than PyTorch's allocator does not: see ``peak_resident``.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        result = call()
    del result
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns())
    alive = most = 0
    for event in changes:
        alive += event.nbytes()
        most = max(most, alive)
    return most


def peak_resident() -> int:
    """The most bytes that this process has had in memory, since ``reset_peak_resident`` or since its start."""
    if STATUS.exists():
        return _status("VmHWM")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def reset_peak_resident() -> int:
    """Let ``peak_resident`` start again from what is resident now, and return that, in bytes.

    Only Linux can; elsewhere, or where a container forbids it, this returns the peak so far, so that the difference of
    two peaks is still at most what was used between them.
    """
    with suppress(OSError):
        CLEAR.write_text("5")
        return _status("VmRSS")
    return peak_resident()


@contextmanager
def limited(more: int) -> Iterator[None]:
    """Let allocations fail that would add more than so many bytes to the address space of this process (Linux only)."""
    if sys.platform != "linux":
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def keep_freed_memory() -> None:
    """Let malloc keep what is freed, for the rest of the process: glibc only; elsewhere this does nothing.

    Otherwise a large result is new memory in each call, or not, as the state of the heap has it, and the system takes
    longer to hand out its pages than a selection does to fill them: a time is then that of the system.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, 1 << 28)):
            mallopt(option, value)


def _status(field: str) -> int:
    lines = STATUS.read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))
