"""Candidates on many ranks: the results and gradients of one process, few bytes, and errors instead of waiting."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import knockout
from knockout import distributed
from knockout.boost import Boost, Fixed, Power, Relative
from knockout.distributed import pruning
from knockout.distributed.owner import RowOwner, mean_scores
from knockout.distributed.routing import Pruned
from tests.cases import BOOSTS, boosts, randn
from tests.process_group import GONE, GROUPS, Failed, World, impatient

MOST = 4


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(MOST) as made:
        yield made


class Case(NamedTuple):
    """What is drawn; every rank makes the same inputs of it, and takes its part."""

    size: int
    cuts: tuple[float, ...]  # where the candidates of a rank end, as a part of all
    n: int
    k: int | float
    boost: Boost
    batch: tuple[int, ...] = ()
    d: int = 3
    masked: float = 0.0
    kind: str = "normal"
    dtype: torch.dtype = torch.float64
    order: str = "score"
    hard: bool = False
    slots: str = "replicated"
    seed: int = 0

    def part(self, rank: int) -> slice:
        ends = [0, *sorted(int(cut * self.n) for cut in self.cuts[: self.size - 1]), self.n]
        return slice(ends[rank], ends[rank + 1])

    def inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (*self.batch, self.n)
        scores = FIELDS[self.kind](torch.randn(shape, generator=generator, dtype=torch.float64)).to(self.dtype)
        values = torch.randn(*shape, self.d, generator=generator, dtype=torch.float64).to(self.dtype)
        mask = torch.rand(shape, generator=generator) >= self.masked if self.masked else None
        return values, scores, mask


FIELDS: dict[str, Any] = {
    "normal": lambda x: x,
    "uniform": lambda x: torch.special.ndtr(x),
    "heavy": lambda x: x.sign() * x.abs().pow(3) * 2,
    "exponential": lambda x: -torch.special.ndtr(x).clamp(min=1e-12).log(),
    "clustered": lambda x: (x * 2).round() + 0.01 * x,
    "tied": lambda x: (x * 2).round() / 2,
    "constant": lambda x: 0.0 * x,
    "small": lambda x: 1e-3 * x,
    "far": lambda x: 1000.0 + x,
    "outlier": lambda x: torch.where(x == x.amax(dim=-1, keepdim=True), 1000.0, x),
    "huge": lambda x: torch.where(x == x.amax(dim=-1, keepdim=True), 1e30, 10 * x),
    "huge both": lambda x: torch.where(x.abs() == x.abs().amax(dim=-1, keepdim=True), -1e30, 10 * x),
    "holes": lambda x: torch.where(x > 1.0, -torch.inf, x),
    "spoiled": lambda x: torch.where(x > 2.2, torch.nan, x),
}


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    far = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    return {"rtol": far, "atol": far}


def loss(result: Any, slots: Any) -> Tensor:
    """Some function of all that can be learned through, slot by slot, with weights of its own for each."""
    values, scores = result.values, result.scores
    at = torch.arange(slots.start or 0, slots.stop, dtype=values.dtype)[..., None] + 1.0
    total: Tensor = ((values / at).sin() * at).sum() + (scores * at.squeeze(-1).cos()).sum()
    return total


def compare(rank: int, case: Case) -> int:
    """Whether a rank has its part of what one process would have. Returns how many bytes of scores it has sent."""
    group, own = GROUPS[case.size], case.part(rank)
    values, scores, mask = case.inputs()
    settings: dict[str, Any] = {"order": case.order, "hard": case.hard}

    alone = [x.clone().requires_grad_() for x in (values, scores)]
    one = knockout.topk(alone[0], alone[1], case.k, case.boost, mask, **settings)
    slots = one.indices.shape[-1]
    loss(one, slice(0, slots)).backward()

    mine = [values[..., own, :].clone().requires_grad_(), scores[..., own].clone().requires_grad_()]
    part = None if mask is None else mask[..., own]
    settings |= {"group": group, "slots": case.slots}
    with distributed.traffic() as traffic:
        many = distributed.topk(mine[0], mine[1], case.k, case.boost, part, **settings)
    here = slice(0, slots)
    if case.slots == "sharded":
        each = -(-slots // case.size)
        here = slice(min(slots, rank * each), min(slots, (rank + 1) * each))
    loss(many, here).backward()

    close = {**tolerance(case.dtype), "equal_nan": True}
    torch.testing.assert_close(many.indices, one.indices[..., here], rtol=0, atol=0)
    torch.testing.assert_close(many.mask, one.mask[..., here], rtol=0, atol=0)
    torch.testing.assert_close(many.scores, one.scores[..., here], **close)
    torch.testing.assert_close(many.values, one.values[..., here, :], **close)
    torch.testing.assert_close(mine[0].grad, alone[0].grad[..., own, :], **close)
    torch.testing.assert_close(mine[1].grad, alone[1].grad[..., own], **close)
    return traffic.sent["scores"]


cuts = st.tuples(*[st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.7, 1.0])] * (MOST - 1))


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_many_ranks_have_the_results_and_gradients_of_one(world: World, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 60))
    case = Case(
        size=data.draw(st.integers(1, MOST)),
        cuts=data.draw(cuts),
        n=n,
        k=data.draw(st.one_of(st.integers(1, n), st.sampled_from([0.1, 0.5]))),
        boost=data.draw(boosts),
        batch=data.draw(st.sampled_from([(), (1,), (3,), (2, 3), (0,)])),
        d=data.draw(st.integers(0, 4)),
        masked=data.draw(st.sampled_from([0.0, 0.3, 0.9, 1.1])),
        kind=data.draw(st.sampled_from(["normal", "clustered", "small", "holes", "spoiled"])),
        order=data.draw(st.sampled_from(["score", "position"])),
        hard=data.draw(st.booleans()),
        slots=data.draw(st.sampled_from(["replicated", "sharded"])),
        seed=data.draw(st.integers(0, 1000)),
    )
    world.check(compare, case, size=case.size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_in_other_types(world: World, dtype: torch.dtype) -> None:
    for hard in (False, True):
        world.check(compare, Case(3, (0.2, 0.7), 100, 7, Relative(2), (2,), dtype=dtype, hard=hard), size=3)


# --- what need not travel ---

SHARP = [
    Relative(4),
    Relative(16),
    Relative(6, alpha=2),
    Relative(40, alpha=1),
    Fixed(8, alpha=1.5),
    Power(20, alpha=2),
]


@pytest.mark.parametrize("kind", FIELDS)
def test_whoever_does_not_travel_is_not_missed(world: World, kind: str) -> None:
    for number, boost in enumerate(SHARP):
        masked, batch = (0.0, 0.4)[number % 2], ((), (3,))[number // 2 % 2]
        case = Case(3, (0.3, 0.3), 20_000, 16, boost, batch, masked=masked, kind=kind, seed=number)
        world.check(compare, case, size=3)


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whoever_does_not_travel_is_not_missed_in_drawn_cases(world: World, data: st.DataObject) -> None:
    n = data.draw(st.integers(pruning.MIN_CANDIDATES, 40_000))
    case = Case(
        size=2,
        cuts=data.draw(cuts),
        n=n,
        k=data.draw(st.sampled_from([1, 3, 64, 1000])),
        boost=data.draw(st.sampled_from(BOOSTS + SHARP)),
        masked=data.draw(st.sampled_from([0.0, 0.5])),
        kind=data.draw(st.sampled_from(list(FIELDS))),
        dtype=data.draw(st.sampled_from([torch.float64, torch.float64, torch.float32])),
        seed=data.draw(st.integers(0, 1000)),
    )
    world.check(compare, case, size=2)


def in_few_rounds(rank: int, count: int) -> None:
    """Small cases with three or four rounds, in which what happens in one is still felt in the last."""
    before, pruning.MIN_CANDIDATES = pruning.MIN_CANDIDATES, 64
    try:
        for seed in range(count):
            draw = random.Random(seed)
            n = draw.randint(100, 3000)
            boost = Relative(
                draw.choice([1.5, 2, 3, 4, 6, 10, 30]), draw.choice([0.01, 1.0]), draw.choice([1.5, 1.5, 2])
            )
            kind = draw.choice([kind for kind in FIELDS if kind not in ("constant", "spoiled", "far")])
            k = n // draw.choice([5, 7, 9, 15])
            compare(rank, Case(1, (), n, k, boost, masked=draw.choice([0.0, 0.2]), kind=kind, d=1, seed=seed))
    finally:
        pruning.MIN_CANDIDATES = before


def test_whoever_does_not_travel_is_not_missed_in_few_rounds(world: World) -> None:
    world.check(in_few_rounds, 300, size=1)


def test_those_who_stay_add_up_to_the_same() -> None:
    counts, totals = torch.zeros(2, pruning.BINS).double(), torch.zeros(2, pruning.BINS).double()
    counts[0, 3], totals[0, 3] = 1000, 1000 * (1e4 + 1.0 / 3.0)
    counts[1, 5], totals[1, 5] = 7, -0.7
    made = mean_scores(Pruned(torch.empty(0), counts, totals), torch.float32)
    assert made.dtype == torch.float32
    # To a unit in the last place of one of them, where a thousand times the nearest float32 would be off by 240 units.
    torch.testing.assert_close(made[:1000].double().sum(), totals[0, 3], rtol=0, atol=2.0**-10)
    torch.testing.assert_close(made[1000:].double().sum(), totals[1, 5], rtol=0, atol=2.0**-26)


def test_the_sharper_the_boost_the_less_travels(world: World) -> None:
    def sent(boost: Boost, kind: str) -> float:
        case = Case(2, (0.5,), 2**16, 64, boost, kind=kind, dtype=torch.float32)
        return float(world.check(compare, case, size=2)[1]) / (4 * 2**15)  # the rows live on rank 0

    for kind in ("uniform", "normal"):
        soft, default, sharp = (sent(boost, kind) for boost in (Relative(0.5), Relative(4), Relative(32)))
        assert soft == 1.0
        assert 0.3 < default < 0.8
        assert sharp < 0.2
    assert sent(Fixed(1000, alpha=1.5), "uniform") < 0.1


# --- the plan by itself ---


def plan_alone(rank: int, slots: str) -> None:
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
def test_weights_mass_and_perplexity_are_those_of_one(world: World, slots: str) -> None:
    world.check(plan_alone, slots, size=3)


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
def test_a_row_with_an_invalid_score_on_one_rank_is_nan_on_all(world: World, bad: float) -> None:
    world.check(invalid_rows, bad, size=3)


def frozen(rank: int) -> None:
    case = Case(3, (0.2, 0.7), 50, 7, Relative(1))
    values, scores, _ = case.inputs()
    own = case.part(rank)
    alone, mine = scores.clone().requires_grad_(), scores[own].clone().requires_grad_(rank == 1)
    knockout.topk(values, alone, 7, 1.0).values.sin().sum().backward()
    distributed.topk(values[own], mine, 7, 1.0, group=GROUPS[3]).values.sin().sum().backward()
    if rank == 1:
        torch.testing.assert_close(mine.grad, alone.grad[own])
    assert (mine.grad is None) == (rank != 1)
    with torch.no_grad():
        assert not distributed.topk(values[own], mine, 7, group=GROUPS[3]).values.requires_grad
    values.requires_grad_(rank == 2)  # and of the values alone
    out = distributed.topk(values[own], mine.detach(), 7, group=GROUPS[3])
    out.values.sum().backward()
    assert (values.grad is None) == (rank != 2)


def test_some_ranks_may_have_nothing_to_learn(world: World) -> None:
    world.check(frozen, size=3)


def reductions(rank: int) -> None:
    """Every rank has a loss of its own."""
    case = Case(3, (0.2, 0.7), 50, 7, Relative(1))
    values, scores, _ = case.inputs()
    own, ways = case.part(rank), randn(3, 7, 3, seed=1)
    for reduction, factor in (("sum", 1.0), ("mean", 1 / 3)):
        alone = values.clone().requires_grad_(), scores.clone().requires_grad_()
        mine = values[own].clone().requires_grad_(), scores[own].clone().requires_grad_()
        (knockout.topk(*alone, 7, 1.0).values.sin() * ways.sum(0)).sum().mul(factor).backward()
        out = distributed.topk(*mine, 7, 1.0, group=GROUPS[3], reduction=reduction)
        (out.values.sin() * ways[rank]).sum().backward(retain_graph=True)
        for many, one in zip(mine, alone, strict=True):
            torch.testing.assert_close(many.grad, one.grad[own])
        (out.values.sin() * ways[rank]).sum().backward()  # once more
        torch.testing.assert_close(mine[1].grad, 2 * alone[1].grad[own])


def test_gradients_of_the_sum_or_the_mean_of_the_losses(world: World) -> None:
    world.check(reductions, size=3)


# --- in models ---


class Reader(nn.Module):
    """Scores what this rank has, and reads the best of what all have."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scorer, self.head, self.group = nn.Linear(3, 1).double(), nn.Linear(3, 1).double(), group

    def forward(self, values: Tensor) -> Tensor:
        scores = self.scorer(values).squeeze(-1)
        if self.group is None:
            picked = knockout.topk(values, scores, 5, 1.0).values
        else:
            picked = distributed.topk(values, scores, 5, 1.0, group=self.group, reduction="sum").values
        out: Tensor = self.head(picked).tanh()
        return out


