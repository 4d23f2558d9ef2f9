"""k as a number or a fraction: how many slots a row fills, how many rounds that takes, and what else depends on it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import knockout
from knockout.ops.reference.tournament import rounds_of
from knockout.quota import DENOMINATOR, Quota
from tests.cases import fractions, randn, separated, slots

MASK = torch.arange(12) < torch.tensor([[12], [7], [1], [0]])


@pytest.mark.parametrize(
    ("n", "k", "rounds"), [(1, 1, 0), (8, 8, 0), (9, 8, 1), (16, 8, 1), (17, 8, 2), (16384, 2, 13), (7, 3, 2)]
)
def test_number_of_rounds(n: int, k: int, rounds: int) -> None:
    assert rounds_of(n, k) == rounds


@given(fractions, st.integers(1, 300))
@settings(max_examples=200, deadline=None)
def test_counts_and_rounds_are_enough_for_every_row(fraction: float, n: int) -> None:
    quota = Quota.of_fraction(fraction, n)
    active = torch.arange(n) < torch.arange(n + 1).unsqueeze(-1)
    own = quota.slot_count(active).flatten().tolist()
    assert own == [slots(fraction, count) for count in range(n + 1)]
    assert quota.k == own[-1]
    places = 2 ** quota.rounds(n)
    assert all(mine * places >= count for count, mine in enumerate(own))
    assert places == 1 or places < 2 * n  # and not far too many
    assert places == 1 or (places // 2) * quota.numerator < DENOMINATOR


def test_a_number_is_the_most_that_a_row_fills() -> None:
    active = torch.tensor([[True, True, True, True], [True, False, True, False], [False, False, False, False]])
    assert Quota(3).slot_count(active).tolist() == [[3], [2], [0]]
    assert Quota(3).filled(active).tolist() == [[True, True, True], [True, True, False], [False, False, False]]


def test_any_real_number_will_do() -> None:
    np = pytest.importorskip("numpy")
    for fraction in (np.float32(0.25), np.float64(0.25), Fraction(1, 4)):
        assert knockout.select(separated(12), fraction).k == 3  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [knockout.methods.hard, knockout.methods.iterative])
def test_the_other_methods(method: Callable[..., knockout.Selection]) -> None:
    scores, values = separated(4, 12), randn(4, 12, 3)
    picked = method(scores, 0.3, mask=MASK)
    for row, count in enumerate(MASK.sum(-1).tolist()):
        own = slots(0.3, count)
        assert picked.mask[row].tolist() == [True] * own + [False] * (4 - own)
        assert (picked.indices[row, own:] == -1).all()
        assert not picked.apply(values)[row, own:].any()
        assert not picked.scores[row, own:].any()
        if own:
            alone = method(scores[row, :count], own)
            assert torch.equal(picked.indices[row, :own], alone.indices)
            torch.testing.assert_close(picked.weights()[row, :own, :count], alone.weights())
            torch.testing.assert_close(picked.scores[row, :own], alone.scores)


METHODS = [getattr(knockout.methods, name) for name in knockout.methods.__all__]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("masked", [False, True])
def test_a_k_for_each_row_of_the_other_methods(method: Callable[..., knockout.Selection], masked: bool) -> None:
    scores, values = separated(4, 12), randn(4, 12, 3)
    mask, counts = MASK if masked else None, torch.tensor([4, 1, 3, 0])

    def options(row: int | None = None) -> dict[str, Any]:
        own = {"mask": mask if row is None or mask is None else mask[row]}
        if method is knockout.methods.gumbel:
            return own | {"noise": False}
        return own | ({"samples": 3, "temperature": 1e-9} if method is knockout.methods.perturbed else {})

    picked = method(scores, counts, max_k=4, **options())
    filled = counts if mask is None else torch.minimum(counts, mask.sum(-1))
    assert picked.mask.sum(-1).tolist() == filled.tolist()
    assert not picked.apply(values)[3].any()
    assert not picked.mass()[3].any()
    for row, own in enumerate(counts.tolist()[:3]):
        alone = method(scores[row], own, **options(row))
        assert (picked.indices[row, own:] == -1).all()
        assert torch.equal(picked.indices[row, :own], alone.indices)
        torch.testing.assert_close(picked.weights()[row, :own], alone.weights())
        torch.testing.assert_close(picked.mass()[row], alone.mass())
        torch.testing.assert_close(picked.scores[row, :own], alone.scores)
        assert not picked.apply(values)[row, own:].any()


@pytest.mark.parametrize("method", [knockout.methods.hard, knockout.methods.softsort, knockout.methods.lapsum])
def test_counts_of_the_other_methods_broadcast(method: Callable[..., knockout.Selection]) -> None:
    scores, counts = separated(12), torch.tensor([[2, 0, 1]])
    picked = method(scores, counts, max_k=2)
    assert picked.mask.tolist() == [[[True, True], [False, False], [True, False]]]
    same = method(scores.expand(1, 3, 12), counts, max_k=2)
    assert torch.equal(picked.weights(), same.weights())


def test_counts_with_values_from_a_source_and_chunks_of_scores() -> None:
    np = pytest.importorskip("numpy")
    scores, values, counts = separated(3, 12), randn(12, 2), torch.tensor([2, 0, 1])
    expected = knockout.topk(values.expand(3, 12, 2), scores, counts, 1.0, max_k=2)
    out = knockout.topk(np.asarray(values), scores.split(5, dim=-1), counts, 1.0, max_k=2)
    torch.testing.assert_close(out.values, expected.values)
    assert torch.equal(out.indices, expected.indices)


def test_the_mass_on_the_true_top_is_that_of_each_row() -> None:
    scores = separated(4, 12)
    picked = knockout.select(scores, 0.3, 1.0, mask=MASK)
    mass = knockout.metrics.topk_mass(picked, scores, MASK)
    for row in range(3):
        places = MASK[row].nonzero().flatten()
        alone = knockout.select(scores[row, places], slots(0.3, len(places)), 1.0)
        torch.testing.assert_close(mass[row], knockout.metrics.topk_mass(alone, scores[row, places]))
    assert mass[1] < 1


def test_a_drawn_bracket_is_that_of_its_row() -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    scores = separated(4, 12)

    def shown(picked: knockout.Selection, row: int, names: Any = None) -> tuple[int, list[str]]:
        axes = knockout.plot.bracket(picked, row, names)
        found = len(axes.lines), [text.get_text() for text in axes.texts]
        plt.close("all")
        return found

    picked = knockout.select(scores, 0.3, 1.0, mask=MASK, order="position")
    for row, count in enumerate(MASK.sum(-1).tolist()):
        if count:
            alone = knockout.select(scores[row, :count], slots(0.3, count), 1.0, order="position")
            assert shown(picked, row) == shown(alone, 0)
        else:
            assert shown(picked, row) == (0, [])
    counts = torch.tensor([3, 1, 2, 0])
    picked = knockout.select(scores, counts, 1.0, max_k=4)
    for row, own in enumerate(counts.tolist()[:3]):
        assert shown(picked, row) == shown(knockout.select(scores[row], own, 1.0), 0)
    assert shown(picked, 3) == (0, [])
