"""``evals arena``: its experiments on cases with a known outcome, its claims and its report."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from evals.arena import claims, cost, experiments, fidelity, gradients, learning
from evals.arena.figures import FIGURES
from evals.arena.methods import METHODS, SOFT, with_fixed_noise
from evals.arena.report import report
from evals.command import main
from harness.figures import draw_all
from harness.journal import Journal, Rows
from knockout import methods
from tests.test_evals_learning import write_images

ROOT = Path(__file__).parent.parent


def test_every_method_is_compared() -> None:
    names = {name.replace(" ", "_").replace("-", "_") for name in METHODS}
    assert {"knockout", *methods.__all__} - names == {"hard"}
    assert "gated" not in SOFT
    assert [name for name in SOFT if name.startswith("knockout")] == ["knockout"]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_softer_at_a_higher_temperature(name: str) -> None:
    method = METHODS[name]
    scores = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    soft, sharp = (
        with_fixed_noise(method.at(t))(scores, 5).mass() for t in (method.temperatures[-1], method.temperatures[0])
    )
    assert soft.shape == (4, 64)
    if method.family != "hard choice" and name != "knockout, hard":
        assert (soft > 1e-3).sum() >= (sharp > 1e-3).sum()
    state = torch.random.get_rng_state()
    one, two = (with_fixed_noise(method.at(method.default))(scores, 5).mass() for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(state, torch.random.get_rng_state())


def test_evaluation_scales_value_rows_as_in_training() -> None:
    scores, ones = torch.tensor([0.5, -3.0, 1.0, 0.0]), torch.ones(4, 1)

    def scales(name: str) -> list[float]:
        return [round(x, 4) for x in METHODS[name].for_evaluation(0.5)(scores, 2).apply(ones).flatten().tolist()]

    assert scales("knockout") == scales("knockout, hard") == scales("softsort") == [1.0, 1.0]
    assert scales("gated") == [round(2 / (1 + math.exp(-s / 0.5)), 4) for s in (1.0, 0.5)]
    assert scales("knockout, gated") == [round(2 / (1 + math.exp(-s)), 4) for s in (1.0, 0.5)]
    assert scales("lapsum") == [round(x, 4) for x in methods.lapsum(scores, 2, 0.5).apply(ones).flatten().tolist()]
    soft = METHODS["knockout, gated"].at(1.0)(scores, 2)
    plain = METHODS["knockout"].at(1.0)(scores, 2)
    torch.testing.assert_close(soft.weights(), 2 * plain.scores.sigmoid().unsqueeze(-1) * plain.weights())


def test_annealing_begins_soft_and_ends_at_the_temperature() -> None:
    found = [learning.temperature_at(progress, 0.5, True) for progress in (0.0, 0.5, 0.75, 1.0)]
    assert found == pytest.approx([8.0, 8.0, 2.0, 0.5])
    assert learning.temperature_at(0.0, 0.5, False) == 0.5


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_images(tmp_path)


@pytest.mark.parametrize("task", ["neighbours", "patches"])
def test_tasks_with_images_run_and_are_the_same_again(task: str, data: Path) -> None:
    first, again = (learning.measure(task, "gumbel", 0.3, True, 3, 2, data) for _ in range(2))
    assert first == again
    assert len({row["seed"] for row in first}) == 2
    assert all(0.0 <= row["score"] <= 1.0 for row in first)


def test_the_best_setting_is_the_one_with_the_highest_mean() -> None:
    rows: Rows = [
        {"task": "t", "method": "m", "temperature": temperature, "annealed": False, "seed": seed, "score": score}
        for temperature, scores in ((0.1, (0.9, 0.1)), (0.3, (0.6, 0.6)))
        for seed, score in enumerate(scores)
    ]
    assert [row["temperature"] for row in claims.best_setting(rows, "t", "m")] == [0.3, 0.3]
    assert claims.best_setting(rows, "t", "other") == []


@pytest.mark.parametrize("name", ["knockout", "lapsum", "softsort", "perturbed", "straight-through", "gated"])
def test_agreement_tells_right_gradients_from_wrong_ones(name: str) -> None:
    (row,) = gradients.agreement(name, 0)
    if name == "straight-through":
        assert row["distance"] is None
    elif name == "perturbed":
        assert row["cosine"] > 0.98
    else:
        assert row["cosine"] > 0.9999
        assert row["distance"] < 1e-5


def test_scales_show_which_methods_need_another_temperature() -> None:
    ours, theirs = (gradients.scales(name, 256, 8, 0) for name in ("knockout", "lapsum"))
    assert {1.0, 10.0, 100.0, 1000.0} <= set(gradients.working_scales(ours))
    assert gradients.working_scales(theirs) == [1.0]
    assert gradients.usable(torch.tensor([[1.0, 1e-4, 0.0, -0.5]])) == 0.5


def test_fidelity_of_known_selections() -> None:
    rows = fidelity.measure("heavy-tailed", 256, 8, 0)
    by = {(row["method"], row["temperature"]): row for row in rows}
    assert all(-1.0 <= row["nccs"] <= 1.0 + 1e-5 and 0.0 <= row["mass"] <= 1.0 + 1e-5 for row in rows)
    assert by["straight-through", 1.0]["mass"] == pytest.approx(1.0)
    assert by["knockout", 0.125]["mass"] > by["knockout", 1.0]["mass"] > 0.3
    ties = fidelity.near_ties((3, 40), torch.Generator().manual_seed(0)).sort(dim=-1).values
    assert (ties[:, 1::2] - ties[:, ::2]).abs().max() < 1e-4


@pytest.mark.skipif(sys.platform != "linux", reason="memory can only be limited on Linux")
def test_costs_are_measured_within_limits() -> None:
    rows = cost.measure(1024, 64, 0, seconds=5.0, mebibytes=8.0, patience=0.01)
    by = {row["method"]: row for row in rows}
    assert list(by) == list(cost.MEASURED)
    for name in ("hard", "knockout", "gated", "lapsum"):
        assert by[name]["status"] == cost.WITHIN
        assert 0 < by[name]["seconds"] < by[name]["seconds_with_backward"] * 3
        assert 1.9 < by[name]["mebibytes"] < 6  # the gradient of the values alone has 2 MiB
    for name in ("gumbel", "softsort", "perturbed"):  # 16 x 64 x 1024 weights are 4 MiB, and they need several
        assert by[name]["status"] == cost.MEMORY
        assert by[name]["seconds"] is None


def test_a_method_that_takes_too_long_is_stopped() -> None:
    process = cost.TrialProcess()
    try:
        assert process.try_method("hard", 64, 4, 0, 30.0, 1000.0)["status"] == cost.WITHIN
        begun = time.monotonic()
        assert process.try_method("sinkhorn", 65536, 64, 0, 0.2, 20000.0) == {
            "status": cost.TIME, "seconds": None, "mebibytes": None,
        }  # fmt: skip
        assert time.monotonic() - begun < 10
        assert process.try_method("knockout", 64, 4, 0, 30.0, 1000.0)["status"] == cost.WITHIN  # a new process
    finally:
        process.stop()


def test_a_method_that_fails_is_not_called_too_large() -> None:
    process = cost.TrialProcess()
    try:
        with pytest.raises(RuntimeError, match="'unknown' failed with n = 64, k = 4: KeyError"):
            process.try_method("unknown", 64, 4, 0, 5.0, 512.0)
    finally:
        process.stop()


def small(**changes: Any) -> experiments.Settings:
    settings = experiments.settings_for(True, 0, 1, False)
    return experiments.Settings(**{**vars(settings), "steps": 2, "seeds": 2, **changes})


def test_the_settings_of_learning() -> None:
    assert experiments.learning_settings("lapsum", 4, 2) == [
        (0.03, False), (0.1, False), (0.3, False), (1.0, False), (0.1, True), (0.3, True),
    ]  # fmt: skip
    assert experiments.learning_settings("lapsum", 4, 1)[4:] == [(0.3, True)]
    assert experiments.learning_settings("lapsum", 1, 0) == [(0.3, False)]
    settings = experiments.settings_for(False, 0, 2, True)
    names = [each.name for each in [*experiments.timings(settings), *experiments.studies(settings, None)]]
    assert len(names) == len(set(names))
    assert set(settings.tasks) == set(learning.TASKS)
    assert settings.seeds >= 5
    assert not set(learning.NEEDS_DATA) & set(experiments.settings_for(False, 0, 2, False).tasks)


def results(tmp_path: Path, settings: experiments.Settings) -> Journal:
    """Make a journal with the results of small experiments; costs are made up."""
    header = {"settings": vars(settings), "environment": {"knockout": "x"}}
    journal = Journal.open(tmp_path / "results.jsonl", header, resume=False)
    for each in experiments.timings(settings):
        n, k = (int(part.split("=")[1]) for part in each.name.split()[1:])
        rows = [
            {
                "method": name, "n": n, "k": k, "status": cost.WITHIN, "seconds": 1e-3 * place + 1e-4,
                "seconds_with_backward": 2e-3 * place + 1e-4, "mebibytes": 1.0,
            }
            for place, name in enumerate(cost.MEASURED)
        ]  # fmt: skip
        rows[3].update(status=cost.TIME, seconds=None, seconds_with_backward=None, mebibytes=None)
        rows[4].update(status=cost.MEMORY, seconds=None, seconds_with_backward=None, mebibytes=None)
        journal.append(each.name, rows)
    for each in experiments.studies(settings, None):
        rows = each.run()
        assert experiments.is_complete(each.name, rows), each.name
        journal.append(each.name, rows)
    assert journal._file is not None
    journal._file.close()
    return journal


def test_the_report_shows_all_results(tmp_path: Path) -> None:
    journal = results(tmp_path, small())
    draw_all(FIGURES, journal, tmp_path)
    text = report(journal)
    for name in METHODS:
        assert f"| {name} |" in text
    assert "too slow" in text
    assert "too large" in text
    assert "Not measured without Fashion-MNIST: neighbours." in text
    assert "knockout is the fastest soft method, forward, in 2." in text
    for name in FIGURES:
        assert f"({name}.png)" in text
        assert (tmp_path / f"{name}.png").stat().st_size > 2000


def test_claims_name_faster_and_better_methods() -> None:
    cells: Rows = [
        {"method": name, "n": n, "k": 8, "seconds": seconds}
        for n in (256, 1024, 4096)
        for name, seconds in (("knockout", 2.0), ("lapsum", 1.0 if n == 4096 else 3.0), ("gated", 0.1), ("lml", None))
    ]
    assert claims.fastest(cells, "seconds") == claims.Fastest(2, [(4096, 8, "lapsum", 2.0)])
    rows: Rows = [
        {"task": "t", "method": name, "temperature": 1.0, "annealed": False, "seed": seed, "score": score + 0.01 * seed}
        for name, score in (("knockout", 0.5), ("lapsum", 0.9), ("lml", 0.5), ("gated", 0.1))
        for seed in range(5)
    ]
    order = claims.standings(rows, "t")
    assert [(each.method, each.better) for each in order] == [
        ("lapsum", True), ("knockout", None), ("lml", None), ("gated", False),
    ]  # fmt: skip
    assert claims.relative_score(rows, "lapsum") == 1.0
    stopped = [{**row, "seconds": None} if row["method"] == "knockout" else row for row in cells]
    assert [each[:3] for each in claims.fastest(stopped, "seconds").slower] == [
        (1024, 8, "lapsum"), (4096, 8, "lapsum"),
    ]  # fmt: skip


def test_a_difference_is_clear_if_it_is_so_for_each_seed() -> None:
    seeds = [0.80, 0.90, 0.70, 0.85, 0.75]
    assert claims.clearly_above([x + 0.01 + 0.001 * i for i, x in enumerate(seeds)], seeds) is True
    assert claims.clearly_above(seeds, [x + 0.01 + 0.001 * i for i, x in enumerate(seeds)]) is False
    assert claims.clearly_above([0.9, 0.8, 0.75, 0.7, 0.85], seeds) is None
    assert claims.clearly_above([1.0], [0.0]) is None


def test_rows_of_another_experiment_are_noticed() -> None:
    good = {"task": "planted", "method": "lml", "temperature": 0.1, "annealed": False, "seed": 0, "score": 0.5}
    assert experiments.is_complete("learning planted, lml, 0.1", [good])
    assert not experiments.is_complete("learning planted, lml, 0.3", [good])
    assert not experiments.is_complete("learning planted, lml, 0.1", [{**good, "score": "0.5"}])
    assert not experiments.is_complete("learning planted, lml, 0.1", [{**good, "score": float("nan")}])
    assert not experiments.is_complete("nonsense", [good])


# A quick run with fewer timings, which take most of it.
QUICKER = """
from dataclasses import replace
from evals.arena import experiments
settings_for = experiments.settings_for
experiments.settings_for = lambda *options: replace(settings_for(*options), cells=((256, 8),), patience=0.01)
from evals.command import main
raise SystemExit(main())
"""


def begin(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", QUICKER, "arena", "--quick", "--threads", "1", *arguments], cwd=ROOT,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


def end(process: subprocess.Popen[str], with_signal: signal.Signals | None = None) -> tuple[int, str]:
    """Wait for the end of a process, sending it a signal first if there is one; return its code and errors."""
    for each in [with_signal] * 30 if with_signal else []:
        process.send_signal(each)  # once more if it came where Python can only print it, as in a callback
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=3)
            break
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def test_data_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "arena"
    assert main(["arena", "--quick", "--out", str(out), "--data", str(tmp_path / "nothing")]) == 2
    assert "--data" in capsys.readouterr().err
    assert not out.exists()


def test_a_killed_run_keeps_its_results_and_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, journal = tmp_path / "arena", tmp_path / "arena" / "results.jsonl"

    def lines() -> int:
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    def wait_for(more: int, process: subprocess.Popen[str]) -> None:
        until = time.monotonic() + 120
        while lines() < more and time.monotonic() < until and process.poll() is None:
            time.sleep(0.01)

    first = begin("--out", str(out))
    wait_for(2, first)
    end(first, signal.SIGKILL)
    kept = journal.read_bytes()
    assert lines() >= 2
    assert main(["arena", "--quick", "--out", str(out)]) == 2
    assert "pass --resume to continue it" in capsys.readouterr().err
    for _ in range(9):
        second = begin("--out", str(out), "--resume")
        wait_for(max(4, kept.count(b"\n") + 1), second)  # past the timings
        code, said = end(second, signal.SIGINT)
        if code != 0:
            break
        journal.write_bytes(kept)  # all was done before the signal came: once more
    assert code == 130, said
    assert "continue with --resume" in said
    assert journal.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