def train(model: nn.Module, values: Tensor) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(3):
        optimizer.zero_grad()
        (model(values) - 0.3).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def in_parallel(rank: int, wrapper: str) -> None:
    values, own = randn(50, 3), (slice(0, 10), slice(10, 10), slice(10, 50))[rank]
    model: nn.Module = Reader(GROUPS[3])
    if wrapper == "DDP":
        model = DistributedDataParallel(model, process_group=GROUPS[3])
    elif wrapper == "FSDP":
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=DeviceMesh.from_group(GROUPS[3], "cpu"))
    elif wrapper == "compile":
        model = DistributedDataParallel(torch.compile(model, backend="aot_eager"), process_group=GROUPS[3])
    found, expected = train(model, values[own]), train(Reader(None), values)
    for many, one in zip(found, expected, strict=True):
        whole = many.full_tensor() if isinstance(many, DTensor) else many
        torch.testing.assert_close(whole, one, rtol=1e-9, atol=1e-9)
    assert not torch.equal(expected[0], next(Reader(None).parameters()))


@pytest.mark.parametrize("wrapper", ["DDP", "FSDP", "compile"])
def test_models_learn_what_one_process_would(world: World, wrapper: str) -> None:
    world.check(in_parallel, wrapper, size=3)


def dtensors(rank: int, slots: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "candidates"))
    values, scores, mask = randn(2, 31, 3), randn(2, 31, seed=1), torch.arange(31) % 5 > 0
    one_values, one_scores = values.clone().requires_grad_(), scores.clone().requires_grad_()
    one = knockout.topk(one_values, one_scores, 5, 1.0, mask)
    (one.values.sin().sum() + one.scores.sum()).backward()
    for rows in (Replicate(), Shard(0)):
        parts = [distribute_tensor(x.detach().clone(), mesh, [rows, Shard(1)]) for x in (values, scores)]
        mine = [part.requires_grad_() for part in parts]
        masks = distribute_tensor(mask.expand(2, -1).contiguous(), mesh, [rows, Shard(1)])
        many = distributed.topk(mine[0], mine[1], 5, 1.0, masks, slots=slots)
        for got, expected in zip(many, one, strict=True):
            assert isinstance(got, DTensor)
            assert got.placements[1] == (Replicate() if slots == "replicated" else Shard(1))
            torch.testing.assert_close(got.full_tensor(), expected)
        (many.values.sin().sum() + many.scores.sum()).backward()
        for got, expected in zip(mine, (one_values, one_scores), strict=True):
            torch.testing.assert_close(got.grad.full_tensor(), expected.grad)
    picked = distributed.select(mine[1], 5, 1.0, masks)
    torch.testing.assert_close(picked.apply(mine[0]).full_tensor(), one.values)
    with pytest.raises(ValueError, match="scores must be sharded on their last dimension"):
        distributed.select(distribute_tensor(scores, mesh, [Replicate(), Replicate()]), 5)
    with pytest.raises(ValueError, match="group must be None"):
        distributed.select(mine[1], 5, group=GROUPS[2])
    for wrong in ([rows, Shard(2)], [Replicate(), Shard(1)]):  # and rows that not all ranks of the others have
        with pytest.raises(ValueError, match="values must be laid out as scores"):
            distributed.topk(distribute_tensor(values, mesh, wrong), mine[1], 5)
    wide = distribute_tensor(mask.expand(2, -1).contiguous(), mesh, [Replicate(), Shard(1)])
    with pytest.raises(ValueError, match="mask must be laid out as scores"):
        distributed.topk(mine[0], mine[1], 5, mask=wide)
    with pytest.raises(ValueError, match="values must have the batch dimensions of scores that are sharded"):
        distributed.topk(distribute_tensor(values[0], mesh, [Replicate(), Shard(0)]), mine[1], 5)
    narrow = distribute_tensor(mask, mesh, [Replicate(), Shard(0)])
    torch.testing.assert_close(distributed.topk(mine[0], mine[1], 5, 1.0, narrow).values.full_tensor(), one.values)
    with pytest.raises(TypeError, match="values must be an ordinary tensor, as scores"):
        distributed.topk(mine[0], mine[1].to_local(), 5, group=mesh.get_group(1))
    assert rank == dist.get_rank()


