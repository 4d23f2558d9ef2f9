"""The way back from slots to candidates that are distributed over ranks: ``spread`` of a distributed selection."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import knockout
from knockout import distributed
from knockout.boost import Relative
from tests.cases import boosts, randn
from tests.distributed_cases import Case, cuts, tolerance
from tests.process_group import GROUPS, MAX_RANKS, Failure, Workers


def own_slots(case: Case, slots: int, rank: int) -> slice:
    each = -(-slots // case.size)
    return slice(min(slots, rank * each), min(slots, (rank + 1) * each)) if case.slots == "sharded" else slice(slots)


def compare(rank: int, case: Case) -> None:
    """There and back, with a layer in between: this rank's part of what a single process gives, and its gradients."""
    own, (values, scores, mask) = case.part(rank), case.inputs()
    options: dict[str, Any] = {"order": case.order, "hard": case.hard}
    at = torch.arange(case.n, dtype=case.dtype).unsqueeze(-1)

    alone = [x.clone().requires_grad_() for x in (values, scores)]
    one = knockout.select(alone[1], case.k, case.boost, mask, **options)
    y = one.apply(alone[0]).sin()
    expected = one.spread(y)
    (expected * (at + 1.0).cos()).sum().backward()
    here = own_slots(case, one.k, rank)

    mine = [values[..., own, :].clone().requires_grad_(), scores[..., own].clone().requires_grad_()]
    part = None if mask is None else mask[..., own]
    options |= {"group": GROUPS[case.size], "slots": case.slots}
    many = distributed.select(mine[1], case.k, case.boost, part, **options)
    my_y = many.apply(mine[0]).sin()
    out = many.spread(my_y)
    (out * (at[own] + 1.0).cos()).sum().backward()

    close = {**tolerance(case.dtype), "equal_nan": True}
    torch.testing.assert_close(my_y, y[..., here, :], **close)
    torch.testing.assert_close(out, expected[..., own, :], **close)
    torch.testing.assert_close(mine[0].grad, alone[0].grad[..., own, :], **close)
    torch.testing.assert_close(mine[1].grad, alone[1].grad[..., own], **close)


@given(st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_many_ranks_have_the_rows_and_gradients_of_one(workers: Workers, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 40))
    case = Case(
        size=data.draw(st.integers(1, MAX_RANKS)),
        cuts=data.draw(cuts),
        n=n,
        k=data.draw(st.one_of(st.integers(1, n), st.sampled_from([0.1, 0.5]))),
        boost=data.draw(boosts),
        batch=data.draw(st.sampled_from([(), (3,), (2, 3), (0,)])),
        d=data.draw(st.integers(0, 3)),
        masked=data.draw(st.sampled_from([0.0, 0.3, 1.1])),
        kind=data.draw(st.sampled_from(["normal", "clustered", "holes", "invalid"])),
        hard=data.draw(st.booleans()),
        slots=data.draw(st.sampled_from(["replicated", "sharded"])),
        seed=data.draw(st.integers(0, 1000)),
    )
    workers.check(compare, case, size=case.size)


@pytest.mark.parametrize("slots", ["replicated", "sharded"])
def test_half_types(workers: Workers, slots: str) -> None:
    workers.check(compare, Case(3, (0.2, 0.7), 50, 7, Relative(2), (2,), dtype=torch.bfloat16, slots=slots), size=3)


def gradients_of_y(rank: int, slots: str) -> None:
    """y itself is given, with one row for a batch of two, and not every rank needs its gradient."""
    case = Case(3, (0.2, 0.7), 50, 7, Relative(1), (2,), slots=slots)
    (_, scores, _), own, here = case.inputs(), case.part(rank), own_slots(case, 7, rank)
    y, ways = randn(1, 7, 3).requires_grad_(), randn(2, 50, 3, seed=1)
    one = knockout.select(scores, 7, 1.0)
    (one.spread(y).sin() * ways).sum().backward()
    for reduction in ("mean", "sum"):
        many = distributed.select(scores[:, own], 7, 1.0, group=GROUPS[3], slots=slots, reduction=reduction)
        mine = y[:, here].detach().clone().requires_grad_(rank != 1)
        (many.spread(mine).sin() * ways[:, own]).sum().backward()
        if rank == 1:
            assert mine.grad is None
        elif reduction == "mean" or slots == "sharded":  # the whole gradient, on every rank
            torch.testing.assert_close(mine.grad, y.grad[:, here])
        else:  # what came from this rank's own rows
            (expected,) = torch.autograd.grad((one.spread(y).sin() * ways)[:, own].sum(), y)
            torch.testing.assert_close(mine.grad, expected)
    with torch.no_grad():
        assert not many.spread(mine).requires_grad


