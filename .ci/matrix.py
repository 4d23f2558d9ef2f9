"""Install the library in every way, with and without a C++ compiler: what does each end in, and what is the user told?

``python .ci/matrix.py``, after ``make dist``, or ``make matrix``, for what is committed. Where kernels are missing, the
command that the user is told is run, with a compiler: it must mend that.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "matrix"
CLONE = FOLDER / "clone"
BIN = FOLDER / "environment" / "bin"
PINNED = ["--quiet", "--constraint", str(ROOT / "constraints.txt")]

# Use it once: the reason, and what was warned. The environment has no NumPy, of which PyTorch warns.
TRY = """
import sys, warnings
warnings.filterwarnings("ignore", "Failed to initialize NumPy")
import torch, knockout
assert knockout.__file__.startswith(sys.argv[1]), knockout.__file__
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        knockout.topk(torch.eye(4), torch.arange(4.0), 2)
print(*(each.message for each in caught), sep=chr(10))
"""


def run(command: list[str], folder: Path = FOLDER, **environment: str) -> str:
    """Run a command. Returns what it prints."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def compilers() -> dict[str, dict[str, str]]:
    """Environment variables that make it appear as if there were this compiler. Without one, PATH has Git alone."""
    bare = FOLDER / "bare"
    bare.mkdir(parents=True)
    git = shutil.which("git")
    assert git
    (bare / "git").symlink_to(git)
    old = shutil.which("g++-11")
    return {
        "yes": {},
        "none": {"PATH": f"{BIN}:{bare}"},
        "broken (`false`)": {"CC": "false", "CXX": "false"},
        **({"too old (GCC 11)": {"CXX": old}} if old else {}),
    }


def ways() -> dict[str, list[str]]:
    """What each way of installation passes to pip."""
    (wheel,), (sdist,) = (ROOT / "dist").glob("*.whl"), (ROOT / "dist").glob("*.tar.gz")
    return {
        "`pip install .`": ["."],
        "`pip install --no-build-isolation .`": ["--no-build-isolation", "."],
        "`pip install --editable .`": ["--editable", "."],
        "`pip install git+file://...`": [f"git+file://{CLONE}"],
        "the sdist": [str(sdist)],
        "the wheel": [str(wheel)],
    }


def attempt() -> str:
    """What the first uses warn of; empty if the kernels are there."""
    editable = run([str(BIN / "pip"), "list", "--editable"])
    return run([str(BIN / "python"), "-c", TRY, str(CLONE if editable else FOLDER / "environment")])


def told(warning: str) -> str:
    """The cause and the remedy in a warning, without what is particular to this machine."""
    reason = re.search(r"at installation: (.*) To silence", warning)
    assert reason, warning
    shown = re.sub(rf"{CLONE}|\S*/dist/", "...", reason[1])
    return re.sub(r"[^ (]*/short\.cpp", "short.cpp", re.sub("@[0-9a-f]{40}", "@0123abcd", shown)).replace("|", r"\|")


def row(way: str, arguments: list[str], compiler: str, variables: dict[str, str]) -> list[str]:
    """Install, try, and mend if needed. Returns a row of the table."""
    run(["git", "clean", "-fdxq"], CLONE)
    start = time.perf_counter()
    run([str(BIN / "pip"), "install", *PINNED, *arguments], CLONE, **variables)
    seconds = time.perf_counter() - start
    info = run([str(BIN / "knockout"), "info"])
    warning = attempt()
    assert info.startswith("kernels: off" if warning else "kernels: on"), info
    if not warning:
        return [way, compiler, f"kernels, {seconds:.0f} s", ""]
    assert "\n" not in warning, warning  # one
    assert told(warning)[:60] in info, info
    command = re.search("`(pip install .*)`", warning)
    assert command, warning
    run(["sh", "-c", f"{BIN}/{command[1]} --quiet"], FOLDER)
    assert not attempt(), "the command does not mend it"
    return [way, compiler, f"no kernels, {seconds:.0f} s", told(warning)]


def environment(packages: list[str]) -> None:
    """A new environment with these packages."""
    shutil.rmtree(BIN.parent, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(BIN.parent)])
    if packages:
        run([str(BIN / "pip"), "install", *PINNED, *packages])


def main() -> None:
    """Print the table, a row as soon as it is there."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    run(["git", "clone", "--quiet", str(ROOT), str(CLONE)])
    print("| way | compiler | ends in | what the user is told |\n|---|---|---|---|")
    environment([])
    print("|", " | ".join(row("`pip install .`, without PyTorch", ["."], "yes", {})), "|", flush=True)
    environment(["torch", "setuptools"])
    found = compilers()
    for way, arguments in ways().items():
        for compiler in found if arguments == ["."] else ("yes", "none"):
            print("|", " | ".join(row(way, arguments, compiler, found[compiler])), "|", flush=True)
            run([str(BIN / "pip"), "uninstall", "--quiet", "--yes", "knockout-topk"])


if __name__ == "__main__":
    main()
