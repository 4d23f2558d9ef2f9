"""``python -m evals gpu``: kernels compile for a GPU that is not here, and launches are counted."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from evals.command import main
from harness.journal import Journal

pytestmark = pytest.mark.skipif(not find_spec("triton"), reason="needs Triton")
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a quick run. In a process of its own: the kernels of this one are interpreted."""
    out = tmp_path_factory.mktemp("gpu") / "results"
    command = [sys.executable, "-m", "evals", "gpu", "--quick", "--out", str(out)]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return out


def test_all_kernels_of_a_call_compile_without_a_stack(compiled: Path) -> None:
    rows = Journal.read(compiled / "results.jsonl").of("compile")
    assert [row["kernel"] for row in rows if row["pass"] == "forward"] == ["play", "expand", "blend_kernel"]
    assert [row["kernel"] for row in rows if row["pass"] == "backward"] == [
        "match_kernel", "spread_kernel", "up", "down",
    ]  # fmt: skip
    assert all(
        row["stack"] == row["inexact"] == 0 and 0 < row["registers"] <= 255 and row["seconds"] > 0 for row in rows
    )


def test_the_report_counts_launches(compiled: Path) -> None:
    """At most eight forward and sixteen with backward, where plain PyTorch takes hundreds."""
    text = (compiled / "report.md").read_text()
    table = text.split("## Launches")[1].split("\n\n")[2].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert [cell[0] for cell in cells] == [
        "64, 8", "1024, 64", "4096, 64", "16384, 2", "16384, 64", "16384, 2048",
    ]  # fmt: skip
    for _, *before, forward, both in cells:
        assert int(forward) <= 8
        assert int(both) <= 16
        assert min(map(int, before)) > 300


def test_kernels_that_are_interpreted_are_not_compiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "--out", str(tmp_path / "results")]) == 2
    assert "TRITON_INTERPRET must not be set" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
