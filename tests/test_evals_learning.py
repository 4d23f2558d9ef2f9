"""``evals learning``: its tasks, its contestants, what it concludes, its report, and resuming."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import one_hot

from evals.command import main
from evals.learning import conditions, contestants, experiments
from evals.learning.claims import Outcome, findings
from evals.learning.conditions import CONDITIONS
from evals.learning.contestants import DEFAULTS, OURS, PLAIN, RIVALS, TUNED
from evals.learning.figures import FIGURES
from evals.learning.report import report
from evals.learning.stability import stability
from evals.learning.tasks import Recipe, optimize, train
from evals.learning.tasks_features import Features
from evals.learning.tasks_images import Patches
from evals.learning.tasks_planted import Candidates, Indexer, Planted
from evals.learning.tasks_tokens import Needle, Router
from harness.figures import draw_all
from harness.journal import Journal, Rows
from harness.runner import open_results
from knockout import Selection, methods
from knockout.nn import TopK


def write_images(folder: Path) -> Path:
    """Write files in the format of Fashion-MNIST, with fewer images."""
    generator = torch.Generator().manual_seed(0)
    for name, count in (("train", 2100), ("t10k", 2000)):
        images = torch.randint(256, (count, 28, 28), generator=generator, dtype=torch.uint8)
        labels = torch.randint(10, (count,), generator=generator, dtype=torch.uint8)
        images[:, 0, :10] = 255 * one_hot(labels.long(), 10).to(torch.uint8)  # something to learn
        for kind, tensor in (("images-idx3", images), ("labels-idx1", labels)):
            sizes = b"".join(size.to_bytes(4, "big") for size in tensor.shape)
            header = bytes([0, 0, 8, tensor.dim()]) + sizes
            (folder / f"{name}-{kind}-ubyte").write_bytes(header + tensor.numpy().tobytes())
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


def sized(condition: str) -> tuple[int, int]:
    """Read n and k from the name of a condition of "planted"."""
    words = condition.split()  # planted 4 of 512
    return (int(words[3]), int(words[1])) if "of" in words else (256, 8)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_task_selects_k_of_n_and_teaches_every_parameter(condition: str, data: Path) -> None:
    if condition in conditions.NEEDS_SKLEARN:
        pytest.importorskip("sklearn")
    task, seen = CONDITIONS[condition].task(0, data), []

    def select(scores: torch.Tensor, k: int) -> Selection:
        seen.append((scores.shape[-1], k))
        return methods.lapsum(scores, k)

    loss = task.loss(select)
    assert loss.isfinite()
    loss.backward()
    assert seen == [(task.n, task.k)]
    if condition.startswith("planted"):
        assert seen == [sized(condition)]
    assert all(parameter.grad is not None for parameter in task.parameters())
    assert 0.0 <= task.chance < 1.0


def test_data_depend_on_the_seed_alone() -> None:
    for make in (Planted, Indexer, Needle, Router):
        one, same, other = (make(seed).loss(methods.lapsum).item() for seed in (5, 5, 6))
        assert one == same != other


def test_training_learns_what_is_planted_and_a_selection_without_gradient_does_not() -> None:
    assert train(Planted(0, features=16), lambda _: methods.lapsum, 150, methods.hard, 0) > 0.8
    made = Planted(0)
    start = made.weight.detach().clone()
    with pytest.raises(RuntimeError, match="does not require grad"):
        train(made, lambda _: lambda scores, k: methods.hard(scores + 0.0, k), 2, methods.hard, 0)
    assert torch.equal(made.weight, start)
    assert Planted(0).evaluate(methods.hard) < 0.3


def test_all_relevant_candidates_are_found_with_the_true_direction() -> None:
    made = Planted(3, n=100, k=5, scale=100.0, dtype=torch.bfloat16)
    with torch.no_grad():
        made.weight.copy_(made.direction)
        assert made.evaluate(methods.hard) > 0.9  # ties of bfloat16
    made.scale, made.dtype = 1.0, torch.float32
    with torch.no_grad():
        assert made.evaluate(methods.hard) == 1.0
    indexer = Indexer(0)
    u, s, v = torch.linalg.svd(indexer.form)
    with torch.no_grad():
        for part, weight in ((indexer.query, u[:, :16] * s[:16]), (indexer.key, v[:16].T)):
            part.weight.copy_(weight.T)
            part.bias.zero_()
        assert indexer.evaluate(methods.hard) > 0.999


def test_candidates_have_the_promised_features() -> None:
    generator = torch.Generator().manual_seed(0)
    plain, heavy = (Candidates(freedom).draw(50, 200, 4, generator).abs().amax() for freedom in (0, 2))
    assert heavy > 3 * plain
    copies = Candidates(copies=4).draw(2, 16, 8, generator).view(2, 4, 4, 8)
    assert copies.std(dim=2).mean() < 0.15 < 0.5 < copies.std(dim=1).mean()
    assert Candidates(outlier=100.0).draw(1, 16, 8, generator).norm(dim=-1).argmax() == 0


def test_a_needle_is_found_by_its_marker() -> None:
    task = Needle(0)
    tokens, labels = task.draw(500, torch.Generator().manual_seed(1))
    needle = tokens[torch.arange(500), (tokens @ task.marker).argmax(dim=1)]
    assert ((needle - task.marker) @ task.classes.T).argmax(dim=1).eq(labels).float().mean() > 0.8
    zero = Needle(0, start=0.0)
    assert not any(parameter.any() for parameter in zero.scorer.parameters())
    with torch.no_grad():
        assert task.evaluate_soft(methods.hard) == task.evaluate(methods.hard)


def test_the_hidden_router_explains_all() -> None:
    task = Router(0)
    with torch.no_grad():
        assert task.evaluate(methods.hard) < 0.5
        task.router.weight.copy_(task.gate.T)
        task.router.bias.zero_()
        task.experts.copy_(task.hidden)
        assert task.evaluate(methods.hard) == pytest.approx(1.0)


def test_features_that_are_not_chosen_are_not_seen() -> None:
    pytest.importorskip("sklearn")
    for name, n, k, chance in (("digits", 64, 8, 0.1), ("breast_cancer", 30, 5, 0.5)):
        task = Features(0, name=name, k=k)
        assert (task.n, task.k, task.chance) == (n, k, chance)
    seen: list[torch.Tensor] = []
    task.network.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    with torch.no_grad():
        task.evaluate(lambda scores, k: methods.lapsum(scores, k, 1.0))
        task.evaluate_soft(lambda scores, k: methods.lapsum(scores, k, 1.0))
    assert [int(each.abs().sum(dim=0).bool().sum()) for each in seen] == [5, 30]
    assert len(set(task.train[0]).intersection(task.test[0])) == 0


def test_a_canvas_holds_the_image_in_four_neighbouring_patches(data: Path) -> None:
    made = Patches(0, data)
    images = made.train.images[:6]
    patches = made.canvas(images, torch.Generator().manual_seed(1))
    assert patches.shape == (6, 64, 196)
    for image, canvas in zip(images, patches, strict=True):
        quarters = [image[r : r + 14, c : c + 14].flatten() for r in (0, 14) for c in (0, 14)]
        places = [int((canvas == quarter).all(dim=-1).nonzero()[0]) for quarter in quarters]
        assert [place - places[0] for place in places] == [0, 1, 8, 9]
        blank = (canvas == images.amin()).all(dim=-1)
        assert 64 - 4 - 16 <= int(blank.sum()) <= 64 - 16


def test_a_recipe_sets_optimizer_and_rate() -> None:
    made = []

    def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
        made.append(torch.optim.SGD(parameters, lr=lr))
        return made[-1]

    for decay, last in ((True, 0.0), (False, 0.3)):
        optimize(Needle(0), lambda _: methods.lapsum, 2, 0, Recipe(sgd, 0.3, decay))
        assert made[-1].param_groups[0]["lr"] == pytest.approx(last)


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_contestant_trains(name: str) -> None:
    (row,) = experiments.judge("needle", name, 0.01, [7], None)
    assert experiments.is_complete(experiments.run_name("needle", name), [row])
    assert (row["soft"] is None) == (name in RIVALS)
    assert experiments.judge("needle", name, 0.01, [7], None) == [row]


@pytest.mark.parametrize("name", ["gated, tuned", "gumbel, tuned"])
def test_settings_are_chosen_by_other_seeds(name: str) -> None:
    rows = experiments.tune_and_judge("needle", name, 0.01, [100], [200, 201], None)
    assert experiments.is_complete(experiments.run_name("needle", name), rows)
    tried, judged = rows[:5], rows[5:]
    assert [row["seed"] for row in rows] == [100] * 5 + [200, 201]
    assert len({row["setting"] for row in tried}) == 5
    best = max(tried, key=lambda row: row["score"])
    assert {row["setting"] for row in judged} == {best["setting"]}


def test_a_layer_is_new_in_every_run_and_knows_when_it_is_evaluated() -> None:
    made: list[TopK] = []

    def make(k: int) -> TopK:
        made.append(TopK(k))
        return made[-1]

    start, scores = contestants.with_layer(make), torch.randn(3, 20)
    run = start(4)
    start(4)
    assert len({id(each) for each in made}) == 2
    assert run.at(0.5)(scores, 4).indices.shape == (3, 4)
    assert made[0].training
    assert run.soft is not None
    run.soft(scores, 4)
    assert not made[0].training


def test_the_program_begins_with_ours_and_defaults() -> None:
    settings = experiments.settings_for(False, 0, 1, True)
    names = [each.name for each in experiments.experiments(settings, None)]
    slow = sum(len(each) for each in conditions.SLOW.values())
    assert len(names) == len(set(names)) == len(OURS) + len(CONDITIONS) * (len(DEFAULTS) + len(TUNED)) - slow
    assert [", tuned" in name for name in names] == sorted(", tuned" in name for name in names)
    assert not set(settings.seeds) & set(settings.chosen_by)
    assert settings.seeds == tuple(range(200, 210))
    assert not set(conditions.NEEDS_DATA) & set(experiments.settings_for(False, 0, 1, False).conditions)
    wanted = [name for name in names if experiments.is_wanted(name, ["needle"], ["layer", "gated, tuned"])]
    assert wanted == ["stability layer", "run needle: layer", "run needle: gated, tuned"]
    assert all(experiments.is_wanted(name, [], []) for name in names)


def test_rows_of_another_experiment_are_noticed() -> None:
    good = experiments.judge("needle", "function", 0.01, [7], None)[0]
    assert not experiments.is_complete("run needle: layer", [good])
    assert not experiments.is_complete("run planted: function", [good])
    for field, value in (("score", "0.5"), ("score", float("nan")), ("seed", 0.5), ("soft", "no")):
        assert not experiments.is_complete("run needle: function", [{**good, field: value}])
    assert not experiments.is_complete("nonsense", [good])


def test_without_scikit_learn_its_tables_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "HAS_SKLEARN", False)
    names = conditions.possible(CONDITIONS, has_data=True)
    assert set(CONDITIONS) - set(names) == set(conditions.NEEDS_SKLEARN)


def test_no_scores_blow_the_gradient_up() -> None:
    for name in OURS:
        if name.startswith("layer"):  # it takes tiny scores for its scale: their gradient is as large as that is small
            continue
        rows = stability(name)
        assert max(row["largest"] for row in rows) < 200
        assert min(row["mean"] for row in rows) > 0


SCORES: Mapping[tuple[str, str], list[float]] = {
    ("planted", "function"): [0.90, 0.80, 0.10],
    ("planted", "layer"): [0.97, 0.98, 0.99],
    ("planted", "gated"): [0.51, 0.52, 0.53],
    ("planted", "lapsum, tuned"): [0.90, 1.00, 0.95],
    ("needle", "layer"): [0.50, 0.60, 0.70],
    ("needle", "gated"): [0.60, 0.70, 0.85],
}


@pytest.fixture
def results(tmp_path: Path) -> Journal:
    """A journal of a part of the program, made up."""
    settings = {"program": "full", "conditions": ["needle", "planted", "router"], "seeds": [200, 201, 202]}
    header = {"settings": settings, "environment": {"knockout": "x"}}
    journal = Journal.open(tmp_path / "results.jsonl", header, resume=False)
    for (condition, name), scores in SCORES.items():
        rows: Rows = [
            {
                "condition": condition, "contestant": name, "setting": "0.3", "seed": 200 + place, "chance": 0.1,
                "score": score, "soft": score + 0.1 if (condition, name) == ("needle", "layer") else None,
            }
            for place, score in enumerate(scores)
        ]  # fmt: skip
        journal.append(experiments.run_name(condition, name), [{**rows[0], "seed": 100, "score": 1.0}, *rows])
    journal.append("stability layer", stability("layer"))
    assert journal._file is not None
    journal._file.close()
    return journal


def test_a_run_failed_below_half_of_the_best(results: Journal) -> None:
    outcome = Outcome(results)
    assert outcome.conditions == ["needle", "planted"]
    assert outcome.contestants == ["function", "layer", "gated", "lapsum, tuned"]
    assert outcome.best("planted") == "layer"
    assert outcome.best("planted", ["gated", "lapsum, tuned"]) == "lapsum, tuned"
    assert outcome.least("planted") == pytest.approx((0.1 + 0.98) / 2)
    assert outcome.failures("function") == (1, 3, {"planted": 1})
    assert outcome.failures("gated") == (3, 6, {"planted": 3})
    assert outcome.share("planted", "gated") == pytest.approx((0.52 - 0.1) / (0.98 - 0.1))
    assert outcome.clearly("layer", "gated") == (["planted"], ["needle"])
    assert outcome.cost_of_hard("needle", "layer") == pytest.approx(0.1)
    assert outcome.cost_of_hard("planted", "layer") is None
    assert findings(outcome)[0].startswith(
        "function: 1 of 3 runs failed, with planted (1). Its mean above chance is 57 %"
    )


def test_the_report_shows_all_results(results: Journal, tmp_path: Path) -> None:
    draw_all(FIGURES, results, tmp_path)
    assert (tmp_path / "shares.png").stat().st_size > 2000
    text = report(results)
    assert "| planted | **0.600 (0.10)** | 0.980 (0.97) |" in text
    assert "| planted | 0.950 (0.90) at 0.3 |" in text
    assert "| planted | lapsum, tuned | 0.3 | 0.950 (0.90) | -0.350 | +0.030 |" in text
    assert "| layer | gated | 1 | 1 | needle |" in text
    assert "| gated | 3 of 6 | planted (3) |" in text
    assert "| needle |  | +0.100 |" in text or "| needle | +0.100 |" in text
    assert "Not measured without Fashion-MNIST: neighbours, patches." in text
    assert "(shares.png)" in text


def test_parts_are_added_to_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # those of other tests
    opened: list[Journal] = []

    def open_and_keep(*arguments: Any) -> Journal:
        opened.append(open_results(*arguments))
        return opened[-1]

    monkeypatch.setattr("evals.learning.run.open_results", open_and_keep)

    def learning(*arguments: str) -> tuple[int, str]:
        code = main(["learning", "--quick", "--out", str(tmp_path), "--only", "needle", *arguments])
        for each in opened:
            assert each._file is not None
            each._file.close()  # as the end of a process does
        said = capsys.readouterr()
        return code, said.out + said.err

    journal = tmp_path / "results.jsonl"
    assert learning("--contestants", "function")[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"results.jsonl", "report.md", "shares.png"}
    first = journal.read_bytes()
    code, said = learning("--contestants", "layer")
    assert code == 2
    assert "pass --resume to continue it" in said
    code, said = learning("--resume", "--contestants", "function", "gated, tuned", *PLAIN)
    assert code == 0
    assert "report.md" in said
    assert journal.read_bytes().startswith(first)
    assert list(Journal.read(journal).rows) == [
        "stability function",
        "run needle: function",
        "stability layer",
        "run needle: layer",
        "run needle: gated, tuned",
    ]
    for option in ("--only", "--contestants"):
        code, said = learning("--resume", option, "nonsense")
        assert code == 2
        assert f"{option}: 'nonsense' is not one of" in said
