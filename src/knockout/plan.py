"""Plans: which candidates go to which slot, with which weight. Scores make a plan; a plan takes any values along.

``SparsePlan``: every candidate ends in at most one slot (the tournament, hard selection): n weights in all.
``DensePlan``: every slot weighs all candidates (relaxations with one softmax a slot). Computed in chunks of slots,
never held whole.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import starmap
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import embedding
from torch.utils.checkpoint import checkpoint

from knockout.dtypes import computing_dtype, full_precision
from knockout.ops.autograd.gather import blend, spread
from knockout.ops.reference.exact import exact_sum
from knockout.rows.gather import Progress, blend_rows
from knockout.rows.sources import RowSource
from knockout.torch_private import is_transforming
from knockout.tracing import is_exporting


@dataclass(eq=False)
class Plan(ABC):
    """What a Selection needs of a plan, all in the computing dtype of the scores."""

    n: int
    valid: Tensor  # (*batch, 1) bool: False for an invalid row, with a NaN or +inf score: all its results are NaN

    def check(self, device: torch.device) -> None:
        """Raise if the plan has dtypes that cannot be used, or is not on this device."""
        _check_part(self.valid, "valid", device, torch.bool)

    @abstractmethod
    def apply(self, values: Tensor) -> Tensor:
        """Blended values (*batch, k, d) of values (..., n, d), in the dtype of the values."""

    @abstractmethod
    def spread(self, y: Tensor) -> Tensor:
        """The way back: (*batch, n, d) from what the slots hold, y (..., k, d), in the dtype of y."""

    @abstractmethod
    def read(self, source: RowSource, progress: Progress = None) -> Tensor:
        """Blended values (*batch, k, d) of a source of value rows (n, d), in the dtype of these."""

    @abstractmethod
    def scores(self) -> Tensor:
        """Blended scores (*batch, k)."""

    @abstractmethod
    def weights(self) -> Tensor:
        """Dense weights (*batch, k, n)."""

    @abstractmethod
    def mass(self) -> Tensor:
        """Total weight of every candidate (*batch, n)."""

    @abstractmethod
    def support(self) -> Tensor:
        """How many candidates carry weight in each slot (*batch, k)."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """The entropy of the weights of each slot (*batch, k), as shares of their sum; 0 in an empty slot."""


@dataclass(eq=False)
class SparsePlan(Plan):
    """Members of every slot, the leader first, and their weights; no candidate is in two slots."""

    member: Tensor  # (*batch, k, m) int64 or int32; n is padding, and so is every member without weight
    weight: Tensor  # (*batch, k, m); exactly 0 for padding, but NaN throughout an invalid row
    score: Tensor  # (*batch, k): blended; 0 in an empty slot; NaN throughout an invalid row
    hard: bool = False  # forward as if each leader had all the weight, backward as it is
    backend: str = "reference"  # that blends, and computes the gradients

    def check(self, device: torch.device) -> None:
        _check_part(self.member, "member", device, torch.int32, torch.int64)
        _check_part(self.weight, "weight", device, torch.float32, torch.float64)
        _check_part(self.score, "score", device, torch.float32, torch.float64)
        super().check(device)
        *batch, k, _ = shape = self.member.shape
        if (self.weight.shape, self.score.shape, self.valid.shape) != (shape, (*batch, k), (*batch, 1)):
            raise ValueError(
                f"the tensors of a selection must have shapes that belong together; got member {tuple(shape)}, weight "
                f"{tuple(self.weight.shape)}, score {tuple(self.score.shape)} and valid {tuple(self.valid.shape)}"
            )

    def apply(self, values: Tensor) -> Tensor:
        weight, member, valid = self._expanded(values.shape[:-2])
        values = values[(None,) * (member.dim() - values.dim())]
        return blend(values, weight, member, valid, self.hard, backend=self.backend)

    def spread(self, y: Tensor) -> Tensor:
        weight, member, valid = self._expanded(y.shape[:-2])
        batch, d = member.shape[:-2], y.shape[-1]
        y = y.expand(*batch, *y.shape[-2:])
        return spread(y, weight, member, (*batch, self.n, d), valid, self.hard, backend=self.backend)

    def read(self, source: RowSource, progress: Progress = None) -> Tensor:
        return blend_rows(source, self.weight, self.member, self.valid, self.hard, progress)

    def hardened(self, leader_score: Tensor) -> SparsePlan:
        """The same plan, straight-through, with the leaders' own scores (*batch, k)."""
        return replace(self, hard=True, score=straight_through(leader_score, self.score))

    def scores(self) -> Tensor:
        return self.score

    def weights(self) -> Tensor:
        blank = self.weight.new_zeros(*self.weight.shape[:-1], self.n + 1)
        weights = blank.scatter(-1, self.member.long(), self._acting_weight())[..., :-1]
        return torch.where(self.valid.unsqueeze(-1), weights, torch.nan)

    def mass(self) -> Tensor:
        blank = self.weight.new_zeros(*self.weight.shape[:-2], self.n + 1)
        mass = blank.scatter(-1, self.member.long().flatten(-2), self._acting_weight().flatten(-2))[..., :-1]
        return torch.where(self.valid, mass, torch.nan)

    def support(self) -> Tensor:
        # An invalid row's weights are NaN also in its padding, which is as long as the longest slot of the batch.
        return torch.where(self.valid, (self.weight != 0).sum(dim=-1), 0)

    def entropy(self) -> Tensor:
        carried = self.support().unsqueeze(-1)
        return exact_sum(_entropy(self.weight), carried).squeeze(-1).to(self.weight.dtype)

    def _expanded(self, batch: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, members and which rows are valid, for values with these batch dimensions."""
        weight, member, valid = self.weight, self.member, self.valid
        if batch != member.shape[:-2]:
            # None are common, and to broadcast shapes is slow.
            batch = torch.broadcast_shapes(batch, member.shape[:-2]) if batch else member.shape[:-2]
            weight, member = (x.expand(*batch, *x.shape[-2:]) for x in (weight, member))
            valid = valid.expand(*batch, 1)
        return weight, member, valid

    def _acting_weight(self) -> Tensor:
        """The weights as they act: all on the leader for a hard selection, with the gradient of the soft ones."""
        if not self.hard:
            return self.weight
        leads = torch.zeros_like(self.weight)
        leads[..., 0] = (self.member[..., 0] < self.n).to(leads.dtype)
        return straight_through(leads, self.weight)


@dataclass(eq=False)
class HardPlan(SparsePlan):
    """One candidate per slot, with all the weight: the true top k."""

    def apply(self, values: Tensor) -> Tensor:
        if not is_exporting():
            return super().apply(values)
        # Of operators that every runtime has, and that need no gradient.
        place, n, d = self.member.squeeze(-1), values.shape[-2], values.shape[-1]
        row = place.clamp(max=n - 1)
        if values.dim() > 2:
            batch = torch.broadcast_shapes(values.shape[:-2], row.shape[:-1])
            values = values.expand(*batch, n, d).reshape(-1, d)
            row = row + n * torch.arange(math.prod(batch), device=row.device).view(*batch, 1)
        chosen = torch.where((place < n).unsqueeze(-1), embedding(row, values), 0.0)
        return torch.where(self.valid.unsqueeze(-1), chosen, torch.nan)

    def spread(self, y: Tensor) -> Tensor:
        if not is_exporting():
            return super().spread(y)
        place, (k, d) = self.member.squeeze(-1), y.shape[-2:]
        batch = torch.broadcast_shapes(y.shape[:-2], place.shape[:-1])
        slots = torch.arange(k, device=place.device).expand(*batch, k)
        slot = slots.new_full((*batch, self.n + 1), k).scatter(-1, place.expand(*batch, k), slots)[..., :-1]
        back = y.expand(*batch, k, d).gather(-2, slot.clamp(max=k - 1).unsqueeze(-1).expand(*batch, self.n, d))
        back = torch.where((slot < k).unsqueeze(-1), back, 0.0)
        return torch.where(self.valid.unsqueeze(-1), back, torch.nan)


@dataclass(eq=False)
class DensePlan(Plan):
    """A plan that can compute the weights of some slots at a time: ``CHUNK`` weights, or one slot of the whole batch.

    With gradients, the chunks are computed again in the backward pass instead of being kept.
    """

    CHUNK: ClassVar[int] = 2**22

    k: int

    @abstractmethod
    def slot_weights(self, start: int, stop: int) -> Tensor:
        """Weights (*batch, stop - start, n) of the slots from start to stop."""

    def apply(self, values: Tensor) -> Tensor:
        wide = values.to(computing_dtype(values.dtype))
        with full_precision(values.device):
            return self._all(lambda weight: weight.to(wide.dtype) @ wide, dim=-2, factor=wide).to(values.dtype)

    def spread(self, y: Tensor) -> Tensor:
        wide = y.to(computing_dtype(y.dtype))
        with full_precision(y.device):
            return self._sum(lambda weight, slots: weight.mT.to(wide.dtype) @ wide[..., slots, :], wide).to(y.dtype)

    def read(self, source: RowSource, progress: Progress = None) -> Tensor:
        # Once for every chunk of slots: all weights at a time would be k times as many as there are candidates.
        def each(weight: Tensor) -> Tensor:
            return blend_rows(source, weight, self._members(weight).expand(weight.shape), self.valid, progress=progress)

        return self._all(each, dim=-2)

    def weights(self) -> Tensor:
        return torch.cat([self.slot_weights(*chunk) for chunk in self._chunks()], dim=-2)

    def mass(self) -> Tensor:
        return self._sum(lambda weight, _: weight.sum(dim=-2))

    def support(self) -> Tensor:
        return torch.where(self.valid, self._all(lambda weight: (weight != 0).sum(dim=-1), dim=-1), 0)

    def entropy(self) -> Tensor:
        def each(weight: Tensor) -> Tensor:
            total = weight.sum(dim=-1, keepdim=True)
            return _entropy(weight / torch.where(total == 0, 1.0, total)).sum(dim=-1)

        return self._all(each, dim=-1)

    def _members(self, weight: Tensor) -> Tensor:
        """The candidate of each weight, to be broadcast with them; n for padding, which is not to be read."""
        return torch.arange(self.n, device=weight.device)

    @abstractmethod
    def _batch_size(self) -> int:
        """The number of rows of scores."""

    def _chunks(self) -> Iterator[tuple[int, int]]:
        step = max(1, self.CHUNK // max(1, self._batch_size() * self.n))
        return ((start, min(start + step, self.k)) for start in range(0, self.k, step))

    def _all(self, use: Callable[[Tensor], Tensor], dim: int, factor: Tensor | None = None) -> Tensor:
        return torch.cat([self._each(use, *chunk, factor) for chunk in self._chunks()], dim=dim)

    def _sum(self, use: Callable[[Tensor, slice], Tensor], factor: Tensor | None = None) -> Tensor:
        def each(start: int, stop: int) -> Tensor:
            return self._each(lambda weight: use(weight, slice(start, stop)), start, stop, factor)

        return reduce(torch.add, starmap(each, self._chunks()))

    def _each(self, use: Callable[[Tensor], Tensor], start: int, stop: int, factor: Tensor | None = None) -> Tensor:
        def run() -> Tensor:
            return use(self.slot_weights(start, stop))

        # torch.func cannot see through a checkpoint: there the chunks are kept.
        if not torch.is_grad_enabled() or stop - start == self.k or is_transforming():
            return run()
        out: Tensor = checkpoint(run, use_reentrant=False, preserve_rng_state=False)
        if factor is not None and any(isinstance(x, Tensor) and x.requires_grad for x in vars(self).values()):
            out = _Unchanged.apply(out, factor)  # type: ignore[no-untyped-call]
        return out


def _check_part(tensor: Tensor, name: str, device: torch.device, *dtypes: torch.dtype) -> None:
    if tensor.dtype not in dtypes:
        raise TypeError(
            f"the tensor `{name}` of a selection must be {' or '.join(map(str, dtypes))}; got {tensor.dtype}. Convert "
            f"only the floating-point tensors of a selection, and only to floating-point dtypes"
        )
    if tensor.device != device:
        raise ValueError(
            f"the tensors of a selection must be on one device; got `{name}` on {tensor.device} and `indices` on "
            f"{device}. Move all of them"
        )


def _entropy(weight: Tensor) -> Tensor:
    # -w log w, with derivative 0 at w = 0 instead of infinity: a candidate without weight stays without.
    carried = torch.where(weight != 0, weight, 1.0)
    return -carried * torch.log(carried)


class _Unchanged(Function):
    """``out``; its backward pass raises if ``factor`` was changed in place, which a checkpoint would not notice."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        _ = ctx.saved_tensors  # autograd compares the version of what it saved
        return grad, None


def straight_through(shown: Tensor, true: Tensor) -> Tensor:
    """``shown`` to the last bit in the forward pass, the gradient of ``true`` in the backward pass."""
    return _StraightThrough.apply(shown, true)  # type: ignore[no-any-return, no-untyped-call]


class _StraightThrough(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(shown: Tensor, true: Tensor) -> Tensor:
        return shown.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad
