"""Memory of this process, in bytes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def peak_resident() -> int:
    """The most memory that this process has had resident; on Linux, since ``reset_peak_resident``."""
    if sys.platform == "linux":
        return _status("VmHWM")
    if resource is None:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def reset_peak_resident() -> int:
    """Forget the peak so far, where the system can; return the peak from which to count."""
    with suppress(OSError):  # not on other systems, and not allowed in every container
        Path("/proc/self/clear_refs").write_text("5")
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


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024
