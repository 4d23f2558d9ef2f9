"""A selection whose candidates are spread over ranks, and how their values come together.

Each rank blends those of its own candidates that carry weight; what they have blended is added up, k d numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from knockout.distributed.agreement import agree
from knockout.distributed.mesh import Layout, local
from knockout.distributed.ranks import Ranks
from knockout.dtypes import computing_dtype
from knockout.plan import SparsePlan, straight_through
from knockout.rows.gather import Progress, blend_rows
from knockout.rows.sources import RowSource
from knockout.selection import Selection


class Sharing(NamedTuple):
    """Who shares the candidates, and what becomes of the slots."""

    ranks: Ranks
    share: float  # of each rank's gradient: 1 for their sum, 1 / size for their mean
    sharded: bool  # whether each rank gets a part of the slots

    def slots(self, each: Tensor) -> Tensor:
        """Of (*batch, k), the slots that this rank gets."""
        return each[..., self.ranks.own(self.ranks.portions(each.shape[-1]))] if self.sharded else each


@dataclass(eq=False, kw_only=True)
class Shard(SparsePlan):
    """This rank's part of a plan: ``member`` and n are of its own candidates.

    Members that are on other ranks have their weight, but are nobody here.
    """

    sharing: Sharing

    def apply(self, values: Tensor) -> Tensor:
        soft = SparsePlan(self.n, self.valid, self.member, self._own_weight(), self.score, backend=self.backend).apply(
            values
        )
        if not self.hard:
            return soft
        # The leader may be on another rank, and then whoever comes next is not shown in its place.
        first = self.weight[..., :1]
        leads = torch.where(first.isnan(), first, (self.member[..., :1] < self.n).to(first.dtype)).detach()
        shown = SparsePlan(self.n, self.valid, self.member[..., :1], leads, self.score, backend=self.backend).apply(
            values.detach()
        )
        return straight_through(shown, soft)

    def read(self, source: RowSource, progress: Progress = None) -> Tensor:
        return blend_rows(source, self._own_weight(), self.member, self.valid, self.hard, progress)

    def _acting_weight(self) -> Tensor:
        return SparsePlan(self.n, self.valid, self.member, self._own_weight(), self.score, self.hard)._acting_weight()

    def _own_weight(self) -> Tensor:
        """The weights, for what is done with this rank's candidates alone: no other rank has their gradients, which are
        added up, be it of the sum of the losses or of their mean."""
        share = self.sharing.share
        return self.weight if share == 1.0 else _Times.apply(self.weight, 1.0 / share)  # type: ignore[no-untyped-call]

    def scores(self) -> Tensor:
        return self.sharing.slots(super().scores())

    def support(self) -> Tensor:
        return self.sharing.slots(super().support())

    def entropy(self) -> Tensor:
        return self.sharing.slots(SparsePlan(self.n, self.valid, self.member, self.weight, self.score).entropy())


class ShardedSelection(Selection):
    """What ``knockout.distributed.select`` returns. All ranks must apply it, to the same number of payloads."""

    def __init__(self, plan: Shard, leader: Tensor, dtype: torch.dtype, layout: Layout | None) -> None:
        leader = plan.sharing.slots(leader)
        super().__init__(plan, leader, leader >= 0, dtype)
        self._sharing, self._layout, self._slots = plan.sharing, layout, plan.score.shape[-1]

    @torch.compiler.disable
    def apply(self, values: Tensor | RowSource, progress: Progress = None) -> Tensor:
        ranks, _, sharded = self._sharing

        def attempt() -> Tensor:
            own = local(values, "values", self._layout, 2) if isinstance(values, Tensor) else values
            return super(ShardedSelection, self).apply(own, progress)

        def same(part: Tensor) -> dict[str, Any]:
            dtype, (*batch, _, d) = str(part.dtype).removeprefix("torch."), part.shape
            return {
                "d": d,
                "the dtype of values": dtype,
                "the batch dimensions of values": batch,
                "whether gradients are enabled": torch.is_grad_enabled(),
            }

        part, learns, number = agree(ranks, "apply", attempt, same, lambda part: part.requires_grad)
        if any(learns) and not part.requires_grad:
            part = part.detach().requires_grad_()  # it must have a backward pass, or the other ranks wait for it
        together = _Slots if sharded else _Sum
        wide: Tensor = together.apply(part.to(computing_dtype(part.dtype)), self._sharing, number)  # type: ignore[no-untyped-call]
        return self.wrap(wide.to(part.dtype), values.shape[:-2] if isinstance(values, Tensor) else ())

    def wrap(self, result: Tensor, batch: Any = ()) -> Tensor:
        """Where the scores were DTensors, so are the results (*batch, k, ...)."""
        if self._layout is None:
            return result
        return self._layout.wrap(result, batch, self._slots if self._sharing.sharded else None)


class _Times(Function):
    """x, with a gradient of so many times its size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * grad, None


class _Sum(Function):
    """The sum of all ranks' parts, on all ranks; so its gradient comes from all of them."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, sharing: Sharing, number: int) -> Tensor:
        ctx.sharing, ctx.number = sharing, number
        return sharing.ranks.total(part, "values")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.sharing.ranks.meet(ctx.number, "backward")
        return ctx.sharing.ranks.total(grad * ctx.sharing.share, "gradients of values"), None, None


class _Slots(Function):
    """The same, of (*batch, k, d) some of the slots on each rank."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, sharing: Sharing, number: int) -> Tensor:
        slots, ranks = part.movedim(-2, 0), sharing.ranks
        ctx.ranks, ctx.portions, ctx.number = ranks, ranks.portions(len(slots)), number
        return ranks.collect(slots, ctx.portions, "values").movedim(0, -2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.ranks.meet(ctx.number, "backward")
        return ctx.ranks.share(grad.movedim(-2, 0), ctx.portions, "gradients of values").movedim(0, -2), None, None
