"""Candidates on many ranks as DTensors."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import knockout
from knockout import distributed
from tests.cases import randn
from tests.process_group import GROUPS, Workers


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
    for wrong in ([rows, Shard(2)], [Replicate(), Shard(1)]):
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
def test_dtensors_that_are_sharded_on_the_candidates(workers: Workers, slots: str) -> None:
    workers.check(dtensors, slots, size=4)
