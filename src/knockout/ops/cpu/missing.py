"""Why the C++ kernels are missing, and the command that mends it.

When they cannot be built, setup.py installs a note in their place.
"""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import torch

FOLDER = Path(__file__).parent
OLDEST = "2.10"  # PyTorch, whose stable ABI the kernels use


def why_missing(error: ImportError) -> str:
    """The cause and what mends it, after the error that importing the kernels has raised."""
    if any(FOLDER.glob("_C.*")):
        cause = f"the C++ kernels were built, but cannot be loaded ({error})."
        if torch.__version__ < OLDEST:
            return f"{cause} They need PyTorch {OLDEST} or later, and this is {torch.__version__}: update it."
        return f"{cause} To build them for this machine, {build_again()}."
    note = FOLDER / "not_built.txt"
    cause = note.read_text(encoding="utf-8").strip() if note.exists() else "with a C++ compiler, {again}"
    return f"the C++ kernels were not built at installation: {cause.format(again=build_again())}."


def build_again() -> str:
    """What to run to build the kernels of this installation, from where it came."""
    source, tool = _installed_from()
    if not source:
        return "run `pip install .` in a clone of knockout's repository"
    # Without the cache, in which pip keeps what it has built without the kernels.
    if tool == "uv":
        return f"run `uv pip install --reinstall --no-deps --no-cache {source}`"
    return f"run `pip install --force-reinstall --no-deps --no-cache-dir {source}`"


def _installed_from() -> tuple[str, str]:
    """What was installed, as pip takes it, and by which tool; as PEP 610 and PEP 376 have it recorded."""
    try:
        found = metadata.distribution("knockout-topk")
    except metadata.PackageNotFoundError:
        return "", "pip"
    tool = "uv" if (found.read_text("INSTALLER") or "").strip() == "uv" else "pip"
    record: dict[str, Any] = json.loads(found.read_text("direct_url.json") or "{}")
    url, folder, version_control = record.get("url", ""), record.get("dir_info"), record.get("vcs_info")
    if not url:
        return f"--no-binary knockout-topk knockout-topk=={found.version}", tool
    if url.endswith(".whl"):  # would be the same again
        return "", tool
    if version_control:
        return shlex.quote(f"{version_control['vcs']}+{url}@{version_control['commit_id']}"), tool
    path = shlex.quote(url2pathname(urlsplit(url).path) if url.startswith("file:") else url)
    return f"--editable {path}" if folder and folder.get("editable") else path, tool
