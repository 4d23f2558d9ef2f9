"""The environment that results are measured in: machine, versions, and the code itself."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

import knockout

ROOT = Path(__file__).parent.parent  # of the checkout


def environment(*packages: str) -> dict[str, Any]:
    """Describe the environment, ready for JSON. ``packages``: those with code that the results depend on."""
    return {
        "knockout": knockout.__version__,
        "commit": commit(),
        "code": code_digest("knockout", "harness", *packages),
        "native kernels": not knockout.backends.why_not("cpu"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
    }


def code_digest(*packages: str) -> str:
    """Hash the sources of some packages: results of different code do not belong together."""
    digest = hashlib.sha256()
    for package in packages:
        root = Path(str(files(package)))
        for path in sorted(path for ending in ("py", "h", "cpp") for path in root.rglob(f"*.{ending}")):
            digest.update(f"{package}/{path.relative_to(root).as_posix()}".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def commit() -> str | None:
    """Name the commit of the checkout, with a + for uncommitted changes; None if it is not known."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    if not (ROOT / ".git").exists():
        return None
    try:
        described = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()


def processor() -> str:
    """Name the processor, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
