"""The result of ``knockout.distributed.select``: a selection of candidates that are distributed over ranks.

To apply it, each rank blends the values of its own candidates that carry weight, and the blends of all ranks are added:
k * d numbers are sent. The way back, ``spread``, needs what all slots hold: if each rank has a part of them, each sends
its part to all others. The gradients take the opposite ways.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from knockout.checks import check_slot_values
from knockout.distributed.agreement import agree
from knockout.distributed.call import Call
from knockout.distributed.dtensor import DTensorLayout, local_part
from knockout.dtypes import computing_dtype
from knockout.plan import Plan, SparsePlan
from knockout.rows.gather import Progress
from knockout.rows.sources import RowSource
from knockout.selection import Selection


class LocalPlan(Plan):
    """This rank's part of a plan: n and the members are those of its own candidates.

    In ``sparse``, candidates of other ranks are padding that keeps its weight: ``support`` and ``entropy`` count it.
    """

    def __init__(self, sparse: SparsePlan, call: Call) -> None:
        super().__init__(sparse.n, sparse.valid)
        self._sparse, self._call = sparse, call

    def apply(self, values: Tensor) -> Tensor:
        return self._own_candidates().apply(values)

    def read(self, source: RowSource, progress: Progress = None) -> Tensor:
        return self._own_candidates().read(source, progress)

    def spread(self, y: Tensor) -> Tensor:
        return self._own_candidates().spread(y)

    def weights(self) -> Tensor:
        return self._own_candidates().weights()

    def mass(self) -> Tensor:
        return self._own_candidates().mass()

    def scores(self) -> Tensor:
        return self._call.own_slots(self._sparse.scores())

    def support(self) -> Tensor:
        return self._call.own_slots(self._sparse.support())

    def entropy(self) -> Tensor:
        return self._call.own_slots(self._sparse.entropy())

    def _own_candidates(self) -> SparsePlan:
        """The plan for results of this rank's candidates alone.

        The tournament takes the sum or the mean over ranks of the gradients of the weights. No other rank computes the
        gradients of these results, so they are always a sum: the factor of the mean is canceled here.
        """
        factor = 1.0 / self._call.gradient_factor
        if factor == 1.0:
            return self._sparse
        return replace(self._sparse, weight=_ScaleGradient.apply(self._sparse.weight, factor))  # type: ignore[no-untyped-call]


class DistributedSelection(Selection):
    """What ``knockout.distributed.select`` returns. All ranks must apply it, to the same number of payloads."""

    def __init__(
        self, plan: SparsePlan, leader: Tensor, dtype: torch.dtype, call: Call, layout: DTensorLayout | None
    ) -> None:
        leader = call.own_slots(leader)
        super().__init__(LocalPlan(plan, call), leader, leader >= 0, dtype)
        self._call, self._layout = call, layout

    @torch.compiler.disable
    def apply(self, values: Tensor | RowSource, progress: Progress = None) -> Tensor:
        def prepare() -> Tensor:
            own = local_part(values, "values", self._layout, 2) if isinstance(values, Tensor) else values
            return super(DistributedSelection, self).apply(own, progress)

        part, number = self._agree("apply", prepare, "values")
        add = _SumOwnSlots if self._call.sharded else _Sum
        total: Tensor = add.apply(part.to(computing_dtype(part.dtype)), self._call, number)  # type: ignore[no-untyped-call]
        return self.wrap(total.to(part.dtype), values.shape[:-2] if isinstance(values, Tensor) else ())

    @torch.compiler.disable
    def spread(self, y: Tensor) -> Tensor:
        """The rows of this rank's candidates, from y (..., k, d): the same on all ranks, or this rank's slots."""

        def prepare() -> Tensor:
            own = local_part(y, "y", self._layout, 2, sharded=self._call.sharded)
            check_slot_values(own, self.indices.shape[:-1], self.k, self.indices.device)
            return own

        own, number = self._agree("spread", prepare, "y")
        if self._call.sharded:
            own = _GatherSlots.apply(own, self._call, number)  # type: ignore[no-untyped-call]
        elif self._call.settings.reduction == "mean" or isinstance(y, DTensor):
            own = _CollectGradient.apply(own, self._call, number)  # type: ignore[no-untyped-call]
        result = self._checked_plan().spread(own)
        return result if self._layout is None else self._layout.wrap(result, y.shape[:-2], self._layout.shape[-1])

    def _agree(self, call: str, prepare: Callable[[], Tensor], name: str) -> tuple[Tensor, int]:
        """What ``prepare`` returns on this rank, from the argument with this name, and the number of the call."""

        def must_match(part: Tensor) -> dict[str, Any]:
            dtype, (*batch, _, d) = str(part.dtype).removeprefix("torch."), part.shape
            return {
                "d": d,
                f"the dtype of {name}": dtype,
                f"the batch dimensions of {name}": batch,
                "whether gradients are enabled": torch.is_grad_enabled(),
            }

        part, needs_grad, number = agree(self._call.ranks, call, prepare, must_match, lambda part: part.requires_grad)
        if any(needs_grad) and not part.requires_grad:
            # This rank, too, needs a backward pass: the other ranks wait for its messages.
            part = part.detach().requires_grad_()
        return part, number

    def _changed(self, *_: Any) -> NoReturn:
        raise TypeError(
            "a selection of knockout.distributed is a part of one, bound to its process group: it cannot be moved, "
            "detached, indexed, copied or saved. Do so with what its apply returns"
        )

    def wrap(self, result: Tensor, batch: Any = ()) -> Tensor:
        """A result (*batch, k, ...) as a DTensor, if the scores were one."""
        if self._layout is None:
            return result
        return self._layout.wrap(result, batch, self._call.quota.k if self._call.sharded else None)


class _ScaleGradient(Function):
    """x, with its gradient multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * grad, None


