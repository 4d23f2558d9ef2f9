"""A run of the tests, in a process that was forked for it after PyTorch had been imported."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

# What the tests need, but nothing of the tree: the server from which the processes are forked has these.
PRELOAD = [
    "torch",
    "torch.utils.checkpoint",
    "torch._dynamo",
    "numpy",
    "pytest",
    "hypothesis",
    "sybil",
    "mutants.child",
]
MEMORY = 12 * 2**30
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(PRELOAD)


class Outcome(NamedTuple):
    """What became of the tests."""

    status: str  # "passed", "killed", "timeout", or "broken" if not even the package can be imported
    by: str = ""  # the first test that failed, or the signal that ended the process
    seconds: float = 0.0  # of processor time, as far as known


def run_tests(tree: Path, package: str, tests: Sequence[str], examples: int, limit: float) -> Outcome:
    """Run tests in a tree. Hypothesis draws so many ``examples`` at most.

    ``limit`` is in seconds of processor time. Ten times as long on the clock ends the tests too: they may wait forever.
    """
    result = tree / "outcome.json"
    result.unlink(missing_ok=True)
    process = FORKSERVER.Process(target=_run, args=(str(tree), package, tuple(tests), examples, int(limit) + 1))
    process.start()
    assert process.pid is not None
    process.join(10 * limit)
    hangs = process.is_alive()
    with suppress(ProcessLookupError):  # processes that the tests have started, too
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    code = process.exitcode or 0
    if hangs or code == -signal.SIGXCPU:
        return Outcome("timeout", "", limit)
    if not result.exists():
        return Outcome("killed", signal.Signals(-code).name if code < 0 else f"exit code {code}")
    return Outcome(*json.loads(result.read_text()))


class _First:
    """A plugin of pytest that notes the first failure."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._note(report)

    def pytest_collectreport(self, report: Any) -> None:
        self._note(report)

    def _note(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def _run(tree: str, package: str, tests: Sequence[str], examples: int, limit: int) -> None:
    os.setsid()
    log = os.open(f"{tree}/log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1), os.dup2(log, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(tree)
    sys.path[:0] = [f"{tree}/src", tree]
    for name in [name for name in sys.modules if name.partition(".")[0] == "mutants"]:
        del sys.modules[name]  # the tests that are in this package are those of the tree, too
    os.environ["PYTHONPATH"] = f"{tree}/src"  # for processes that the tests start
    sys.dont_write_bytecode = False  # it is in the tree, and saves a second for the next mutant
    outcome = _outcome(tree, package, tests, examples)
    Path(tree, "outcome.json").write_text(json.dumps([*outcome, time.process_time()]))
    sys.stdout.flush()
    os._exit(0)


def _outcome(tree: str, package: str, tests: Sequence[str], examples: int) -> tuple[str, str]:
    try:
        module = import_module(package)
    except Exception as error:
        return "broken", repr(error)
    assert str(module.__file__).startswith(tree), f"{package} is not that of the tree: {module.__file__}"
    import pytest

    _set_up_hypothesis(examples)
    first = _First()
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", f"--rootdir={tree}", *tests], plugins=[first])
    if code == pytest.ExitCode.OK:
        return "passed", ""
    return "killed", first.failed or f"pytest: {code!r}"


def _set_up_hypothesis(examples: int) -> None:
    """The same examples every time, not too many, and no search for the smallest one that fails."""
    from hypothesis import Phase, settings

    make = settings.__init__

    def capped(self: settings, *args: Any, **given: Any) -> None:
        given |= {"phases": (Phase.explicit, Phase.generate), "deadline": None, "database": None, "derandomize": True}
        given["max_examples"] = min(given.get("max_examples", examples), examples)
        make(self, *args, **given)

    settings.__init__ = capped  # type: ignore[method-assign]
    settings.register_profile("mutants", settings())
    settings.load_profile("mutants")
