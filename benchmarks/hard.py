"""The true top k, as the layers take it in evaluation with ``hard_eval=True``, and as ``methods.hard`` does, beside
``torch.topk`` and a gather with the same mask. The difference is checks, results that are complete, and ties."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.testing import assert_close

from benchmarks.common import Size, draw
from benchmarks.registry import Benchmark, Effort, Row
from harness.timing import medians
from knockout import methods
from knockout.functional import Order
from knockout.nn import TokenPool, TopK


class Cell(NamedTuple):
    """Sizes, the order of the slots, and whether a fifth of the candidates is masked out."""

    size: Size
    order: Order
    masked: bool


ORDERS: tuple[Order, ...] = ("score", "position")
SIZES = (Size(16, 64, 8, 64), Size(16, 1024, 64, 64), Size(16, 4096, 64, 64), Size(16, 16384, 512, 64))


class Hard(Benchmark[Cell]):
    """The cost of hard choices in evaluation."""

    name = "hard"
    description = "hard_eval=True of the layers, and methods.hard, as ratios to torch.topk and a gather"
    threads = 1
    all_cells = tuple(Cell(size, order, masked) for size in SIZES for order in ORDERS for masked in (False, True))
    tiny = Cell(Size(2, 16, 4, 3), "position", True)

    def check(self, cell: Cell) -> None:
        values, scores, mask, layer, pool = _prepare(cell)
        for found, rated in ((layer(values, scores, mask).values, scores), (pool(values, mask).x, pool.scorer(values))):
            assert_close(found, _twin(values, _without_ties(rated), mask, cell), rtol=0, atol=0)

    def measure(self, cell: Cell, effort: Effort) -> list[Row]:
        values, scores, mask, layer, pool = _prepare(cell)
        with torch.no_grad():
            taken = medians(
                {
                    "twin": partial(_twin, values, scores, mask, cell),
                    "TopK": partial(layer, values, scores, mask),
                    "methods.hard": lambda: methods.hard(scores, cell.size.k, mask).apply(values),
                    "pool twin": lambda: _twin(values, pool.scorer(values), mask, cell),
                    "TokenPool": partial(pool, values, mask),
                },
                *effort,
            )
        return [
            {
                **cell.size._asdict(), "order": cell.order, "mask": cell.masked,
                "torch.topk and gather, us": 1e6 * taken["twin"],
                "TopK, ratio": taken["TopK"] / taken["twin"],
                "methods.hard, ratio": taken["methods.hard"] / taken["twin"],
                "with a scorer, us": 1e6 * taken["pool twin"],
                "TokenPool, ratio": taken["TokenPool"] / taken["pool twin"],
            }
        ]  # fmt: skip


def _prepare(cell: Cell) -> tuple[Tensor, Tensor, Tensor | None, TopK, TokenPool]:
    values, scores = draw(cell.size)
    mask = torch.rand(scores.shape, generator=torch.Generator().manual_seed(1)) < 0.8 if cell.masked else None
    layer = TopK(cell.size.k, order=cell.order, hard_eval=True).eval()
    pool = TokenPool(cell.size.d, k=cell.size.k, order=cell.order, hard_eval=True).eval()
    return values, scores, mask, layer, pool


def _without_ties(scores: Tensor) -> Tensor:
    """Ranks in place of scores: of equal ones, ``torch.topk`` takes any, and the layers the lower index."""
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    return -order.argsort(dim=-1).to(scores.dtype)


def _twin(values: Tensor, scores: Tensor, mask: Tensor | None, cell: Cell) -> Tensor:
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    index = scores.topk(cell.size.k, dim=-1).indices
    if cell.order == "position":
        index = index.sort(dim=-1).values
    return values.gather(1, index.unsqueeze(-1).expand(-1, -1, values.shape[-1]))


BENCHMARK = Hard()
