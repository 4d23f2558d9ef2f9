"""Selection: what was selected, ready to be applied to any number of payloads."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from knockout.candidates import candidates, invalidate
from knockout.checks import check_sharpness, check_slot_values, check_values
from knockout.dtypes import computing_dtype
from knockout.ops.reference.exact import exact_sum
from knockout.plan import Plan
from knockout.rows.gather import Progress
from knockout.rows.sources import RowSource, check_source
from knockout.selection_tensors import Origin, SelectionTensors, tensor_names
from knockout.torch_private import register_pytree_node

__all__ = ["Selection"]


class Selection(SelectionTensors):
    """k slots, each a weighted blend of the n candidates. Made by ``knockout.select`` and ``knockout.methods``.

    - ``scores`` (..., k): the blended score of each slot, differentiable; 0 in an empty slot
    - ``indices`` (..., k): int64, the slot's leader: the candidate that won all its pairs; -1 if empty
    - ``mask`` (..., k): bool, False for an empty slot (fewer than k candidates were active)

    >>> import torch, knockout
    >>> picked = knockout.select(torch.tensor([0.1, 2.0, 0.3, 1.5]), k=2, boost=4.0)
    >>> picked
    Selection(k=2, n=4, batch=(), dtype=torch.float32)
    >>> picked.indices
    tensor([1, 3])
    >>> keys, positions = torch.randn(4, 8), torch.arange(4.0).unsqueeze(-1)
    >>> picked.apply(keys).shape, (picked @ positions).flatten()
    (torch.Size([2, 8]), tensor([1., 3.]))

    It moves and saves as a tensor does: ``to``, ``detach``, ``torch.save``; and ``picked[0]`` is a row of the batch.
    """

    def __init__(
        self, plan: Plan, indices: Tensor, mask: Tensor, dtype: torch.dtype, origin: Origin | None = None
    ) -> None:
        self._plan = plan
        self.indices = indices
        self.mask = mask
        self.dtype = dtype  # that of the scores, and of the weights
        self._origin = origin  # None if it was not a tournament, or came out of a transform

    @property
    def k(self) -> int:
        """The number of slots."""
        return self.indices.shape[-1]

    @property
    def n(self) -> int:
        """The number of candidates."""
        return self._plan.n

    @property
    def scores(self) -> Tensor:
        """Blended scores (..., k), differentiable."""
        scores = self._checked_plan().scores()
        return scores if scores.dtype == self.dtype else scores.to(self.dtype)  # to() is slow even if nothing changes

    def apply(self, values: Tensor | RowSource, progress: Progress = None) -> Tensor:
        """Blend values (..., n, d) into (..., k, d), in their own dtype; batch dimensions broadcast.

        The hard twin is ``values.gather(-2, indices)``. Values may have batch dimensions that the scores have not; only
        the result gets them. Values without weight are not read: NaN in padding does no harm. (A method that weighs
        every candidate in every slot, such as ``methods.iterative``, reads the values of all active candidates.)

        Values that do not fit in memory: instead of a tensor pass a source of rows (n, d), one for the whole batch.
        That is a NumPy array or memmap, ``get_slice(name)`` of a safetensors file, Arrow data, a
        ``pyarrow.parquet.ParquetFile``, or anything with ``shape`` and ``take(rows)``: ``knockout.rows.RowSource``.
        The rows that carry weight are read in ascending order, each once, in blocks of 64 MiB at most; and again in the
        backward pass, if they were more than one block. The result is on the device of the selection. Gradients reach
        the scores, not the source.

        >>> import numpy as np, torch, knockout
        >>> scores = torch.tensor([0.1, 2.0, 0.3, 1.5], requires_grad=True)
        >>> knockout.select(scores, k=2, boost=1.0).apply(np.eye(4, dtype=np.float32)).detach()
        tensor([[0.1094, 0.8906, 0.0000, 0.0000],
                [0.0000, 0.0000, 0.2367, 0.7633]])

        Args:
            values: (..., n, d), or a source of rows (n, d).
            progress: of reading from a source: a function that is called as progress(done, total), in rows, after each
                block; None for a line on a terminal once it takes longer than two seconds; False for silence.
        """
        if isinstance(values, Tensor):
            check_values(values, self.indices.shape[:-1], self.n, self.indices.device)
            return self._checked_plan().apply(values)
        check_source(values, self.n)
        return self._checked_plan().read(values, progress)

    def __matmul__(self, values: Tensor | RowSource) -> Tensor:
        return self.apply(values)

    def spread(self, y: Tensor) -> Tensor:
        """The way back from slots to candidates: y (..., k, d) into (..., n, d), in its own dtype.

        Each candidate gets what its slot holds, times its weight there: ``weights().mT @ y``, the transpose of
        ``apply``, without the dense matrix. A candidate without weight gets 0, and an empty slot is not read: it may
        hold NaN. Batch dimensions broadcast as those of ``apply``. Differentiable in y and in the scores.

        The hard twin is ``torch.zeros(..., n, d).index_add(-2, indices, y)``.

        >>> import torch, knockout
        >>> picked = knockout.select(torch.tensor([0.1, 2.0, 0.3, 1.5]), k=2, boost=1.0)
        >>> picked.spread(torch.tensor([[10.0], [20.0]])).flatten()
        tensor([ 1.0943,  8.9057,  4.7347, 15.2653])

        For outputs of layers for every token, after some were pooled, see ``knockout.nn.Pooled.unpool``.
        """
        check_slot_values(y, self.indices.shape[:-1], self.k, self.indices.device)
        return self._checked_plan().spread(y)

    def gates(self, unit: float | Tensor | None = None) -> Tensor:
        """A factor from 0 to 2 for each slot (..., k): how far its score is above the mean of its row, as 2 sigmoid.

        Multiply the values by them, and the next layer sees how sure the choice was; a slot that it does not want can
        be turned down. Scores count in units, by default those of the boost, so that gates mean the same at every
        scale. If all scores are equal they are 1, and in an empty slot too.

        >>> import torch, knockout
        >>> picked = knockout.select(torch.tensor([0.1, 2.0, 0.3, 1.5]), k=2, boost=4.0)
        >>> gated = picked.apply(torch.randn(4, 8)) * picked.gates().unsqueeze(-1)
        >>> picked.gates()
        tensor([1.4719, 1.2566])
        """
        if self._origin is None:
            raise ValueError(
                "gates need the scores that were selected from, which only a Selection of knockout.select has: not one "
                "of knockout.methods, of knockout.distributed, or one that was returned from a transform"
            )
        scores, mask, boost = self._origin
        if unit is not None:
            check_sharpness(unit, "unit")
        unit = getattr(boost, "unit", 1.0) if unit is None else unit
        score, active, valid = candidates(scores, mask)
        # The mean as a distance from the best score: exact if all are equal, and the same in any order.
        count = active.sum(dim=-1, keepdim=True)
        best = torch.where(active, score, -torch.inf).amax(dim=-1, keepdim=True).detach()
        wide = score if score.device.type == "mps" else score.double()
        below = exact_sum(torch.where(active, best - wide, 0.0), count) / count.clamp(min=1)
        unit = unit.detach().to(below) if isinstance(unit, Tensor) else unit
        gates = 2.0 * torch.sigmoid((self._checked_plan().scores().to(below) - best + below) / unit)
        return invalidate(torch.where(self.mask, gates, 1.0), valid).to(self.dtype)

    def weights(self) -> Tensor:
        """Dense weights (..., k, n): ``weights() @ values`` is ``apply(values)``. Rows sum to 1, of empty slots to 0.

        (With ``methods`` that scale values, by a soft mask or by gates, they sum to that scale.)

        For inspecting a selection; ``apply`` needs far less memory. The weights of a straight-through selection are
        one-hot, with the gradient of the soft weights.
        """
        return self._checked_plan().weights().to(self.dtype)

    def mass(self) -> Tensor:
        """Soft k-hot mask (..., n): how much of each candidate was passed on; sums to the number of filled slots.

        For ``methods`` that compute a soft mask themselves it is that mask, including candidates not passed on.
        """
        return self._checked_plan().mass().to(self.dtype)

    def support(self) -> Tensor:
        """How many candidates carry weight in each slot (..., k), int64: 1 if it is decided, 0 in invalid rows.

        >>> import torch, knockout
        >>> knockout.select(torch.tensor([5.0, 4.0, 3.9, 0.0]), k=2).support()
        tensor([1, 2])
        """
        return self._checked_plan().support()

    def perplexity(self) -> Tensor:
        """Effective number of candidates in each slot (..., k): exp of the entropy of its weights; 0 in an empty slot.

        Differentiable: a penalty on its logarithm sharpens a selection, a reward softens it. For a straight-through
        selection, support and perplexity are those of the soft selection whose gradients it has.
        """
        entropy = self._checked_plan().entropy()
        return invalidate(torch.where(self.mask, torch.exp(entropy), 0.0), self._plan.valid).to(self.dtype)

    def _checked_plan(self) -> Plan:
        """The plan, checked unless it is as ``select`` made it: pytree functions may change its dtypes and devices."""
        if self._origin is None:
            self._plan.check(self.indices.device)
        return self._plan

    def __repr__(self) -> str:
        return f"Selection(k={self.k}, n={self.n}, batch={tuple(self.indices.shape[:-1])}, dtype={self.dtype})"

    def _repr_html_(self) -> str | None:
        from knockout.notebook import to_html  # not above: it imports this module

        return to_html(self)


def _flatten(selection: Selection) -> tuple[list[Tensor], Any]:
    """The tensors of a selection, and how to put it together again: so that vmap and export can return one."""
    plan = selection._plan
    tensors = tensor_names(plan)
    settings = {field.name: getattr(plan, field.name) for field in fields(plan) if field.name not in tensors}
    leaves = [*(getattr(plan, name) for name in tensors), selection.indices, selection.mask]
    if isinstance(plan.n, torch.SymInt):  # torch.export, for a varying n: it is known when the program runs
        leaves.append(selection.mask.new_empty(0, plan.n))
        settings["n"] = None
    return leaves, (type(plan), tuple(tensors), tuple(settings.items()), selection.dtype)


def _unflatten(leaves: Iterable[Any], context: Any) -> Selection:
    kind, names, settings, dtype = context
    parts = iter(leaves)
    tensors = {name: _in_computing_dtype(next(parts)) for name in names}
    indices, mask, made = next(parts), next(parts), dict(settings)
    if made["n"] is None:
        made["n"] = next(parts).shape[-1]
    return Selection(kind(**tensors, **made), indices, mask, dtype)


def _to_json(context: Any) -> Any:
    """The context of ``_flatten`` for a file of ``torch.export.save``."""
    kind, names, settings, dtype = context
    return [kind.__module__, kind.__name__, names, settings, str(dtype).removeprefix("torch.")]


def _from_json(saved: Any) -> Any:
    module, kind, names, settings, dtype = saved
    if module.split(".")[0] != "knockout":
        raise ValueError(f"the plan of a saved selection must be one of knockout; got {module}.{kind}")
    found = getattr(importlib.import_module(module), kind)
    return found, tuple(names), tuple((name, value) for name, value in settings), getattr(torch, dtype)


def _in_computing_dtype(part: Any) -> Any:
    """A part of a plan, which is computed in float32 or float64: FSDP and others convert the inputs of a module."""
    if isinstance(part, Tensor) and part.is_floating_point():
        return part.to(computing_dtype(part.dtype))
    return part


register_pytree_node(
    Selection,
    _flatten,
    _unflatten,
    serialized_type_name="knockout.Selection",
    to_dumpable_context=_to_json,
    from_dumpable_context=_from_json,
)