@pytest.mark.parametrize("slots", ["replicated", "sharded"])
def test_dtensors_that_are_sharded_on_the_candidates(world: World, slots: str) -> None:
    world.check(dtensors, slots, size=4)


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


def test_each_rank_reads_its_own_file(world: World, tmp_path: Path) -> None:
    world.check(from_disk, str(tmp_path), size=3)


def checkpointed(rank: int) -> None:
    """Everything is computed again in the backward pass, on all ranks together."""
    case = Case(3, (0.2, 0.7), 50, 7, Relative(1), (2,))
    values, scores, _ = case.inputs()
    own = case.part(rank)
    alone, mine = scores.clone().requires_grad_(), scores[..., own].clone().requires_grad_()
    knockout.topk(values, alone, 7, 1.0).values.sin().sum().backward()

    def chosen(scores: Tensor) -> Tensor:
        out: Tensor = distributed.topk(values[..., own, :], scores, 7, 1.0, group=GROUPS[3]).values
        return out.sin()

    for reentrant in (False, True):
        mine.grad = None
        again: Tensor = checkpoint(chosen, mine, use_reentrant=reentrant)
        again.sum().backward()
        torch.testing.assert_close(mine.grad, alone.grad[..., own])


def test_under_a_checkpoint(world: World) -> None:
    world.check(checkpointed, size=3)


