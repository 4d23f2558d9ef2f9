"""``python -m evals``: its output and files, resuming, and its answers to mistakes, kills and foreign files."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evals.command import main
from evals.reproduce import experiments
from evals.reproduce.figures import FIGURES
from evals.reproduce.published import published
from harness.journal import Journal
from tests.cases import threads

ROOT = Path(__file__).parent.parent
# A whole run in seconds: with fewer cells, batches and steps.
TINY = """
from evals.reproduce import experiments
from evals.reproduce.experiments import Settings
experiments.GRIDS["quick"] = [(16, 2), (16, 8), (32, 2), (1024, 2), (1024, 64)]
experiments.SORTS[1:] = []
experiments.PAIRED[:] = [(64, 8)]
experiments.TRAINED[:] = [("halving", 8), ("Relative(4)", 8), ("iterative", 8), ("pairing: fold", 8),
                          ("pairing: adjacent", 8), ("pairing: random", 8)]
experiments.settings_for = lambda grid, seed, device, threads: Settings(
    grid, seed, device, threads, batches=2, weights=2**22, patience=0.0, rates=(0.05, 0.01), seeds=2, steps=8)
"""
RunHere = Callable[..., tuple[int, str]]
REPLACED: tuple[Any, ...] = (experiments.GRIDS, experiments.SORTS, experiments.PAIRED, experiments.TRAINED)
RUN = [sys.executable, "-c", TINY + "from evals.command import main; raise SystemExit(main())", "reproduce"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([*RUN, *arguments], cwd=ROOT, capture_output=True, text=True, env=given, timeout=300)


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[RunHere]:
    """The same in this process, which takes no time to start: the exit code, and what is on standard error."""

    def run_here(*arguments: str) -> tuple[int, str]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # the end of a process closes the file of results
            code = main(["reproduce", *arguments])
        return code, capsys.readouterr().err

    before = copy.deepcopy(REPLACED)
    monkeypatch.setattr(experiments, "settings_for", experiments.settings_for)
    exec(TINY, {})
    with threads(1):
        yield run_here
    for changed, contents in zip(REPLACED, before, strict=True):
        changed.clear()
        (changed.update if isinstance(changed, dict) else changed.extend)(contents)


def without_seconds(path: Path) -> Any:
    """Read the rows of a results file, without times."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        (line["work"], [{name: x for name, x in row.items() if "seconds" not in name} for row in line["rows"]])
        for line in lines[1:]
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    out = tmp_path_factory.mktemp("finished") / "results"
    return out, run("--out", str(out))


Finished = tuple[Path, subprocess.CompletedProcess[str]]


def test_a_run_leaves_results_figures_and_report(finished: Finished) -> None:
    out, done = finished
    assert done.returncode == 0, done.stderr
    figures = {f"{name}.png" for name in FIGURES}
    assert {path.name for path in out.iterdir()} == figures | {"results.jsonl", "report.md"}
    last = done.stdout.splitlines()[-1]
    assert last == f"report: {out / 'report.md'}"
    assert "published results reproduced" in done.stdout
    assert f"{published()['halving', 1024, 2].nccs:.3f}" in done.stdout  # the largest n of each k is shown
    assert "\x1b" not in done.stdout + done.stderr  # without a terminal, no colors and no progress bar


def test_results_have_their_settings_and_environment(finished: Finished) -> None:
    journal = Journal.read(finished[0] / "results.jsonl")
    assert journal.header["settings"]["seed"] == 0
    assert journal.header["settings"]["threads"] == 1
    assert journal.header["environment"]["torch"]
    assert {"commit", "code", "processor", "python", "knockout"} <= journal.header["environment"].keys()
    assert len(journal.of("cell")) == 5 * 8


def test_the_report_has_every_claim_and_figure(finished: Finished) -> None:
    text = (finished[0] / "report.md").read_text()
    for name in FIGURES:
        assert f"({name}.png)" in text
    for words in ("Higher nCCS than the iterative baseline", "Sorting costs next to nothing", "halving, published"):
        assert words in text


