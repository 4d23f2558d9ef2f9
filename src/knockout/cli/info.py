"""``knockout info``: what is installed here, and whether the kernels are used."""

from __future__ import annotations

import argparse
import json
import os
import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import knockout
from knockout import backends
from knockout.cli.habits import style, table

OPTIONAL = ("numpy", "matplotlib", "transformers", "pyarrow", "safetensors")


def run(options: argparse.Namespace) -> int:
    """``knockout info``."""
    found = environment()
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    print(style(_summary(found["devices"]), "1"))
    print()
    versions = {"knockout": found["knockout"], "torch": found["torch"], "python": found["python"]}
    machine = {name: found[name] for name in ("system", "processor", "threads")}
    missing = {name: version or "not installed (optional)" for name, version in found["optional"].items()}
    print(table(None, [[name, str(value)] for name, value in {**versions, **machine, **missing}.items()]))
    print()
    rows = [[name, "no" if reason else "yes", reason] for name, reason in found["backends"].items()]
    print(table(["backend", "usable", "why not"], rows))
    print()
    print(table(["device", "backend used"], [[name, backend] for name, backend in found["devices"].items()]))
    forced = found["KNOCKOUT_BACKEND"]
    if forced is not None:
        print(f"\nThe environment variable KNOCKOUT_BACKEND is set to {forced!r}.")
    return 0


def environment() -> dict[str, Any]:
    """What is installed on which machine, ready for JSON."""
    return {
        "knockout": knockout.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "optional": {name: _version(name) for name in OPTIONAL},
        "backends": {name: backends.why_not(name) for name in backends.NAMES},
        "devices": {str(each): _backend_for(each) for each in devices()},
        "KNOCKOUT_BACKEND": os.environ.get("KNOCKOUT_BACKEND"),
    }


def _backend_for(device: torch.device) -> str:
    try:
        return backends.chosen_for(device)
    except (RuntimeError, ValueError) as error:  # one is forced that cannot be used
        return f"none: {error}"


def _summary(chosen: dict[str, str]) -> str:
    """One line that says on which devices kernels are used."""
    if failed := [backend for backend in chosen.values() if backend.startswith("none: ")]:
        return f"kernels: {failed[0]}"
    on = [f"{name} ({backend})" for name, backend in chosen.items() if backend != "reference"]
    off = [name for name, backend in chosen.items() if backend == "reference"]
    parts = [f"on for {', '.join(on)}"] if on else []
    parts += [f"off for {', '.join(off)}, which runs plain PyTorch"] if off else []
    return "kernels: " + "; ".join(parts)


def processor() -> str:
    """The name of the processor, as far as the system tells."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def devices() -> list[torch.device]:
    """The CPU and every accelerator of this machine."""
    found = [torch.device("cpu")]
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is not None:
        found += [torch.device(kind.type, index) for index in range(torch.accelerator.device_count())]
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
