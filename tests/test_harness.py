"""The harness: timing, memory, exit codes, and the reports of the committed results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.common import in_new_process
from evals.arena.report import report as arena_report
from evals.learning.report import report as learning_report
from evals.reproduce.report import report as reproduction_report
from harness.command import UsageError, run_command
from harness.journal import Journal, JournalError
from harness.memory import limited, peak_resident, reset_peak_resident
from harness.timing import interleaved, median

DOCS = Path(__file__).parent.parent / "docs"
REPORTS: dict[str, Callable[[Journal], str]] = {
    "reproduction": reproduction_report,
    "arena": arena_report,
    "learning": learning_report,
}


def test_calls_are_interleaved() -> None:
    made: list[str] = []
    taken = interleaved({"a": lambda: made.append("a"), "b": lambda: made.append("b")}, rounds=3)
    assert made == ["a", "b"] * 4  # the first time to warm up
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 3, "b": 3}
    assert median([3.0, 1.0, 2.0]) == 2.0


@pytest.mark.skipif(sys.platform != "linux", reason="the peak can only be reset on Linux")
def test_peak_memory() -> None:
    in_new_process(check_peak_memory)  # here, memory that earlier tests have freed may be used again


def check_peak_memory() -> None:
    size = 64 * 2**20
    before = reset_peak_resident()
    torch.ones(size, dtype=torch.uint8)
    assert peak_resident() - before > 0.9 * size
    assert reset_peak_resident() < before + 0.5 * size
    with limited(size), pytest.raises(RuntimeError, match="memory"):
        torch.ones(2 * size, dtype=torch.uint8)
    torch.ones(2 * size, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("error", "code"), [(UsageError("x"), 2), (JournalError("x"), 2), (OSError("x"), 1), (KeyboardInterrupt(), 130)]
)
def test_exit_codes(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise error

    assert run_command("name", fail) == code
    assert capsys.readouterr().err.startswith("name: ")
    assert run_command("name", lambda: None) == 0


@pytest.mark.parametrize(("folder", "report"), REPORTS.items())
def test_committed_reports_are_those_of_the_committed_results(folder: str, report: Callable[[Journal], str]) -> None:
    assert report(Journal.read(DOCS / folder / "results.jsonl")) == (DOCS / folder / "report.md").read_text()
