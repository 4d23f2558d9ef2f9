"""What results were measured with: machine, versions, the code itself."""

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


def environment() -> dict[str, Any]:
    """All of it, ready for JSON."""
    return {
        "knockout": knockout.__version__,
        "commit": commit(),
        "code": code(),
        "native kernels": not knockout.backends.why_not("cpu"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
    }


def code() -> str:
    """A digest of the library's own sources: results of one code do not go on with another."""
    root = Path(str(files("knockout")))
    digest = hashlib.sha256()
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.h"), *root.rglob("*.cpp")]):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def commit() -> str | None:
    """Of the checkout that the library was imported from, if it is one; with a + for uncommitted changes."""
    root = Path(str(files("knockout"))).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        head = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip()


def processor() -> str:
    """Its name, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
