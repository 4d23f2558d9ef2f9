"""The weights of a selection are given. Every way computes the same blended values, except for the first, which gathers
the value rows of the leaders alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

import knockout
from benchmarks.common import Size, blend, check_close, draw, sparse
from benchmarks.registry import Benchmark, Effort, Row
from harness.timing import medians
from knockout import backends

LEADERS = "leaders only"


class Gather(Benchmark[Size]):
    """Ways to gather and weight value rows."""

    name = "gather"
    description = "ways to gather and weight value rows, as a ratio to the gather of the leaders alone"
    seconds = 2.0
    all_cells = (
        Size(16, 16384, 2, 32),
        Size(16, 16384, 64, 32),
        Size(16, 16384, 2048, 32),
        Size(16, 1024, 64, 32),
        Size(4, 16384, 64, 512),
    )
    tiny = Size(2, 21, 4, 3)

    def check(self, cell: Size) -> None:
        values, scores = draw(cell)
        with backends.force("reference"):
            expected = knockout.select(scores, cell.k, 4.0).apply(values)
        for name, way in ways(cell).items():
            if name != LEADERS:
                check_close(name, way(), expected, tolerance=1e-4)

    def measure(self, cell: Size, effort: Effort) -> list[Row]:
        taken = medians(ways(cell), *effort)
        return [
            {**cell._asdict(), "way": name, "ms": 1e3 * each, "ratio": each / taken[LEADERS]}
            for name, each in taken.items()
        ]


def ways(size: Size) -> dict[str, Callable[[], Tensor]]:
    """The same blend in five ways, and the gather of the leaders alone."""
    batch, n, k, d = size
    values, scores = draw(size)
    selection = knockout.select(scores, k, 4.0)
    member, weight = sparse(selection)
    # What each way needs is set up here, and not timed. Padding (member == n) names the slot's leader, with weight 0.
    offset = torch.arange(batch)[:, None, None] * n
    row = torch.where(member < n, member, member[..., :1]) + offset
    # The slot of every candidate: one more column takes the padding. Candidates in no slot have mass 0; slot 0 is as
    # good as any for them.
    slots = torch.arange(k).repeat_interleave(member.shape[-1]).expand(batch, -1)
    slot = torch.zeros(batch, n + 1, dtype=torch.int64).scatter(1, member.flatten(1), slots)[:, :n]
    mass = selection.mass()
    leader = selection.indices.unsqueeze(-1).expand(-1, -1, d)

    def gather_einsum() -> Tensor:
        return torch.einsum("bkm,bkmd->bkd", weight, values.flatten(0, 1)[row])

    def scatter_add() -> Tensor:
        index = slot.unsqueeze(-1).expand(-1, -1, d)
        return torch.zeros(batch, k, d).scatter_add(1, index, values * mass.unsqueeze(-1))

    def index_add() -> Tensor:
        rows = (values * mass.unsqueeze(-1)).flatten(0, 1)
        index = (slot + torch.arange(batch).unsqueeze(-1) * k).flatten()
        return torch.zeros(batch * k, d).index_add(0, index, rows).view(batch, k, d)

    def bag_of_all_rows() -> Tensor:
        bags, weights = row.flatten(0, 1), weight.flatten(0, 1)
        bag = embedding_bag(bags, values.flatten(0, 1), mode="sum", per_sample_weights=weights)
        return bag.view(batch, k, d)

    return {
        LEADERS: lambda: values.gather(1, leader),
        "knockout: rows with weight": lambda: blend(values, weight, member),
        "embedding_bag of all rows": bag_of_all_rows,
        "gather + einsum": gather_einsum,
        "scatter_add": scatter_add,
        "index_add": index_add,
    }


BENCHMARK = Gather()