# --- faults ---


def other_payloads(rank: int, what: str) -> None:
    values, scores = randn(20, 3), randn(20, seed=rank).requires_grad_()
    picked = distributed.select(scores, 4, 1.0, group=GROUPS[2])
    one, other = picked.apply(values), picked.apply(3 * values)
    if what == "payloads":
        (one.sum() if rank == 0 else other.sum()).backward()
    else:
        (one.sum() if rank == 0 else picked.scores.sum()).backward()


@pytest.mark.parametrize("what", ["payloads", "outputs"])
def test_ranks_whose_losses_are_of_other_results_are_told(world: World, what: str) -> None:
    for answer in world.run(other_payloads, what, size=2):
        assert answer.kind == "RankError"
        assert "all ranks must use the same results of knockout.distributed in their losses" in answer.text
    world.check(compare, Case(2, (0.2,), 20, 3, Relative(4)), size=2)


def without_gradient(rank: int) -> None:
    picked = distributed.select(randn(20).requires_grad_(), 4, group=GROUPS[2])
    with torch.set_grad_enabled(rank == 0):
        picked.apply(randn(20, 3))


def test_gradients_must_be_enabled_on_all_or_none(world: World) -> None:
    for answer in world.run(without_gradient, size=2):
        assert answer.kind == "ValueError"
        assert "whether gradients are enabled must be the same on all ranks" in answer.text


