"""The experiments of ``evals reproduce``: grids, pairings, rounds, sorting, training."""

from __future__ import annotations

import pytest
import torch

import knockout
from evals.reproduce import experiments
from evals.reproduce.experiments import Settings
from evals.reproduce.grid import METHODS
from evals.reproduce.pairing import PAIRINGS, adjacent_pairs, quality, random_pairs, select
from evals.reproduce.rounds import count_rounds, round_by_round, sorting_share
from evals.reproduce.training import CHECKS, LAYERS, SEEDED, chain, train
from knockout.boost import Power, Relative


@pytest.mark.parametrize("size", [2, 4, 10, 64])
@pytest.mark.parametrize("name", ["adjacent", "random"])
def test_a_pairing_is_a_permutation_with_the_better_one_in_front(name: str, size: int) -> None:
    pairing = PAIRINGS[name](3)
    assert pairing is not None
    order = pairing(size)
    assert sorted(order.tolist()) == list(range(size))
    front, back = order[: size // 2], order[size // 2 :].flip(0)
    assert (front < back).all()
    if name == "adjacent":
        assert (back - front == 1).all()


def test_random_pairs_change_from_round_to_round_and_repeat_with_the_seed() -> None:
    one, other = random_pairs(1), random_pairs(1)
    first, second = one(64), one(64)
    assert not torch.equal(first, second)
    assert torch.equal(first, other(64))


def test_the_fold_is_the_librarys_pairing() -> None:
    scores = torch.rand(3, 40)
    for boost in (Power(20), Relative(4)):
        ours, theirs = select(scores, 5, boost, None), knockout.select(scores, 5, boost)
        torch.testing.assert_close(ours.weights(), theirs.weights())


def test_adjacent_pairs_by_hand() -> None:
    scores = torch.tensor([0.4, 0.1, 0.3, 0.2], dtype=torch.float64)
    found = select(scores, 2, knockout.boost.Fixed(10), adjacent_pairs).weights()
    share = torch.sigmoid(torch.tensor(1.0, dtype=torch.float64))  # both pairs are 0.1 apart
    expected = torch.tensor([[share, 0, 1 - share, 0], [0, 1 - share, 0, share]], dtype=torch.float64)
    torch.testing.assert_close(found, expected)


def test_a_pairing_needs_a_full_field() -> None:
    with pytest.raises(ValueError, match="n must be k times a power of two; got n = 7, k = 3"):
        select(torch.rand(7), 3, Relative(4), adjacent_pairs)


def test_the_fold_has_the_best_quality() -> None:
    rows = {(row["pairing"], row["boost"]): row["nccs"] for row in quality(512, 8, count=2, seed=0)}
    assert len(rows) == 6
    for boost in {boost for _, boost in rows}:
        assert rows["fold", boost] > max(rows["adjacent", boost], rows["random", boost])


@pytest.mark.parametrize(("n", "k", "rounds"), [(16, 2, 3), (17, 2, 4), (5, 5, 0), (700, 1, 10)])
def test_rounds_are_counted_as_they_are_played(n: int, k: int, rounds: int) -> None:
    assert count_rounds(n, k) == rounds


def test_round_by_round_returns_what_the_plan_returns() -> None:
    values, scores = torch.rand(2, 64, 5, dtype=torch.float64), torch.rand(2, 64, dtype=torch.float64)
    for boost in (Power(20), Relative(4)):
        torch.testing.assert_close(
            round_by_round(values, scores, 8, boost), knockout.topk(values, scores, 8, boost).values
        )
    with pytest.raises(ValueError, match="n must be k times a power of two; got n = 64, k = 6"):
        round_by_round(values, scores, 6, Relative(4))


def test_sorting_is_a_part_of_the_whole() -> None:
    (row,) = sorting_share(256, 8, 2, 4, seed=0)
    assert 0 < row["seconds_sorting"] < row["seconds"]


@pytest.mark.parametrize("name", [*LAYERS, *SEEDED])
def test_training_can_be_repeated(name: str) -> None:
    first, again = train(name, 8, 0.05, seed=1, steps=16), train(name, 8, 0.05, seed=1, steps=16)
    assert first == again
    assert [row["step"] for row in first] == [2 * i for i in range(CHECKS + 1)]
    assert all(0 <= row["recall"] <= 1 and row["loss"] >= 0 for row in first)
    assert train(name, 8, 0.05, seed=2, steps=16) != first


def test_a_scorer_learns_through_a_soft_selection_and_is_evaluated_by_a_hard_one() -> None:
    rows = train("Relative(4)", 64, 0.05, seed=0, steps=80)
    assert rows[0]["recall"] < 0.5
    assert rows[-1]["recall"] > 0.95
    assert rows[-1]["loss"] < 0.1 < rows[0]["loss"]


def test_chains() -> None:
    assert (chain("halving", 8), chain("iterative", 8), chain("iterative, peaked", 64), chain("hard, gated", 8)) == (
        5,
        8,
        64,
        1,
    )


def test_methods_return_one_shape() -> None:
    values, scores = torch.rand(2, 32, 3), torch.rand(2, 32)
    for name, method in METHODS.items():
        assert method(values, scores, 4).shape == (2, 4, 3), name


def test_the_quick_grid_fills_all_panels() -> None:
    assert {k for _, k in experiments.GRIDS["quick"]} >= set(experiments.PANELS)
    for k in experiments.PANELS:
        assert sum(size == k for _, size in experiments.GRIDS["quick"]) >= 2
    names = [each.name for each in experiments.experiments(experiments.settings_for("paper", 0, "cpu", 2))]
    assert len(names) == len(set(names))
    assert sum(name.startswith("cell") for name in names) == 85


def test_batches_of_a_cell() -> None:
    settings = Settings("quick", 0, "cpu", 1, batches=8, weights=2**20, patience=0.0, rates=(0.1,), seeds=1, steps=1)
    assert settings.batches_of(16, 2) == 8
    assert settings.batches_of(2**10, 2**8) == 4
    assert settings.batches_of(2**14, 2**11) == 2
    assert experiments.settings_for("paper", 0, "cpu", 1).batches_of(2**14, 2**11) == 16
