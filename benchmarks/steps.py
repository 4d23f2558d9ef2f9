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
from benchmarks.registry import Benchmark, Effort, Row
from harness.memory import peak_resident, reset_peak_resident
from harness.timing import medians
from knockout import distributed
from knockout.boost import Relative
from knockout.distributed.home import Home
from knockout.distributed.ranks import Ranks
from knockout.distributed.route import find_route
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
    tiny = Cell("normal", 2**15, 4.0)

    def cells(self, options: argparse.Namespace) -> Sequence[Cell]:  # noqa: ARG002
        return [Cell(scores, 2**i, boost) for scores in SCORES for i in (20, 22, 24) for boost in (4.0, 16.0)]

    @contextmanager
    def prepared(self, cells: Sequence[Cell], options: argparse.Namespace) -> Iterator[None]:  # noqa: ARG002
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("gloo", f"file://{folder}/group", world_size=1, rank=0)
            try:
                yield
            finally:
                dist.destroy_process_group()

    def check(self, cell: Cell) -> None:
        scores = cell.inputs().requires_grad_()
        found, expected = (each.select(scores, K, cell.boost) for each in (distributed, knockout))
        assert_close(found.indices, expected.indices)
        assert_close(found.scores, expected.scores)
        gradients = [torch.autograd.grad(each.scores.sum(), scores)[0] for each in (found, expected)]
        assert_close(*gradients, rtol=1e-4, atol=1e-4)

    def measure(self, cell: Cell, effort: Effort) -> list[Row]:
        scores, quota, boost, ranks = cell.inputs().unsqueeze(0), Quota(K), Relative(cell.boost), Ranks(None)
        active = torch.ones_like(scores, dtype=torch.bool)
        route = find_route(scores, active, cell.n, quota, boost, ranks)
        came = route.to_homes(scores.flatten()[route.travels])
        home = Home(came, route, cell.n, quota)

        before = reset_peak_resident()
        plan = home.play(K, boost, "score", False, True)
        d_weight, d_score = torch.ones_like(plan.weight), torch.ones_like(plan.score)
        home.backward(d_weight, d_score)
        memory = peak_resident() - before

        # In this order: backward needs a tournament that was played to learn.
        steps: dict[str, Callable[[], object]] = {
            "look": lambda: find_route(scores, active, cell.n, quota, boost, ranks),
            "pack": lambda: route.to_homes(scores.flatten()[route.travels]),
            "fill": lambda: Home(came, route, cell.n, quota),
            "play": lambda: home.play(K, boost, "score", False, False),
            "play to learn": lambda: home.play(K, boost, "score", False, True),
            "backward": lambda: home.backward(d_weight, d_score),
        }
        taken = medians(steps, *effort)
        return [
            {
                **cell._asdict(), "fraction sent": len(route.travels) / cell.n, "bytes": memory / cell.n,
                **{f"{name}, ns": 1e9 * each / cell.n for name, each in taken.items()},
            }
        ]  # fmt: skip


BENCHMARK = Steps()
