"""The result of ``knockout.distributed.select``: a selection of candidates that are distributed over ranks.

To apply it, each rank blends the values of its own candidates that carry weight, and the blends of all ranks are added:
k * d numbers are sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

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

        def must_match(part: Tensor) -> dict[str, Any]:
            dtype, (*batch, _, d) = str(part.dtype).removeprefix("torch."), part.shape
            return {
                "d": d,
                "the dtype of values": dtype,
                "the batch dimensions of values": batch,
                "whether gradients are enabled": torch.is_grad_enabled(),
            }

        part, needs_grad, number = agree(
            self._call.ranks, "apply", prepare, must_match, lambda part: part.requires_grad
        )
        if any(needs_grad) and not part.requires_grad:
            # This rank, too, needs a backward pass: the other ranks wait for its messages.
            part = part.detach().requires_grad_()
        add = _SumOwnSlots if self._call.sharded else _Sum
        total: Tensor = add.apply(part.to(computing_dtype(part.dtype)), self._call, number)  # type: ignore[no-untyped-call]
        return self.wrap(total.to(part.dtype), values.shape[:-2] if isinstance(values, Tensor) else ())

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
