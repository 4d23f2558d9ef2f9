"""The published quality, measured again, and how far the default goes beyond it."""

from __future__ import annotations

import pytest
import torch

from knockout.eval.grid import CELLS, METHODS, Quality, batches, quality
from knockout.eval.published import Published, published
from knockout.eval.reproduce import differs, main

PUBLISHED = published()
# A spread over rounds and sizes that two cores measure in seconds; `make test-slow` measures all 85.
SPREAD = [(16, 2), (16, 8), (64, 8), (256, 2), (256, 128), (1024, 16), (2048, 256), (4096, 2), (8192, 64), (16384, 8)]


def check(n: int, k: int, count: int) -> None:
    found = quality(n, k, count)
    for method in ("halving", "iterative"):
        assert not differs(PUBLISHED[method, n, k], found[method]), method
    assert found["Relative(16)"].mean > PUBLISHED["halving", n, k].nccs
    assert found["Relative(16)"].mean >= 0.97
    assert found["Relative(4)"].mean >= 0.94


def test_the_grid_is_the_papers() -> None:
    assert len(CELLS) == 85
    assert {(method, n, k) for method in ("halving", "iterative") for n, k in CELLS} == set(PUBLISHED)
    assert list(METHODS) == ["halving", "iterative", "Relative(4)", "Relative(16)"]


@pytest.mark.parametrize(("n", "k"), SPREAD)
def test_quality_on_a_spread_of_cells(n: int, k: int) -> None:
    check(n, k, count=8 if n <= 4096 else 4)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k"), CELLS)
def test_quality_on_every_cell(n: int, k: int) -> None:
    check(n, k, count=16)


def test_what_counts_as_a_difference() -> None:
    theirs = Published(nccs=0.5, nccs_std=0.04, seconds=0.0, batches=16)  # standard error 0.01
    assert not differs(theirs, Quality(0.519, 0.0, 16))
    assert not differs(theirs, Quality(0.539, 0.0, 16))
    assert differs(theirs, Quality(0.541, 0.0, 16))
    assert differs(Published(0.5, 0.0, 0.0, 16), Quality(0.521, 0.0, 16))


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knockout.eval.reproduce.QUICK", [(16, 8), (64, 16)])
    assert main(["--batches", "4"]) == 0
    printed = capsys.readouterr().out
    assert "0.980" in printed  # published, halving, n = 16, k = 8
    assert "4 of 4 published figures met" in printed
    with pytest.raises(SystemExit) as stopped:
        main(["--batches", "1"])
    assert stopped.value.code == 2
    assert "at least 2 batches" in capsys.readouterr().err


def test_what_counts_as_a_difference_of_ours() -> None:

    theirs = Published(nccs=0.5, nccs_std=0.0, seconds=0.0, batches=16)
    assert not differs(theirs, Quality(0.539, 0.04, 16))  # standard error 0.01
    assert differs(theirs, Quality(0.541, 0.04, 16))


def test_the_seed_and_the_cell_choose_the_batches() -> None:

    def first(n: int, k: int, seed: int) -> torch.Tensor:
        return next(batches(n, k, 1, seed))[1]

    assert torch.equal(first(16, 2, 0), first(16, 2, 0))
    assert not torch.equal(first(16, 2, 0), first(16, 2, 1))
    assert not torch.equal(first(16, 2, 0), first(16, 4, 0))


def test_a_figure_that_is_missed_is_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr("knockout.eval.reproduce.QUICK", [(16, 8)])
    monkeypatch.setattr("knockout.eval.reproduce.differs", lambda *_: True)
    assert main(["--batches", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("*") == 3  # a mark for each, and the legend
    assert "0 of 2 published figures met" in printed
