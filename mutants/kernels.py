"""The C++ kernels of a tree, compiled quickly: without optimization, with the headers of PyTorch compiled once."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

SOURCES = Path("src/knockout/ops/cpu/csrc")
EXTENSION = Path("src/knockout/ops/cpu/_C.abi3.so")
# As in setup.py, where it matters to the results; as under sanitizers, functions are compiled for one processor only.
FLAGS = ["-std=c++20", "-O0", "-w", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno"]
FLAGS += ["-DTORCH_TARGET_VERSION=0x020a000000000000", "-DPy_LIMITED_API=0x030b0000", "-DKNOCKOUT_ONE_TARGET"]
# The kernels' own test without PyTorch, under the sanitizers, which see what is outside of an array.
CHECK = [
    "-std=c++20",
    "-O1",
    "-w",
    "-ffp-contract=off",
    "-pthread",
    "-DKNOCKOUT_ONE_TARGET",
    "-fno-sanitize-recover=all",
]
CHECK += ["-fsanitize=address,undefined,float-cast-overflow"]


def build(tree: Path) -> str:
    """Compile the extension of a tree. Returns the compiler's message if that fails."""
    headers = tree / "precompiled.h"
    if not headers.exists():
        files = sorted((tree / SOURCES).iterdir())
        lines = {line for file in files for line in re.findall("^#include <.*>$", file.read_text(), re.MULTILINE)}
        headers.write_text("\n".join(sorted(lines)))
        _compile(tree, [*_flags(), "-x", "c++-header", str(headers), "-o", f"{headers}.gch"])
    (tree / EXTENSION).unlink(missing_ok=True)
    source, libraries = str(SOURCES / "library.cpp"), [f"-L{_torch() / 'lib'}", "-ltorch_cpu", "-lc10"]
    return _compile(tree, [*_flags(), "-include", str(headers), "-shared", source, "-o", str(EXTENSION), *libraries])


def copy(one: Path, other: Path) -> None:
    """Copy the extension from one tree to another."""
    (other / EXTENSION).unlink(missing_ok=True)  # a new file: processes may still use the old one
    shutil.copy2(one / EXTENSION, other / EXTENSION)


def check(tree: Path, seconds: float = 300.0) -> str:
    """Run the kernels' own test under the sanitizers. Returns what was found, or nothing."""
    if message := _compile(tree, [*CHECK, "tests/csrc/kernels.cpp", "-o", "kernels"]):
        return message
    try:
        done = subprocess.run([tree / "kernels"], cwd=tree, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "timeout"
    return "" if done.returncode == 0 else "sanitizers: " + _first_line(done.stderr + done.stdout)


def _compile(tree: Path, arguments: list[str]) -> str:
    done = subprocess.run(["g++", *arguments], cwd=tree, capture_output=True, text=True)
    return "" if done.returncode == 0 else _first_line(done.stderr)


def _first_line(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line.lower()] or text.splitlines()
    return lines[0] if lines else "no message"


@cache
def _torch() -> Path:
    found = importlib.util.find_spec("torch")  # found, not imported: that takes seconds
    assert found is not None
    return Path(str(found.origin)).parent


def _flags() -> list[str]:
    include = _torch() / "include"
    return [*FLAGS, f"-I{include}", f"-I{include}/torch/csrc/api/include", f"-I{sysconfig.get_paths()['include']}"]
