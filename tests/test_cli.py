"""The installed command: what it prints, its exit codes, and that it needs nothing but torch."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import knockout
from evals.reproduce import grid
from knockout import backends
from knockout.cli import bench, checking, habits, info, main, timing

ROOT = Path(__file__).parents[1]
MAIN = "from knockout.cli import main; raise SystemExit(main())"


def start(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **options.pop("environment", {})}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], text=True, env=environment, cwd=ROOT, **streams)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=120)
    return process.returncode, out, errors


# --- info -----------------------------------------------------------------------------------------


def test_info_says_first_whether_the_kernels_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    with backends.force("reference"):
        assert main(["info"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("kernels: off for cpu")
    text = "\n".join(rest)
    for words in (knockout.__version__, torch.__version__, "usable", "why not", "device", *backends.NAMES):
        assert words in text


with_kernels = pytest.mark.skipif("cpu" not in backends.available(), reason="the C++ kernels are not used")


@with_kernels
def test_info_with_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    with backends.force("auto"):
        assert main(["info"]) == 0
    assert capsys.readouterr().out.startswith("kernels: on for cpu (cpu)\n")


def test_info_gives_the_reason(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "why_not", lambda name: "no compiler" if name == "cpu" else "")
    assert main(["info"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "no compiler" in line)
    assert line.split() == ["cpu", "no", "no", "compiler"]


def test_info_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["knockout"] == knockout.__version__
    assert found["backends"]["reference"] == ""
    assert found["devices"]["cpu"] in backends.NAMES
    assert found["threads"] == torch.get_num_threads()


# --- bench ----------------------------------------------------------------------------------------


def test_bench_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--quick", "--device", "cpu"]) == 0
    out, errors = capsys.readouterr()
    assert errors == ""
    assert f"threads: {torch.get_num_threads()}" in out
    header, *rows = out.split("\n\n")[2].splitlines()
    assert header.split()[:7] == ["device", "backend", "batch", "n", "k", "d", "boost"]
    assert [row.split()[6] for row in rows] == ["default", "1", "4", "16"]


def test_bench_says_how_many_results_are_the_same_bits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(checking.CASES)
    assert main(["bench", "--check", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert f"the same bits in {count} of {count} cases." in out
    assert "Median" not in out

    right = checking._outcome

    def rounded(case: checking.Case, *more: Any) -> dict[str, Tensor]:
        found = right(case, *more)
        if case is checking.CASES["mask"] and backends.available() != ["reference"]:
            found["weights"] = found["weights"] * (1 + 2e-7)
        return found

    monkeypatch.setattr(checking, "_outcome", rounded)
    with backends.force("auto"):
        assert main(["bench", "--check", "--device", "cpu"]) == 0
    assert f"the same bits in {count - 1} of {count} cases (not: mask)." in capsys.readouterr().out


def test_the_cells_of_the_paper(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def measure(*arguments: Any) -> list[Any]:
        seen.append(arguments[1])
        return []

    monkeypatch.setattr(bench, "measure", measure)
    assert main(["bench", "--paper", "--device", "cpu"]) == 0
    capsys.readouterr()
    assert len(seen) == 85
    assert {(cell.n, cell.k) for cell in seen} == set(grid.CELLS)


def test_bench_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--quick", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["environment"]["torch"] == torch.__version__
    assert {row["device"] for row in found["rows"]} == {"cpu"}
    assert all(row["ratio"] > 0 and row["ratio_with_backward"] > 0 for row in found["rows"])


def test_bench_measures_every_cell_on_every_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def measure(*arguments: Any) -> list[Any]:
        seen.append(arguments[:2])
        return []

    monkeypatch.setattr(bench, "measure", measure)
    assert main(["bench"]) == 0
    capsys.readouterr()
    assert seen == [(device, cell) for device in info.devices() for cell in bench.CELLS]


@with_kernels
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_bench_reports_nothing_when_results_are_wrong(
    options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = bench._soft

    def wrong(values: Tensor, scores: Tensor, k: int, **settings: Any) -> Tensor:
        return right(values, scores, k, **settings) + (
            1e-2 if backends.chosen_for(values.device) != "reference" else 0.0
        )

    monkeypatch.setattr(bench, "_soft", wrong)
    with backends.force("auto"):
        assert main(["bench", "--quick", *options]) == 1
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.startswith("knockout: error: on cpu the backend")
    assert "no times are reported" in errors


def test_a_device_that_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory\nstatistics")

    monkeypatch.setattr(bench, "measure", fail)
    assert main(["bench", "--device", "cpu"]) == 1
    assert capsys.readouterr() == ("", "knockout: error: on cpu: out of memory\n")


@pytest.mark.parametrize("device", ["meta", "gpu", "cuda:99", "hpu"])
def test_a_device_that_is_not_there(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--device", device]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.startswith(f"knockout: error: --device: {device!r}")


# --- habits of the command ------------------------------------------------------------------------


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--version"], f"knockout {knockout.__version__}"),
        (["--help"], "examples:"),
        (["bench", "--help"], "--device"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 0
        assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["measure"], "choose from 'info', 'bench'"),
        (["bench", "--threads", "0"], "--threads: must be a whole number from 1 to 4096; got '0'"),
        (["bench", "--threads", "x"], "got 'x'"),
        (["info", "--device", "cpu"], "--device"),
    ],
)
def test_a_wrong_call(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["reproduce", "arena"])
def test_commands_that_have_moved(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--out", "results", "--help"]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.count("\n") == 1
    assert f"python -m evals {name}" in errors


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (habits.UsageError("no such thing"), 2, "knockout: error: no such thing\n"),
        (habits.CommandError("it broke"), 1, "knockout: error: it broke\n"),
        (PermissionError("not allowed"), 1, "knockout: error: not allowed\n"),
        (KeyboardInterrupt(), 130, "knockout: interrupted\n"),
    ],
)
def test_exit_codes(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(info, "environment", fail)
    assert main(["info"]) == code
    assert capsys.readouterr().err == message


def test_an_interrupt_of_the_process() -> None:
    wait = (
        "import sys, time; from knockout import cli\n"
        "def measure(*_):\n    print('measuring', file=sys.stderr, flush=True); time.sleep(60)\n"
        "cli.bench.measure = measure; raise SystemExit(cli.main())"
    )
    # In a background job SIGINT is ignored, and child processes inherit that.
    begun = start(wait, "bench", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert begun.stderr is not None
    assert begun.stderr.readline() == "measuring\n"
    begun.send_signal(signal.SIGINT)
    assert finish(begun) == (130, "", "knockout: interrupted\n")


def test_torch_alone_is_enough() -> None:
    names = ("matplotlib", "numpy", "pyarrow", "rich", "safetensors", "transformers", "harness", "benchmarks")
    # numpy only after torch, which itself imports it where it is installed.
    hidden = f"import sys, torch; sys.modules.update(dict.fromkeys({names!r})); "
    code, out, errors = finish(start(hidden + MAIN, "bench", "--quick"))
    assert (code, errors) == (0, "")
    assert "\x1b" not in out  # a pipe is not a terminal


def test_python_m_knockout_and_a_reader_that_leaves() -> None:
    run = "import runpy; runpy.run_module('knockout', run_name='__main__', alter_sys=True)"
    closed, pipe = os.pipe()
    os.close(closed)
    code, _, errors = finish(start(run, "info", stdout=pipe))
    os.close(pipe)
    assert (code, errors) == (1, "")


@pytest.mark.parametrize(
    ("environment", "colored"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_bold_only_on_a_terminal_without_no_color(environment: dict[str, str], colored: bool) -> None:
    ours, terminal = pty.openpty()
    environment = {"TERM": "xterm", "NO_COLOR": "", **environment}
    try:
        code, _, errors = finish(start(MAIN, "info", stdout=terminal, environment=environment))
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(terminal)
        os.close(ours)
    assert (code, errors) == (0, "")
    assert ("\x1b[1m" in shown) == colored
    assert knockout.__version__ in shown


# --- timing ---------------------------------------------------------------------------------------


def test_calls_take_turns() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    taken = timing.interleaved(calls, rounds=3)
    assert order == list("ab" * 4)  # once each that is not timed
    assert {name: len(each) for name, each in taken.items()} == {"a": 3, "b": 3}


def test_calls_go_on_until_the_time_has_passed() -> None:
    assert len(timing.interleaved({"a": lambda: None}, rounds=1, seconds=0.01)["a"]) > 10


def test_the_hard_twin() -> None:
    values, scores = torch.randn(2, 5, 3, requires_grad=True), torch.randn(2, 5, requires_grad=True)
    found = timing.hard_topk(values, scores, 2)
    expected = torch.stack([row[each.topk(2).indices] for row, each in zip(values, scores, strict=True)])
    torch.testing.assert_close(found, expected)
    d_values, d_scores = timing.gradients(
        lambda values, scores: timing.hard_topk(values, scores, 2), values, scores, torch.ones_like(found)
    )
    assert d_values.sum() == found.numel()
    assert d_scores is None
