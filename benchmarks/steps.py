"""One process with one thread has all candidates and sends them to itself. These are the constants of the model of cost
in docs/distributed.md."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing import assert_close

import knockout
from benchmarks.common import in_new_process
from benchmarks.registry import Benchmark, Effort, Row
from harness.memory import peak_resident, reset_peak_resident
from harness.timing import medians
from knockout import distributed
from knockout.boost import Relative
from knockout.distributed.call import Call, Settings
from knockout.distributed.owner import FlatPlan, RowOwner
from knockout.distributed.ranks import Ranks
from knockout.distributed.routing import Routing, find_routing
from knockout.quota import Quota

K = 64
SCORES: dict[str, Callable[..., Tensor]] = {"uniform": torch.rand, "normal": torch.randn}


class Cell(NamedTuple):
    """How scores are drawn, how many, and the boost."""

    scores: str
    n: int
    boost: float

    def inputs(self) -> Tensor:
        """Scores (n,)."""
        return SCORES[self.scores](self.n, generator=torch.Generator().manual_seed(self.n))


class Steps(Benchmark[Cell]):
    """The steps of a distributed selection."""

    name = "steps"
    description = "what each step of a distributed selection takes, in nanoseconds and bytes per candidate"
    threads = 1
    seconds = 0.0
    all_cells = tuple(Cell(scores, 2**i, boost) for scores in SCORES for i in (20, 22, 24) for boost in (4.0, 16.0))
    tiny = Cell("normal", 2**15, 4.0)

    @contextmanager
    def prepared(self, cells: Sequence[Cell], options: argparse.Namespace) -> Iterator[None]:  # noqa: ARG002
        with group_of_one():
            yield

    def check(self, cell: Cell) -> None:
        scores = cell.inputs().requires_grad_()
        found, expected = (each.select(scores, K, cell.boost) for each in (distributed, knockout))
        assert_close(found.indices, expected.indices)
        assert_close(found.scores, expected.scores)
        gradients = [torch.autograd.grad(each.scores.sum(), scores)[0] for each in (found, expected)]
        assert_close(*gradients, rtol=1e-4, atol=1e-4)

    def measure(self, cell: Cell, effort: Effort) -> list[Row]:
        row = OneRow(cell)
        gradients = row.gradients()
        # In this order: backward needs a tournament that was played with gradients.
        steps: dict[str, Callable[[], object]] = {
            "find routing": row.find_routing,
            "send": row.send,
            "fill": row.fill,
            "play": row.owner.play,
            "play with gradients": row.trained_owner.play,
            "backward": lambda: row.trained_owner.backward(*gradients),
        }
        taken, memory = medians(steps, *effort), in_new_process(_memory, cell)
        return [
            {
                **cell._asdict(), "fraction sent": len(row.routing.sent_index) / cell.n, "bytes": memory / cell.n,
                **{f"{name}, ns": 1e9 * each / cell.n for name, each in taken.items()},
            }
        ]  # fmt: skip


class OneRow:
    """The tournament of one row, step by step, in a group of this process alone."""

    def __init__(self, cell: Cell) -> None:
        settings = Settings(K, Relative(cell.boost), "score", hard=False, slots="replicated", reduction="mean")
        self.call = Call(Ranks(None), 1, settings, [cell.n], Quota(K), needs_grad=False)
        self.scores = cell.inputs().unsqueeze(0)
        self.active = torch.ones_like(self.scores, dtype=torch.bool)
        self.routing = self.find_routing()
        self.received = self.send()
        self.owner = self.fill()
        self.trained_owner = RowOwner(self.received, self.routing, self.call._replace(needs_grad=True))

    def find_routing(self) -> Routing:
        """Find out which candidates have to be sent."""
        return find_routing(self.scores, self.active, self.call)

    def send(self) -> Tensor:
        """Send their scores to the owner rank."""
        return self.routing.to_owners(self.scores.flatten()[self.routing.sent_index])

    def fill(self) -> RowOwner:
        """Make the row that the owner rank plays."""
        return RowOwner(self.received, self.routing, self.call)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Gradients of the results of a tournament: ones."""
        plan: FlatPlan = self.trained_owner.play()
        return torch.ones_like(plan.weight), torch.ones_like(plan.score)


def _memory(cell: Cell) -> int:
    """Bytes that a tournament and its backward pass take, besides those that the kernels keep between calls."""
    with group_of_one():
        row = OneRow(cell)
        row.owner.play()
        before = reset_peak_resident()
        row.trained_owner.backward(*row.gradients())
        return peak_resident() - before


@contextmanager
def group_of_one() -> Iterator[None]:
    """A process group of this process alone."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", f"file://{folder}/group", world_size=1, rank=0)
        try:
            yield
        finally:
            dist.destroy_process_group()


BENCHMARK = Steps()
