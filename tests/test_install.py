"""What an installation without kernels says, and that the headers in third_party are PyTorch's.

Nothing is compiled here. `make smoke` and `make matrix` install the library in every way.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from knockout.ops.cpu import missing
from knockout.ops.cpu.missing import build_again, why_missing

ROOT = Path(__file__).parents[1]
HEADERS = ROOT / "third_party" / "torch"
ERROR = ImportError("undefined symbol: torch_call_dispatcher")


# --- what to run to build the kernels -------------------------------------------------------------


class Installed:
    """The metadata of an installation, by a tool, from where direct_url.json says."""

    version = "1.2.3"

    def __init__(self, tool: str, record: dict[str, Any] | None) -> None:
        self.texts: dict[str, str | None] = {
            "INSTALLER": f"{tool}\n",
            "direct_url.json": json.dumps(record) if record else None,
        }

    def read_text(self, name: str) -> str | None:
        return self.texts[name]


Install = Callable[..., None]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make it appear as if the library had been installed in some way."""

    def install(record: dict[str, Any] | None, tool: str = "pip") -> None:
        monkeypatch.setattr(metadata, "distribution", lambda _: Installed(tool, record))

    return install


GIT = {"vcs": "git", "requested_revision": "main", "commit_id": "0123abcd"}


@pytest.mark.parametrize(
    ("record", "source"),
    [
        ({"url": "file:///home/me/knockout", "dir_info": {}}, "/home/me/knockout"),
        ({"url": "file:///home/me/my%20copy", "dir_info": {}}, "'/home/me/my copy'"),
        ({"url": "file:///home/me/knockout", "dir_info": {"editable": True}}, "--editable /home/me/knockout"),
        ({"url": "https://host/knockout.git", "vcs_info": GIT}, "git+https://host/knockout.git@0123abcd"),
        ({"url": "file:///tmp/knockout_topk-1.2.3.tar.gz", "archive_info": {}}, "/tmp/knockout_topk-1.2.3.tar.gz"),
        ({"url": "https://host/a.tar.gz", "archive_info": {}}, "https://host/a.tar.gz"),
        (None, "--no-binary knockout-topk knockout-topk==1.2.3"),
    ],
)
def test_the_command_that_builds_again(record: dict[str, Any] | None, source: str, installed: Install) -> None:
    installed(record)
    assert build_again() == f"run `pip install --force-reinstall --no-deps --no-cache-dir {source}`"
    installed(record, "uv")
    assert build_again() == f"run `uv pip install --reinstall --no-deps --no-cache {source}`"


def test_what_a_wheel_lacks_only_the_source_has(installed: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "run `pip install .` in a clone of knockout's repository"
    installed({"url": "file:///tmp/knockout_topk-1.2.3-cp311-abi3-win_amd64.whl", "archive_info": {}})
    assert build_again() == expected

    def not_installed(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", not_installed)
    assert build_again() == expected


# --- why there are no kernels ---------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the kernels, or the note, would be installed."""
    monkeypatch.setattr(missing, "FOLDER", tmp_path)
    monkeypatch.setattr(missing, "build_again", lambda: "run `this`")
    return tmp_path


def test_the_note_of_the_build_is_the_reason(folder: Path) -> None:
    (folder / "not_built.txt").write_text("no C++ compiler was found ({{g++}}). Install one, and {again}\n")
    assert why_missing(ERROR) == (
        "the C++ kernels were not built at installation: "
        "no C++ compiler was found ({g++}). Install one, and run `this`."
    )


@pytest.mark.usefixtures("folder")
def test_without_a_note() -> None:
    assert why_missing(ERROR) == ("the C++ kernels were not built at installation: with a C++ compiler, run `this`.")


def test_kernels_that_cannot_be_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "_C.abi3.so").touch()
    (folder / "not_built.txt").write_text("an old note\n")
    built = f"the C++ kernels were built, but cannot be loaded ({ERROR})."
    assert why_missing(ERROR) == f"{built} To build them for this machine, run `this`."
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.9.1+cpu"))
    assert why_missing(ERROR) == f"{built} They need PyTorch 2.10 or later, and this is 2.9.1+cpu: update it."


# --- the notes that setup.py writes ---------------------------------------------------------------

KERNELS = Path("lib", "knockout", "ops", "cpu")


def build(folder: Path, compiler: str, before: str = "pass", required: str = "") -> subprocess.CompletedProcess[str]:
    """Run setup.py's build_ext with a compiler, after a line of Python, where an earlier build has left files."""
    pytest.importorskip("setuptools", minversion="77")
    (folder / KERNELS).mkdir(parents=True)
    for name in ("_C.abi3.so", "not_built.txt"):
        (folder / KERNELS / name).touch()
        os.utime(folder / KERNELS / name, (0, 0))
    arguments = ["setup.py", "build_ext", "--build-temp", str(folder / "temp"), "--build-lib", str(folder / "lib")]
    imports = "import runpy, setuptools.command.build_ext, sys, sysconfig"
    code = f"{imports}; sys.argv = {arguments}; {before}; runpy.run_path('setup.py')"
    environment = {**os.environ, "KNOCKOUT_REQUIRE_NATIVE": required, "CXX": compiler}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=environment)


