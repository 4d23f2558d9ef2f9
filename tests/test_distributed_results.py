"""Candidates on many ranks: the results, and their gradients, are those of a single process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import knockout
from knockout import distributed
from knockout.boost import Fixed, Relative
from tests.cases import boosts, randn
from tests.distributed_cases import Case, compare, cuts
from tests.process_group import GROUPS, MAX_RANKS, Workers


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_many_ranks_have_the_results_and_gradients_of_one(workers: Workers, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 60))
    k: int | float = data.draw(st.one_of(st.integers(1, n), st.sampled_from([0.1, 0.5])))
    case = Case(
        size=data.draw(st.integers(1, MAX_RANKS)),
        cuts=data.draw(cuts),
        n=n,
        k=k,
        boost=data.draw(boosts),
        batch=data.draw(st.sampled_from([(), (1,), (3,), (2, 3), (0,)])),
        d=data.draw(st.integers(0, 4)),
        masked=data.draw(st.sampled_from([0.0, 0.3, 0.9, 1.1])),
        kind=data.draw(st.sampled_from(["normal", "clustered", "small", "holes", "invalid"])),
        order=data.draw(st.sampled_from(["score", "position"])),
        hard=data.draw(st.booleans()),
        slots=data.draw(st.sampled_from(["replicated", "sharded"])),
        seed=data.draw(st.integers(0, 1000)),
        counted=isinstance(k, int) and data.draw(st.booleans()),
    )
    workers.check(compare, case, size=case.size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_dtypes(workers: Workers, dtype: torch.dtype) -> None:
    for hard in (False, True):
        workers.check(compare, Case(3, (0.2, 0.7), 100, 7, Relative(2), (2,), dtype=dtype, hard=hard), size=3)


def compare_plan(rank: int, slots: str) -> None:
    case = Case(3, (0.2, 0.7), 50, 7, Relative(1), (2,))
    values, scores, _ = case.inputs()
    own = case.part(rank)
    alone, mine = scores.clone().requires_grad_(), scores[..., own].clone().requires_grad_()
    one = knockout.select(alone, 7, 1.0)
    many = distributed.select(mine, 7, 1.0, group=GROUPS[3], slots=slots)
    each = -(-7 // 3)
    here = slice(rank * each, (rank + 1) * each) if slots == "sharded" else slice(None)
    assert many.n == own.stop - own.start
    assert many.k == len(range(7)[here])
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(many.weights(), one.weights()[..., own], **close)
    torch.testing.assert_close(many.mass(), one.mass()[..., own], **close)
    torch.testing.assert_close(many.support(), one.support()[..., here])
    torch.testing.assert_close(many.perplexity(), one.perplexity()[..., here], **close)
    for payload in (values, values[..., :1].float(), values[0]):
        torch.testing.assert_close(many @ payload[..., own, :], (one @ payload)[..., here, :])
    weight = torch.arange(50.0, dtype=torch.float64)
    ((one.mass() * weight).sum() + one.perplexity().square().sum()).backward()
    ((many.mass() * weight[own]).sum() + many.perplexity().square().sum()).backward()
    torch.testing.assert_close(mine.grad, alone.grad[..., own], **close)


@pytest.mark.parametrize("slots", ["replicated", "sharded"])
def test_weights_mass_and_perplexity_are_those_of_one_process(workers: Workers, slots: str) -> None:
    workers.check(compare_plan, slots, size=3)


def invalid_rows(rank: int, bad: float) -> None:
    case = Case(3, (0.2, 0.7), 50, 7, Relative(1), (3,))
    values, scores, _ = case.inputs()
    scores[1, 30] = bad  # one candidate of rank 1, in the row that rank 1 owns
    own = case.part(rank)
    for hard in (False, True):
        one = knockout.select(scores, 7, 1.0, hard=hard)
        many = distributed.select(scores[..., own], 7, 1.0, group=GROUPS[3], hard=hard)
        close = {"rtol": 1e-9, "atol": 1e-9, "equal_nan": True}
        torch.testing.assert_close(many.indices, one.indices)
        torch.testing.assert_close(many.scores, one.scores, **close)
        torch.testing.assert_close(many.weights(), one.weights()[..., own], **close)
        torch.testing.assert_close(many.mass(), one.mass()[..., own], **close)
        torch.testing.assert_close(many.perplexity(), one.perplexity(), **close)
        blended = many.apply(values[..., own, :])
        torch.testing.assert_close(blended, one.apply(values), **close)
        assert blended.isnan().all(dim=(-2, -1)).tolist() == [False, True, False]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_with_an_invalid_score_on_one_rank_is_nan_on_all(workers: Workers, bad: float) -> None:
    workers.check(invalid_rows, bad, size=3)


def from_disk(rank: int, folder: str) -> None:
    case = Case(3, (0.2, 0.7), 50, 7, Relative(1))
    values, scores, _ = case.inputs()
    own = case.part(rank)
    path = Path(folder) / f"{rank}.npy"
    np.save(path, values[own].numpy())
    for hard in (False, True):
        alone, mine = scores.clone().requires_grad_(), scores[own].clone().requires_grad_()
        one = knockout.topk(values, alone, 7, 1.0, hard=hard).values
        one.sin().sum().backward()
        many = distributed.topk(np.load(path, mmap_mode="r"), mine, 7, 1.0, hard=hard, group=GROUPS[3]).values
        many.sin().sum().backward()
        torch.testing.assert_close(many, one)
        torch.testing.assert_close(mine.grad, alone.grad[own])


def test_each_rank_reads_its_own_file(workers: Workers, tmp_path: Path) -> None:
    workers.check(from_disk, str(tmp_path), size=3)


@pytest.mark.parametrize("slots", ["replicated", "sharded"])
def test_a_k_for_each_row(workers: Workers, slots: str) -> None:
    for case in (
        Case(3, (0.2, 0.7), 50, 7, Relative(1), (2, 4), slots=slots, masked=0.3, counted=True),
        Case(3, (0.0, 1.0), 9, 9, Relative(1), (5,), slots=slots, counted=True, seed=2),
        Case(2, (0.5,), 40, 3, Relative(4), (), slots=slots, counted=True, seed=1),
        Case(2, (0.5,), 3000, 5, Relative(16), (3,), slots=slots, counted=True, seed=1),
    ):
        workers.check(compare, case, size=case.size)


def numpy_k(rank: int) -> None:
    scores = torch.arange(6.0) + rank
    alone = knockout.select(torch.cat([torch.arange(6.0), torch.arange(6.0) + 1]), 3)
    assert distributed.select(scores, np.int64(3), group=GROUPS[2]).indices.tolist() == alone.indices.tolist()


def test_k_may_be_a_numpy_integer(workers: Workers) -> None:
    workers.check(numpy_k, size=2)


def same_boost(rank: int) -> None:
    distributed.select(randn(20), 4, (4, 4.0)[rank], group=GROUPS[2])
    distributed.select(randn(20), 4, (Fixed(2), Fixed(torch.tensor(2.0)))[rank], group=GROUPS[2])


def test_equal_boosts_may_be_written_differently(workers: Workers) -> None:
    workers.check(same_boost, size=2)
