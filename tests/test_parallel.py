"""The layers under DistributedDataParallel: two processes learn what one would."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from knockout.boost import Adaptive
from knockout.nn import PyramidEncoder, Sharpen
from tests.cases import randn
from tests.process_group import GROUPS, Workers

DIM, STEPS = 16, 3


def model() -> PyramidEncoder:
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(DIM, 2, 32, 0.0, batch_first=True) for _ in range(2)]
    return PyramidEncoder(layers, ratios={0: 0.5}, block=8, keep=1, boost=Adaptive(1.0, unit=5.0))


def step(made: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, mask: Tensor) -> None:
    optimizer.zero_grad()
    out = made(x, mask)
    (out.x.sin() * out.mask.unsqueeze(-1)).mean().backward()
    optimizer.step()


def batch(number: int) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([20, 20, 7, 1])[:, None]
    return randn(4, 20, DIM, seed=number, dtype=torch.float32), torch.arange(20) < lengths


def in_parallel(rank: int) -> dict[str, Any]:
    """The state that a process ends with, in lists: tensors would go through shared memory."""
    made = DistributedDataParallel(model(), process_group=GROUPS[2])
    if rank:
        with torch.no_grad():
            made.module.pools["0"].topk.sharpness.fill_(99.0)  # the buffers of the first process count
    optimizer = torch.optim.SGD(made.parameters(), lr=0.5)
    schedule = Sharpen(made, STEPS, hold=0.0)
    for number in range(STEPS):
        x, mask = (each[2 * rank : 2 * rank + 2] for each in batch(number))
        step(made, optimizer, x, mask)
        schedule.step()
    return {name: each.tolist() for name, each in made.module.state_dict().items()}


def test_two_processes_learn_what_one_would(workers: Workers) -> None:
    alone = model()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
    schedule = Sharpen(alone, STEPS, hold=0.0)
    for number in range(STEPS):
        step(alone, optimizer, *batch(number))
        schedule.step()
    start = model().state_dict()
    for found in workers.check(in_parallel, size=2):
        assert found.keys() == start.keys()
        for name, each in alone.state_dict().items():
            torch.testing.assert_close(torch.tensor(found[name], dtype=each.dtype), each, rtol=1e-4, atol=1e-5)
    moved = [name for name, each in alone.state_dict().items() if not torch.equal(each, start[name])]
    assert {"pools.0.scorer.weight", "pools.0.topk.sharpness"} <= set(moved)