def same_boost(rank: int) -> None:
    distributed.select(randn(20), 4, (4, 4.0)[rank], group=GROUPS[2])
    distributed.select(randn(20), 4, (Fixed(2), Fixed(torch.tensor(2.0)))[rank], group=GROUPS[2])


def test_a_boost_is_the_same_however_it_is_written(world: World) -> None:
    world.check(same_boost, size=2)


RIGHT: dict[str, Any] = {"k": 4, "boost": 2.0, "order": "score", "hard": False, "slots": "replicated"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "k": ({"k": 5}, "k must be the same on all ranks; got 4 on ranks 0, 2; 5 on rank 1"),
    "boost": ({"boost": Fixed(3)}, r"boost must be the same on all ranks; got Relative\(c=2.0.*Fixed\(c=3"),
    "order": ({"order": "position"}, "order must be the same on all ranks"),
    "hard": ({"hard": True}, "hard must be the same on all ranks"),
    "slots": ({"slots": "sharded"}, "slots must be the same on all ranks"),
    "dtype": ({"scores": torch.zeros(6, dtype=torch.float64)}, "the dtype of scores must be the same on all ranks"),
    "d": ({"values": torch.zeros(6, 9)}, "d must be the same on all ranks; got 3 on ranks 0, 2; 9 on rank 1"),
    "batch": (
        {"scores": torch.zeros(2, 6), "values": torch.zeros(2, 6, 3)},
        "the batch dimensions of scores must be the same on all ranks",
    ),
    "dtype of values": ({"values": torch.zeros(6, 3).double()}, "the dtype of values must be the same on all ranks"),
}