def test_a_killed_run_continues(finished: Finished, tmp_path: Path) -> None:
    out, _ = finished
    begun = subprocess.Popen(
        [*RUN, "--out", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    results = tmp_path / "results.jsonl"
    while not results.exists() or results.read_text().count("\n") < 4:
        assert begun.poll() is None
        time.sleep(0.01)
    begun.send_signal(signal.SIGKILL)
    begun.communicate()
    before = results.read_bytes()
    with results.open("ab") as file:
        file.write(b'{"work": "cell n=32')  # killed while it was writing
    resumed = run("--out", str(tmp_path), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "experiments are already done" in resumed.stderr
    assert results.read_bytes().startswith(before)
    assert without_seconds(results) == without_seconds(out / "results.jsonl")
    assert Journal.read(results).header["settings"] == Journal.read(out / "results.jsonl").header["settings"]


def test_a_finished_run_is_shown_again_without_measuring(finished: Finished) -> None:
    out, first = finished
    before = (out / "results.jsonl").read_bytes()
    again = run("--out", str(out), "--resume")
    assert again.returncode == 0
    assert again.stdout == first.stdout
    assert (out / "results.jsonl").read_bytes() == before


def copied(finished: Finished, folder: Path) -> Path:
    path = folder / "results.jsonl"
    path.write_bytes((finished[0] / "results.jsonl").read_bytes())
    return path


def test_results_are_not_continued_without_resume(finished: Finished, tmp_path: Path) -> None:
    path = copied(finished, tmp_path)
    before = path.read_bytes()
    done = run("--out", str(tmp_path))
    assert done.returncode == 2
    assert "pass --resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text.replace('"work"', "work", 1), "damaged at line 2"),
        (lambda text: text + text.splitlines()[1] + "\n", "damaged at line"),  # twice
        (lambda text: "[1, 2]\n" + text, "damaged at line 1"),
        (lambda text: text.replace('"rows": [', '"rows": [3, ', 1), "damaged at line 2"),
        (lambda _: "n,k\n16,2\n", "damaged at line 1"),
        (lambda _: "{}\n", "not a results file"),
        (lambda _: "", "not a results file"),
        (lambda _: "half a line", "not a results file"),
        (lambda text: text.replace('"seed": 0', '"seed": 1', 1), "another run: it was started with seed = 1"),
        (lambda text: text.replace('"work": "rounds"', '"work": "rounded"', 1), "'rounded', which is not part of this"),
        (lambda text: "\n".join(text.replace('"code": "', '"code": "x').splitlines()[:4]) + "\n", "another code"),
        (lambda text: text.replace('"nccs"', '"nccz"', 1), "damaged at 'cell n=16 k=2'"),
        (lambda text: text.replace('"seconds": ', '"seconds": "x", "y": ', 1), "damaged at 'cell n=16 k=2'"),
        (lambda text: text.replace('"method": "hard"', '"method": "harder"', 1), "damaged at 'cell n=16 k=2'"),
        (lambda text: text.replace('"n": 16', '"n": 17', 1), "damaged at 'cell n=16 k=2'"),
        (lambda text: text.replace('"nccs": ', '"nccs": NaN, "x": ', 1), "damaged at line 2"),
        (lambda text: text.replace('"n": 16', '"n": 1' + "0" * 5000, 1), "damaged at line 2"),
        (lambda text: text + "[" * 100_000 + "\n", "damaged at line"),
        (lambda text: text + '{"work": "rounds", "rows": []}\n', "damaged at line"),
    ],
)  # fmt: skip
def test_a_damaged_or_foreign_file_is_left_alone(
    finished: Finished, tmp_path: Path, run_here: RunHere, damage: Any, message: str
) -> None:
    path = copied(finished, tmp_path)
    path.write_text(damage(path.read_text()))
    before = path.read_bytes()
    code, errors = run_here("--out", str(tmp_path), "--resume")
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_unfinished_file_of_another_run_is_left_alone_too(
    finished: Finished, tmp_path: Path, run_here: RunHere
) -> None:
    path = copied(finished, tmp_path)
    path.write_text(path.read_text() + '{"work": "half')
    before = path.read_bytes()
    assert run_here("--out", str(tmp_path), "--resume", "--seed", "1")[0] == 2
    assert path.read_bytes() == before


def test_results_of_another_environment_are_not_continued(finished: Finished, tmp_path: Path) -> None:
    path = copied(finished, tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]))
    done = run("--out", str(tmp_path), "--resume", KNOCKOUT_BACKEND="reference")
    assert done.returncode == 2
    assert "another native kernels (True, now False)" in done.stderr
    path.write_text("".join(lines))  # a complete run may be shown anywhere, with a note
    done = run("--out", str(tmp_path), "--resume", KNOCKOUT_BACKEND="reference")
    assert done.returncode == 0
    assert "measured with another native kernels" in done.stderr