class _Sum(Function):
    """The sum of the parts of all ranks, on all ranks; its gradient is collected from all ranks."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, call: Call, number: int) -> Tensor:
        ctx.call, ctx.number = call, number
        return call.ranks.all_sum(part, "values")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ranks = ctx.call.ranks
        ranks.check_same_call(ctx.number, "backward")
        return ranks.all_sum(grad * ctx.call.gradient_factor, "gradients of values"), None, None


class _SumOwnSlots(Function):
    """This rank's slots of the sum (*batch, k, d) of the parts of all ranks."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, call: Call, number: int) -> Tensor:
        slots, ranks = part.movedim(-2, 0), call.ranks
        ctx.ranks, ctx.sizes, ctx.number = ranks, ranks.chunk_sizes(len(slots)), number
        return ranks.sum_own_part(slots, ctx.sizes, "values").movedim(0, -2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.ranks.check_same_call(ctx.number, "backward")
        slots = ctx.ranks.concatenate(grad.movedim(-2, 0), ctx.sizes, "gradients of values")
        return slots.movedim(0, -2), None, None


class _CollectGradient(Function):
    """y, which is the same on all ranks; its gradient is the sum of the parts of all ranks, on all ranks."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, call: Call, number: int) -> Tensor:
        ctx.ranks, ctx.number = call.ranks, number
        return y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.ranks.check_same_call(ctx.number, "backward")
        total = ctx.ranks.all_sum(grad.to(computing_dtype(grad.dtype)), "gradients of y")
        return total.to(grad.dtype), None, None


class _GatherSlots(Function):
    """All slots (*batch, k, d) from those of each rank: the transpose of ``_SumOwnSlots``."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, call: Call, number: int) -> Tensor:
        ctx.ranks, ctx.sizes, ctx.number = call.ranks, call.ranks.chunk_sizes(call.quota.k), number
        return call.ranks.concatenate(own.movedim(-2, 0), ctx.sizes, "y").movedim(0, -2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.ranks.check_same_call(ctx.number, "backward")
        slots = grad.to(computing_dtype(grad.dtype)).movedim(-2, 0)
        own = ctx.ranks.sum_own_part(slots, ctx.sizes, "gradients of y")
        return own.movedim(0, -2).to(grad.dtype), None, None