def disagree(rank: int, change: dict[str, Any]) -> str:
    settings = {"values": torch.zeros(6, 3), "scores": torch.zeros(6), **RIGHT, **(change if rank == 1 else {})}
    try:
        distributed.topk(**settings, group=GROUPS[3])
    except ValueError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("what", WRONG)
def test_ranks_that_disagree_all_say_so(world: World, what: str) -> None:
    change, message = WRONG[what]
    for text in world.check(disagree, change, size=3):
        assert re.search(message, text), text
    world.check(compare, Case(3, (0.2, 0.7), 20, 3, Relative(4)), size=3)  # and the group goes on


def _raise(error: Exception) -> None:
    raise error


class Broken:
    """DensePlan that cannot be read."""

    shape = (6, 3)

    def take(self, rows: Any) -> Any:
        raise OSError(f"no disk for {len(rows)} rows")


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "scores": ({"scores": torch.zeros(6, dtype=torch.int64)}, "TypeError", "scores must be float16"),
    "mask": ({"mask": torch.ones(5, dtype=torch.bool)}, "ValueError", "mask must have shape"),
    "values": ({"values": torch.zeros(5, 3)}, "ValueError", "values must have shape"),
    "k": ({"k": 0}, "ValueError", "k must be at least 1"),
    "order": ({"order": "random"}, "ValueError", "order must be one of"),
    "reduction": ({"reduction": "max"}, "ValueError", "reduction must be one of"),
    "long": ({"order": "random" * 1000}, "ValueError", "order must be one of"),
    "rows": ({"values": Broken()}, "OSError", "no disk for"),
    "emoji": ({"order": "\N{SNOWMAN}" * 1000}, "ValueError", "order must be one of"),
}


def bad(rank: int, change: dict[str, Any]) -> None:
    settings = {"values": torch.zeros(6, 3), "scores": torch.arange(6.0), **RIGHT, **(change if rank == 1 else {})}
    distributed.topk(**settings, group=GROUPS[3])


@pytest.mark.parametrize("what", BAD)
def test_a_rank_that_raises_is_heard_by_all(world: World, what: str) -> None:
    change, kind, text = BAD[what]
    answers = world.run(bad, change, size=3)
    assert answers[1].kind == kind
    assert text in answers[1].text
    for rank in (0, 2):
        assert answers[rank].kind == "RankError", answers[rank]
        assert f"rank 1 failed with {kind}: {text}" in answers[rank].text
    world.check(compare, Case(3, (0.2, 0.7), 20, 3, Relative(4)), size=3)


def too_many(rank: int) -> None:
    distributed.topk(torch.zeros(2, 3), torch.zeros(2), 7 + 0 * rank, group=GROUPS[3])


def broken_home(rank: int) -> None:
    play = RowOwner.play
    if rank == 0:
        RowOwner.play = lambda *_: _raise(MemoryError("too much"))  # type: ignore[assignment, method-assign]
    try:
        distributed.topk(torch.zeros(2, 3), torch.zeros(2), 3, group=GROUPS[3])
    finally:
        RowOwner.play = play  # type: ignore[method-assign]


def test_errors_that_show_on_the_way(world: World) -> None:
    for answer in world.run(too_many, size=3):
        assert answer.kind == "ValueError"
        assert "k must be at most n, the number of candidates; got k = 7 with scores of shape (6,)" in answer.text
    first, *others = world.run(broken_home, size=3)
    assert first.kind == "MemoryError"
    assert all(each.kind == "RankError" and "failed on rank 0" in each.text for each in others)
    world.check(compare, Case(3, (0.2, 0.7), 20, 3, Relative(4)), size=3)


PATIENCE = 4.0


