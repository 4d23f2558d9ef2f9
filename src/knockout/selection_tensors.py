"""A Selection as a collection of tensors: moved, detached, indexed, copied and saved, all of them at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from knockout.boost import Boost
from knockout.dtypes import DTYPES, computing_dtype
from knockout.ops.choice import BACKENDS, choose
from knockout.plan import Plan, SparsePlan

Change = Callable[[Tensor], Tensor]


class Origin(NamedTuple):
    """The arguments of a tournament, for ``knockout.plot``, which plays it again."""

    scores: Tensor
    mask: Tensor | None
    boost: Boost

    def changed(self, change: Change) -> Origin:
        """With other tensors; the numbers of the boost stay where they are."""
        return Origin(change(self.scores), None if self.mask is None else change(self.mask), self.boost)


def tensor_names(plan: Plan) -> list[str]:
    """The fields of a plan that are tensors."""
    # Told apart by their annotations, not by what they hold: vmap also flattens selections of dimensions.
    return [field.name for field in fields(plan) if field.type == "Tensor"]


class SelectionTensors:
    """The base class of ``Selection``, with what tensors can do, too."""

    indices: Tensor
    mask: Tensor
    dtype: torch.dtype
    _plan: Plan
    _origin: Origin | None

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The selection on another device, or with results of another dtype; the arguments are those of ``Tensor.to``.

        The weights themselves are not rounded: they stay in the float32 or float64 that they were computed in, or
        become float64. Gradients reach the scores that were selected from.

        >>> import torch, knockout
        >>> picked = knockout.select(torch.tensor([0.1, 2.0, 0.3, 1.5]), k=2)
        >>> picked.to("cpu", torch.float64).weights().dtype
        torch.float64
        """
        like = torch.empty(0, dtype=self.dtype, device=self.indices.device).to(*args, **kwargs)
        if like.dtype not in DTYPES:
            raise TypeError(f"dtype must be float16, bfloat16, float32 or float64, as of scores; got {like.dtype}")
        how = {name: kwargs[name] for name in ("copy", "non_blocking") if name in kwargs}
        wide = computing_dtype(like.dtype)

        def move(part: Tensor) -> Tensor:
            return part.to(like.device, **how)

        def convert(part: Tensor) -> Tensor:
            if not part.is_floating_point():
                return move(part)
            only = torch.float32 if like.device.type == "mps" else None  # it has no float64
            return part.to(like.device, only or torch.promote_types(part.dtype, wide), **how)

        made = self._changed(move, convert)
        made.dtype = like.dtype
        return made

    def detach(self) -> Self:
        """The selection without gradients: for logs, and to keep it without the graph behind it.

        >>> import torch, knockout
        >>> picked = knockout.select(torch.randn(10, requires_grad=True), k=2)
        >>> picked.weights().requires_grad, picked.detach().weights().requires_grad
        (True, False)
        """
        return self._changed(Tensor.detach)

    def __getitem__(self, index: Any) -> Self:
        """Some rows of the batch, by any index that a tensor takes; slots and candidates cannot be indexed.

        >>> import torch, knockout
        >>> picked = knockout.select(torch.randn(6, 3, 100), k=8)
        >>> picked[2:4, -1]
        Selection(k=8, n=100, batch=(2,), dtype=torch.float32)
        """
        batch = self.indices.shape[:-1]
        rows = torch.arange(batch.numel(), device=self.indices.device).view(batch)
        try:
            rows = rows[index]
        except IndexError as error:
            raise IndexError(
                f"a selection is indexed by its batch dimensions, which are {tuple(batch)}, and not by slots or "
                f"candidates: {error}"
            ) from None

        def take(part: Tensor) -> Tensor:
            rest = part.shape[len(batch) :]
            return part.reshape(batch.numel(), *rest).index_select(0, rows.flatten()).view(*rows.shape, *rest)

        # The scores and the mask that were selected from may have had fewer batch dimensions.
        return self._changed(lambda part: take(part.expand(*batch, part.shape[-1])), take)

    __iter__ = None  # or Python would try the indices 0, 1, 2, ...

    def __copy__(self) -> Self:
        return self._changed(lambda part: part)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        parts = [getattr(self._plan, name) for name in tensor_names(self._plan)]
        parts += [] if self._origin is None else [self._origin.scores]
        if any(part.requires_grad and not part.is_leaf for part in parts):
            raise RuntimeError(
                "a selection that has a gradient cannot be deep-copied, and nor can such a tensor: its graph would be "
                "lost. Pass copy.deepcopy(selection.detach()); or copy.copy(selection), which keeps it"
            )
        made = self._changed(lambda part: copy.deepcopy(part, memo))
        if made._origin is not None:
            made._origin = made._origin._replace(boost=copy.deepcopy(made._origin.boost, memo))
        return made

    def __getstate__(self) -> dict[str, Any]:
        return vars(self.detach())  # as torch.save saves tensors: their numbers, not the graph

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._plan = _with_backend(self._plan)

    def _changed(self, change: Change, change_plan: Change | None = None) -> Self:
        """The selection with other tensors, those of the plan perhaps by a function of their own."""
        change_plan = change_plan or change
        plan = self._plan
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        parts: dict[str, Any] = {name: change_plan(getattr(plan, name)) for name in tensor_names(plan)}
        made._plan = _with_backend(replace(plan, **parts))
        made.indices, made.mask = change_plan(self.indices), change_plan(self.mask)
        made._origin = None if self._origin is None else self._origin.changed(change)
        return made


def _with_backend(plan: Plan) -> Plan:
    """A plan with its own backend if that can still be used: on this device, and on this machine."""
    if not isinstance(plan, SparsePlan):
        return plan
    backend = BACKENDS.get(plan.backend)
    if backend is not None and not backend.why_not() and not backend.refuses(plan.weight, None):
        return plan
    return replace(plan, backend=choose(plan.weight))
