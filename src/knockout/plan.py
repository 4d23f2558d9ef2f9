"""Plans: who goes to which slot, with which weight. Scores make a plan; a plan takes any values along.

``Bracket``: every candidate ends in at most one slot (the tournament, hard selection). Sparse: n weights in all.
``Rows``: every slot weighs all candidates (relaxations with one softmax a slot). Computed in chunks, never held whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from knockout.checks import computing_dtype, full_precision
from knockout.exact import exact_sum
from knockout.gather import blend
from knockout.rows import Progress, RowSource, blend_rows


@dataclass(eq=False)
class Plan(ABC):
    """What a Selection needs of a plan, all in the computing dtype of the scores."""

    n: int

    @abstractmethod
    def apply(self, values: Tensor) -> Tensor:
        """Blended values (*batch, k, d) of values (..., n, d), in the dtype of the values."""

    @abstractmethod
    def read(self, source: RowSource, progress: Progress = None) -> Tensor:
        """Blended values (*batch, k, d) of a source of rows (n, d), in the dtype of its rows."""

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
class Bracket(Plan):
    """Members of every slot, the leader first, and their weights; no candidate is in two slots."""

    member: Tensor  # (*batch, k, m) int64 or int32; n stands for nobody, and who has no weight is nobody
    weight: Tensor  # (*batch, k, m); exactly 0 for nobody, but NaN throughout a spoiled row: see Candidates
    score: Tensor  # (*batch, k): blended; 0 in an empty slot; NaN throughout a spoiled row
    hard: bool = False  # forward as if each leader had all the weight, backward as it is

    def apply(self, values: Tensor) -> Tensor:
        member, weight = self.member, self.weight
        if values.shape[:-2] != member.shape[:-2]:
            batch = torch.broadcast_shapes(values.shape[:-2], member.shape[:-2])
            member, weight = (x.expand(*batch, *x.shape[-2:]) for x in (member, weight))
            values = values[(None,) * (len(batch) + 2 - values.dim())]
        return blend(values, weight, member, self.hard)

    def read(self, source: RowSource, progress: Progress = None) -> Tensor:
        return blend_rows(source, self.weight, self.member, self.hard, progress)

    def hardened(self, own: Tensor) -> Bracket:
        """The same plan, straight-through, with the leaders' own scores (*batch, k)."""
        return replace(self, hard=True, score=straight_through(own, self.score))

    def scores(self) -> Tensor:
        return self.score

    def weights(self) -> Tensor:
        blank = self.weight.new_zeros(*self.weight.shape[:-1], self.n + 1)
        return self._spoiled(blank.scatter(-1, self.member.long(), self._shown())[..., :-1])

    def mass(self) -> Tensor:
        blank = self.weight.new_zeros(*self.weight.shape[:-2], self.n + 1)
        mass = blank.scatter(-1, self.member.long().flatten(-2), self._shown().flatten(-2))[..., :-1]
        return self._spoiled(mass.unsqueeze(-2)).squeeze(-2)

    def support(self) -> Tensor:
        return (self.weight != 0).sum(dim=-1)

    def entropy(self) -> Tensor:
        carried = self.support().unsqueeze(-1)
        return exact_sum(_entropy(self.weight), carried).squeeze(-1).to(self.weight.dtype)

    def _spoiled(self, weights: Tensor) -> Tensor:
        """Weights (*batch, slots, n), NaN throughout the rows that are spoiled."""
        return torch.where(self.score[..., :1, None].isnan(), torch.nan, weights)

    def _shown(self) -> Tensor:
        """The weights as they act: all on the leader for a hard selection, with the soft gradient."""
        if not self.hard:
            return self.weight
        leads = torch.zeros_like(self.weight)
        leads[..., 0] = (self.member[..., 0] < self.n).to(leads.dtype)
        return straight_through(leads, self.weight)


@dataclass(eq=False)
class Rows(Plan):
    """A plan that can compute the weights of some slots at a time: ``CHUNK`` weights, or one slot of the whole batch.

    With gradients, the chunks are computed again in the backward pass instead of being kept.
    """

    CHUNK: ClassVar[int] = 2**22

    k: int

    @abstractmethod
    def rows(self, start: int, stop: int) -> Tensor:
        """Weights (*batch, stop - start, n) of the slots from start to stop."""

    def apply(self, values: Tensor) -> Tensor:
        wide = values.to(computing_dtype(values.dtype))
        with full_precision(values.device):
            return self._all(lambda rows: rows.to(wide.dtype) @ wide, dim=-2).to(values.dtype)

    def read(self, source: RowSource, progress: Progress = None) -> Tensor:
        # Once for every chunk of slots: all weights at a time would be k times as many as there are candidates.
        def each(rows: Tensor) -> Tensor:
            return blend_rows(source, rows, self._members(rows).expand(rows.shape), progress=progress)

        return self._all(each, dim=-2)

    def weights(self) -> Tensor:
        return torch.cat([self.rows(*chunk) for chunk in self._chunks()], dim=-2)

    def mass(self) -> Tensor:
        chunks = self._chunks()
        mass = self._each(lambda rows: rows.sum(dim=-2), *next(chunks))
        for chunk in chunks:
            mass = mass + self._each(lambda rows: rows.sum(dim=-2), *chunk)
        return mass

    def support(self) -> Tensor:
        return self._all(lambda rows: (rows != 0).sum(dim=-1), dim=-1)

    def entropy(self) -> Tensor:
        def each(rows: Tensor) -> Tensor:
            total = rows.sum(dim=-1, keepdim=True)
            return _entropy(rows / torch.where(total == 0, 1.0, total)).sum(dim=-1)

        return self._all(each, dim=-1)

    def _members(self, rows: Tensor) -> Tensor:
        """Who is at each place of some rows, to be broadcast: n for who takes no part, and is not to be read."""
        return torch.arange(self.n, device=rows.device)

    @abstractmethod
    def _batch_size(self) -> int:
        """The number of rows of scores."""

    def _chunks(self) -> Iterator[tuple[int, int]]:
        step = max(1, self.CHUNK // max(1, self._batch_size() * self.n))
        return ((start, min(start + step, self.k)) for start in range(0, self.k, step))

    def _all(self, use: Callable[[Tensor], Tensor], dim: int) -> Tensor:
        return torch.cat([self._each(use, *chunk) for chunk in self._chunks()], dim=dim)

    def _each(self, use: Callable[[Tensor], Tensor], start: int, stop: int) -> Tensor:
        def run() -> Tensor:
            return use(self.rows(start, stop))

        # torch.func cannot look into a checkpoint: there the chunks are kept.
        if not torch.is_grad_enabled() or stop - start == self.k or torch._C._are_functorch_transforms_active():
            return run()
        out: Tensor = checkpoint(run, use_reentrant=False, preserve_rng_state=False)
        return out


def _entropy(weight: Tensor) -> Tensor:
    # -w log w, with derivative 0 at w = 0 instead of infinity: a candidate without weight stays without.
    carried = torch.where(weight != 0, weight, 1.0)
    return -carried * torch.log(carried)


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