def note_of(folder: Path, *arguments: str) -> str:
    """The note that a build leaves behind, which must have removed the kernels of an earlier one."""
    done = build(folder, *arguments)
    assert done.returncode == 0, done.stderr
    assert [each.name for each in (folder / KERNELS).iterdir()] == ["not_built.txt"]
    note = (folder / KERNELS / "not_built.txt").read_text()
    assert "\n" not in note.strip()
    assert note.strip().format(again="build again") in done.stderr
    return note


def compiler(folder: Path, script: str) -> str:
    """A program that passes for a compiler, and makes empty files."""
    path = folder / "c++"
    path.write_text(f'#!/bin/sh\n{script}\nwhile [ "$1" != -o ]; do shift; done; touch "$2"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return shlex.quote(str(path))


def test_without_a_compiler(tmp_path: Path) -> None:
    assert note_of(tmp_path, "nothing++").startswith(
        "no C++ compiler was found (nothing++). Install one, for example by `apt install g++`"
    )


def test_a_compiler_that_is_too_old(tmp_path: Path) -> None:
    old = compiler(tmp_path, "echo 'file: note' >&2; echo \"file: error: '{_Float16}' is no type\" >&2; exit 1")
    note = note_of(tmp_path, old)
    assert re.match(
        r"the C\+\+ compiler .* is too old, or does not work \(file: error: '\{\{_Float16\}\}' is no type\)", note
    )
    assert "GCC 12, Clang 15 or later" in note
    assert "variable CXX" in note


def test_a_compiler_that_says_nothing(tmp_path: Path) -> None:
    assert "does not work (CompileError: no message)" in note_of(tmp_path, "false")


def test_kernels_that_do_not_compile(tmp_path: Path) -> None:
    failing = compiler(tmp_path, "case $* in *library.cpp*) echo 'x.h:1: error: no such thing' >&2; exit 1;; esac")
    assert note_of(tmp_path, failing) == (
        "compiling them failed (x.h:1: error: no such thing). To see all that the compiler says, add --verbose, and "
        "{again}\n"
    )


def test_without_the_headers_of_python(tmp_path: Path) -> None:
    note = note_of(tmp_path, compiler(tmp_path, ""), "sysconfig.get_path = lambda _: '/nowhere'")
    assert note.startswith("Python's headers were not found (Python.h). Install them")


def test_platforms_without_kernels(tmp_path: Path) -> None:
    assert note_of(tmp_path / "1", "g++", "sys.platform = 'win32'").startswith("they are not ported to Windows")
    free = "sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1"
    assert "free-threaded" in note_of(tmp_path / "2", "g++", free)


def test_kernels_that_are_required(tmp_path: Path) -> None:
    done = build(tmp_path, "nothing++", required="1")
    assert done.returncode == 1
    assert "the C++ kernels are required, but were not built: no C++ compiler was found" in done.stderr


def test_a_compiler_that_is_good_enough_leaves_no_note(tmp_path: Path) -> None:
    done = build(tmp_path, compiler(tmp_path, ""))
    assert done.returncode == 0, done.stderr
    assert [each.name for each in (tmp_path / KERNELS).iterdir()] == ["_C.abi3.so"]
    (command,) = (line for line in done.stdout.splitlines() if "library.cpp" in line)
    assert "-fno-tree-loop-distribute-patterns" in command


# --- what is installed, and from what it is built -------------------------------------------------


def test_every_file_of_the_package_is_installed() -> None:
    package = ROOT / "src" / "knockout"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    data = {path for pattern in settings["package-data"]["knockout"] for path in package.glob(pattern)}
    made = {".py", ".pyc", ".so", ".txt"}  # the kernels, and the note in their place
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in made}
    assert others - data == set((package / "ops" / "cpu" / "csrc").iterdir())


def test_the_headers_are_those_of_pytorch_and_none_is_missing() -> None:
    copied = sorted(HEADERS.rglob("*.h"))
    assert len(copied) > 50
    version = re.search(r"torch (\d+\.\d+\.\d+)", (HEADERS / "README.md").read_text())
    assert version
    same_version = torch.__version__.partition("+")[0] == version[1]
    original = Path(torch.__file__).parent / "include"
    for path in copied:
        name = path.relative_to(HEADERS)
        assert not same_version or path.read_bytes() == (original / name).read_bytes(), name
        for included in re.findall(r"^\s*#\s*include\s*[<\"](torch/[^>\"]+)", path.read_text(), re.MULTILINE):
            assert (HEADERS / included).exists() or not (original / included).exists(), f"{name} includes {included}"