def leave(rank: int, how: str, when: str) -> tuple[str, str, float]:
    """One rank dies, or does not come in time, before a call or between its forward and its backward pass."""
    scores, values, group = torch.arange(6.0).requires_grad_(), torch.zeros(6, 3), impatient(PATIENCE)
    out = distributed.topk(values, scores, 4, group=group)  # all is well
    dist.barrier()
    begun = time.monotonic()
    try:
        if rank == 1:
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.5 if how == "is a little late" else PATIENCE + 3.0)
        if when == "forward":
            out = distributed.topk(values, scores, 4, group=group)
        out.values.sum().backward()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - begun
    return "", "", time.monotonic() - begun


@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("how", ["dies", "is late"])
def test_a_rank_that_is_lost_is_an_error_on_the_others(how: str, when: str) -> None:
    with World(3) as world:
        answers = world.run(leave, how, when)
    if how == "dies":
        assert answers[1] is GONE
    for rank in (0, 2):
        kind, text, seconds = answers[rank]
        assert kind == "RankError"
        assert f"rank {rank} of 3 lost contact with the other ranks" in text
        assert "No rank has a result" in text
        assert seconds < PATIENCE + 3.0


def gone(rank: int) -> None:
    group = impatient(PATIENCE)
    if rank == 1:
        raise KeyError("somewhere else")
    distributed.topk(torch.zeros(6, 3), torch.arange(6.0), 4, group=group)


def test_a_rank_that_is_late_or_raises_elsewhere() -> None:
    with World(2) as world:
        # A little late is waited for.
        assert all(kind == "" for kind, _, _ in world.check(leave, "is a little late", "forward"))
        waiting, raised = world.run(gone)
    assert isinstance(raised, Failed)
    assert raised.kind == "KeyError"
    assert waiting.kind == "RankError"
    assert "did not respond within the timeout" in waiting.text


def test_without_a_group_it_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="init_process_group first"):
        distributed.topk(torch.zeros(6, 3), torch.zeros(6), 4)


def not_a_group(rank: int) -> None:
    distributed.select(torch.zeros(6), 4 + 0 * rank, group=[0, 1])


def numpy_k(rank: int) -> None:
    scores = torch.arange(6.0) + rank
    alone = knockout.select(torch.cat([torch.arange(6.0), torch.arange(6.0) + 1]), 3)
    assert distributed.select(scores, np.int64(3), group=GROUPS[2]).indices.tolist() == alone.indices.tolist()


def chunks_and_twice(rank: int) -> None:
    whole, part = randn(2, 30).requires_grad_(), slice(15 * rank, 15 * rank + 15)
    mine = whole.detach()[:, part].clone().requires_grad_()
    one = knockout.topk(randn(30, 3), whole, 4, 1.0)
    one.values.sin().sum().backward()
    many = distributed.topk(randn(30, 3)[part], (mine[:, i : i + 5] for i in (0, 5, 10)), 4, 1.0, group=GROUPS[2])
    (first,) = torch.autograd.grad(many.values.sin().sum(), mine, create_graph=True)
    torch.testing.assert_close(first, whole.grad[:, part])
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()


def test_scores_in_chunks_and_no_second_derivative(world: World) -> None:
    world.check(chunks_and_twice, size=2)


def test_k_may_be_a_number_of_numpy(world: World) -> None:
    world.check(numpy_k, size=2)


def test_group_must_be_a_group(world: World) -> None:
    assert all("group must be a torch.distributed.ProcessGroup" in each.text for each in world.run(not_a_group, size=2))


# --- bytes ---


def bytes_sent(rank: int, n: int, d: int, k: int) -> dict[str, int]:
    generator = torch.Generator().manual_seed(rank)
    scores = torch.rand(n, generator=generator).requires_grad_()
    values = torch.rand(n, d, generator=generator).requires_grad_()
    with distributed.traffic() as traffic:
        distributed.topk(values, scores, k, group=GROUPS[4]).values.sum().backward()
    assert traffic.total == sum(traffic.sent.values())
    return dict(traffic.sent)


def test_bytes_do_not_grow_with_the_values(world: World) -> None:
    narrow, wide = ([sum(each.values()) for each in world.check(bytes_sent, 2**14, d, 8)] for d in (1, 64))
    for small, large in zip(narrow, wide, strict=True):
        # A sum over four ranks, forward and back, of k times 63 more numbers.
        assert large - small == 2 * (2 * 8 * 63 * 4 * 3 // 4)
    assert sum(wide) < 4 * 2**14 * 64 * 4 * 3 / 100  # a hundredth of what it takes to gather all values