@pytest.mark.parametrize("slots", ["replicated", "sharded"])
def test_gradients_of_what_the_slots_hold(workers: Workers, slots: str) -> None:
    workers.check(gradients_of_y, slots, size=3)


def sums_of_losses(rank: int) -> None:
    """With "sum", as with "mean", a loss of the rows that each rank has is a part of the whole."""
    case = Case(3, (0.2, 0.7), 50, 7, Relative(1))
    values, scores, _ = case.inputs()
    own = case.part(rank)
    alone = [x.clone().requires_grad_() for x in (values, scores)]
    one = knockout.select(alone[1], 7, 1.0)
    one.spread(one.apply(alone[0]).sin()).sin().sum().backward()
    for reduction in ("mean", "sum"):
        mine = [x[own].clone().requires_grad_() for x in (values, scores)]
        many = distributed.select(mine[1], 7, 1.0, group=GROUPS[3], reduction=reduction)
        many.spread(many.apply(mine[0]).sin()).sin().sum().backward()
        for got, expected in zip(mine, alone, strict=True):
            torch.testing.assert_close(got.grad, expected.grad[own])


def test_the_loss_is_the_sum_over_all_rows(workers: Workers) -> None:
    workers.check(sums_of_losses, size=3)


def dtensors(rank: int, slots: str, reduction: str) -> None:  # noqa: ARG001
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "candidates"))
    values, scores = randn(2, 31, 3), randn(2, 31, seed=1)
    alone = values.clone().requires_grad_(), scores.clone().requires_grad_()
    one = knockout.select(alone[1], 5, 1.0)
    y = one.apply(alone[0]).sin()
    one.spread(y).sin().sum().backward()
    for rows in (Replicate(), Shard(0)):
        mine = [distribute_tensor(x.clone(), mesh, [rows, Shard(1)]).requires_grad_() for x in (values, scores)]
        many = distributed.select(mine[1], 5, 1.0, slots=slots, reduction=reduction)
        out = many.spread(many.apply(mine[0]).sin())
        assert isinstance(out, DTensor)
        assert out.placements == (rows, Shard(1))
        torch.testing.assert_close(out.full_tensor(), one.spread(y))
        if reduction == "mean":
            out.sin().sum().backward()
            for got, expected in zip(mine, alone, strict=True):
                torch.testing.assert_close(got.grad.full_tensor(), expected.grad)
        here = Replicate() if slots == "replicated" else Shard(1)
        held = distribute_tensor(y.detach().clone(), mesh, [rows, here]).requires_grad_()
        many.spread(held).sin().sum().backward()
        (expected,) = torch.autograd.grad(one.spread(y).sin().sum(), y)
        torch.testing.assert_close(held.grad.full_tensor(), expected)
        with pytest.raises(ValueError, match="y must be laid out as scores"):
            many.spread(distribute_tensor(y.detach(), mesh, [rows, Shard(2)]))


@pytest.mark.parametrize(("slots", "reduction"), [("replicated", "mean"), ("replicated", "sum"), ("sharded", "mean")])
def test_dtensors(workers: Workers, slots: str, reduction: str) -> None:
    workers.check(dtensors, slots, reduction, size=4)


WRONG: dict[str, tuple[Tensor, str, str]] = {
    "slots": (torch.zeros(5, 3), "y must have shape .* with k = 4", "rank 1 failed with ValueError: y must have shape"),
    "d": (torch.zeros(4, 9), "d must be the same on all ranks; got 3 on ranks 0, 2; 9 on rank 1", ""),
    "dtype": (torch.zeros(4, 3).double(), "the dtype of y must be the same on all ranks", ""),
    "batch": (torch.zeros(2, 4, 3), "the batch dimensions of y must be the same on all ranks", ""),
}


def disagree(rank: int, wrong: Tensor) -> None:
    picked = distributed.select(randn(6).float(), 4, group=GROUPS[3])
    picked.spread(wrong if rank == 1 else torch.zeros(4, 3))


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_argument_of_one_rank_is_an_error_on_all(workers: Workers, what: str) -> None:
    wrong, message, others = WRONG[what]
    for rank, answer in enumerate(workers.run(disagree, wrong, size=3)):
        assert isinstance(answer, Failure)
        assert re.search(message if rank == 1 else others or message, answer.text), answer.text
    workers.check(compare, Case(3, (0.2, 0.7), 20, 3, Relative(4)), size=3)  # the group can still be used
