"""Each cell is measured in a process of its own, because memory that an earlier call has freed would be used again. The
resident memory is measured, not the tensors alone, because the kernels have working memory that is not a tensor."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

import knockout
from benchmarks.common import Size, check_against_reference, draw, in_new_process, soft
from benchmarks.registry import Benchmark, Effort, Row
from harness.memory import peak_resident, reset_peak_resident
from harness.timing import hard_topk
from knockout.boost import Boost, Relative

SHARP, SOFT = Relative(4), Relative(0.5)
SIZE = Size(4, 2**20, 64, 8)


class Cell(NamedTuple):
    """One operator, forward, or forward and backward."""

    operator: str
    backward: bool
    size: Size
    boost: Boost = SHARP


class Memory(Benchmark[Cell]):
    """The most memory of a call."""

    name = "memory"
    description = "peak of the resident memory of a call, above its inputs, beside that of torch.topk + gather"
    all_cells = tuple(
        Cell(name, backward, SIZE, boost)
        for name, boost in (("hard twin", SHARP), ("knockout.topk", SHARP), ("knockout.topk", SOFT))
        for backward in (False, True)
    )
    tiny = Cell("knockout.topk", True, Size(2, 2**10, 8, 4))

    def check(self, cell: Cell) -> None:
        if cell.operator == "knockout.topk":
            check_against_reference(*draw(cell.size), cell.size.k, cell.boost)

    def measure(self, cell: Cell, effort: Effort) -> list[Row]:  # noqa: ARG002
        used, candidates = in_new_process(_used, cell), cell.size.batch * cell.size.n
        # The gradient of the values is a result, as large as the values themselves.
        result = 4 * candidates * cell.size.d if cell.backward else 0
        members = None
        if cell.operator == "knockout.topk":
            members = int(knockout.select(draw(cell.size)[1], cell.size.k, cell.boost).support().sum())
        return [
            {
                "operator": cell.operator, "boost": str(cell.boost) if members else None,
                "pass": "forward and backward" if cell.backward else "forward",
                **cell.size._asdict(), "MiB": used / 2**20, "bytes per candidate": used / candidates,
                "without the gradient of the values": (used - result) / candidates,
                "candidates with weight": members,
                "bytes per candidate with weight": used / members if members else None,
            }
        ]  # fmt: skip


def _used(cell: Cell) -> int:
    """Bytes."""
    k = cell.size.k
    operator = partial(hard_topk, k=k) if cell.operator == "hard twin" else partial(soft, k=k, boost=cell.boost)

    def call(values: Tensor, scores: Tensor) -> None:
        out = operator(values, scores)
        if cell.backward:
            out.backward(torch.ones_like(out))

    small, inputs = (
        [each.requires_grad_(cell.backward) for each in draw(size)]
        for size in (Size(1, 512 + k, k, cell.size.d), cell.size)
    )
    call(*small)  # load all code
    before = reset_peak_resident()
    call(*inputs)
    return peak_resident() - before


BENCHMARK = Memory()
