"""Gradients of candidates on many ranks: which ranks need them, whose losses count, and models in parallel."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import knockout
from knockout import distributed
from knockout.boost import Relative
from tests.cases import randn
from tests.distributed_cases import Case
from tests.process_group import GROUPS, Workers


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
    values.requires_grad_(rank == 2)  # only the values need a gradient, and only on one rank
    out = distributed.topk(values[own], mine.detach(), 7, group=GROUPS[3])
    out.values.sum().backward()
    assert (values.grad is None) == (rank != 2)


def test_some_ranks_may_need_no_gradients(workers: Workers) -> None:
    workers.check(frozen, size=3)


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
        (out.values.sin() * ways[rank]).sum().backward()  # a second backward pass
        torch.testing.assert_close(mine[1].grad, 2 * alone[1].grad[own])


def test_gradients_of_the_sum_or_the_mean_of_the_losses(workers: Workers) -> None:
    workers.check(reductions, size=3)


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


def test_scores_in_chunks_and_no_second_derivative(workers: Workers) -> None:
    workers.check(chunks_and_twice, size=2)


def checkpointed(rank: int) -> None:
    """A checkpoint computes the call again in the backward pass, on all ranks together."""
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


def test_under_a_checkpoint(workers: Workers) -> None:
    workers.check(checkpointed, size=3)


class Reader(nn.Module):
    """A model that scores the values of this rank, and reads the best of all ranks."""

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
        fully_shard(model, mesh=DeviceMesh.from_group(GROUPS[3], "cpu"))
    elif wrapper == "compile":
        model = DistributedDataParallel(torch.compile(model, backend="aot_eager"), process_group=GROUPS[3])
    found, expected = train(model, values[own]), train(Reader(None), values)
    for many, one in zip(found, expected, strict=True):
        whole = many.full_tensor() if isinstance(many, DTensor) else many
        torch.testing.assert_close(whole, one, rtol=1e-9, atol=1e-9)
    assert not torch.equal(expected[0], next(Reader(None).parameters()))


@pytest.mark.parametrize("wrapper", ["DDP", "FSDP", "compile"])
def test_models_learn_what_one_process_would(workers: Workers, wrapper: str) -> None:
    workers.check(in_parallel, wrapper, size=3)