def test_foreign_files_are_not_overwritten(tmp_path: Path, run_here: RunHere) -> None:
    (tmp_path / "report.md").write_text("mine")
    code, errors = run_here("--out", str(tmp_path))
    assert code == 2
    assert "report.md exists, and would be overwritten" in errors
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_settings_of_terminal_and_matplotlib_do_not_matter(finished: Finished, tmp_path: Path) -> None:
    copied(finished, tmp_path)
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\n")
    odd = {"PYTHONIOENCODING": "ascii", "MPLBACKEND": "nonsense", "MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}
    done = run("--out", str(tmp_path), "--resume", **odd)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "quality.png").read_bytes() == (finished[0] / "quality.png").read_bytes()


def test_of_many_runs_that_start_at_once_one_gets_the_file(tmp_path: Path) -> None:
    header = {"settings": {"seed": 0}, "environment": {"code": "x"}}
    code = (
        "import sys, time; from pathlib import Path; from harness.journal import Journal, JournalError\n"
        "go, end, path = map(Path, sys.argv[1:]); print('ready', flush=True)\n"
        "while not go.exists(): pass\n"
        "try:\n"
        f"    journal = Journal.open(path, {header!r}, resume=True)\n"
        "    journal.append('rounds', [{}]); print('mine', flush=True)\n"
        "    while not end.exists(): time.sleep(0.01)\n"
        "except JournalError: print('theirs', flush=True)\n"
    )
    go, end, path = tmp_path / "go", tmp_path / "end", tmp_path / "results.jsonl"
    command = [sys.executable, "-c", code, *map(str, (go, end, path))]
    several = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said: list[list[str]] = []
    for signal_file in (go, end):
        said.append([each.stdout.readline().strip() for each in several if each.stdout])
        signal_file.touch()
    assert said[0] == ["ready"] * 3
    assert sorted(said[1]) == ["mine", "theirs", "theirs"]
    assert [each.communicate(timeout=60)[0] for each in several] == [""] * 3
    assert len(path.read_text().splitlines()) == 2


def test_one_file_has_one_writer(finished: Finished, tmp_path: Path, run_here: RunHere) -> None:
    fcntl = pytest.importorskip("fcntl")
    path = copied(finished, tmp_path)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        code, errors = run_here("--out", str(tmp_path), "--resume")
    assert code == 2
    assert "being written by another run" in errors


def test_an_interrupt_keeps_finished_results(tmp_path: Path) -> None:
    begun = subprocess.Popen(
        [*RUN, "--out", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background process would ignore it
    )
    while not (tmp_path / "results.jsonl").exists():
        time.sleep(0.01)
    begun.send_signal(signal.SIGINT)
    _, errors = begun.communicate(timeout=60)
    assert begun.returncode == 130
    assert "--resume" in errors
    assert "Traceback" not in errors


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--help"], "examples:"),
        (["reproduce", "--help"], "--grid"),
        (["arena", "-h"], "--data"),
        (["learning", "-h"], "--contestants"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 0
        assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["reproduce", "--grid", "huge"], "--grid"),
        (["reproduce", "--seed", "-1"], "--seed: must be a whole number from 0 to 2147483648; got '-1'"),
        (["reproduce", "--threads", "0"], "--threads: must be a whole number from 1 to 4096"),
        (["reproduce", "--seed", "x"], "got 'x'"),
    ],
)
def test_a_wrong_call(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("device", ["meta", "gpu", "cuda:99", "hpu"])
def test_a_device_that_is_not_there(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--device", device, "--out", str(tmp_path / "results")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("evals: error: --device:")
    assert repr(device) in error
    assert not (tmp_path / "results").exists()


def test_a_folder_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results").write_text("mine")
    assert main(["reproduce", "--out", str(tmp_path / "results")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert main(["reproduce", "--out", str(tmp_path / "results" / "more")]) == 1
    assert capsys.readouterr().err.startswith("evals: error:")
    assert (tmp_path / "results").read_text() == "mine"


def test_without_the_extra_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['matplotlib'] = None; from evals.command import main; sys.exit(main(['reproduce']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "matplotlib is missing: make install" in done.stderr
