"""The fuzzer: kept and some fresh cases, and that it notices whatever goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from fuzz import kept
from fuzz.kept import KINDS
from fuzz.watch import Done, Failure, Task, watch
from tests.cases import ROOT, run_python


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    # Without Triton's interpreter, which takes minutes: its kernels have drawn cases in tests/test_triton_kernels.py.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-m", "fuzz", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_kept_and_fresh_cases() -> None:
    done = fuzz("--cases", "200", "--seed", "1", "--workers", "1")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("line", range(len(kept.read())))
def test_a_kept_case_can_be_read(line: int) -> None:
    written = kept.read()[line]
    kind = KINDS[written.kind]
    assert kind.write(kind.read(written.case)) == written.case


@pytest.mark.parametrize("name", KINDS)
def test_a_case_depends_on_its_seed_and_number_alone_and_can_be_written(name: str) -> None:
    kind = KINDS[name]
    written = json.dumps(kind.write(kind.draw(3, 17)))
    kind.draw(3, 1000), kind.draw(4, 17)
    assert json.dumps(kind.write(kind.draw(3, 17))) == written
    assert json.dumps(kind.write(kind.read(json.loads(written)))) == written
    assert {json.dumps(kind.write(kind.draw(3, number))) for number in range(20)} != {written}


def test_a_case_is_run_again_by_its_name() -> None:
    done = fuzz("--replay", "misuse:0:3")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert fuzz("--replay", "nothing:0:3").returncode == 2


def misbehave(number: int) -> str:
    """One case of everything that can go wrong."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 5:
        raise ValueError("this is wrong")
    if number == 8:
        time.sleep(1000)
    if number == 9:
        os._exit(7)
    return "well done"


def print_news() -> None:
    """In a process of its own: pytest may have started threads, and workers are forked."""
    tasks = iter([Task("some", range(6)), Task("others", range(6, 12))])
    news = list(watch({"some": misbehave, "others": misbehave}, tasks, workers=2, limit=3))
    failures = sorted([each.source, each.number, each.what] for each in news if isinstance(each, Failure))
    counts = [sum(each.counts.values()) for each in news if isinstance(each, Done)]
    print(json.dumps([failures, sum(counts)]))


def test_crashes_and_hangs_are_named_and_the_other_cases_still_run() -> None:
    printed = run_python("from tests.test_fuzz import print_news as run; run()").stdout
    expected: list[Any] = [
        ["others", 8, "still running after 3 s"],
        ["others", 9, "died with exit code 7"],
        ["some", 3, "killed by SIGSEGV"],
        ["some", 5, "ValueError: this is wrong"],
    ]
    assert json.loads(printed) == [expected, 8]
