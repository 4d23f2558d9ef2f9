"""How decisively the better of a pair wins.

A pair's two scores give a logit ``t >= 0``, and ``t`` gives the share of the better one:

    alpha = 1     1 / (1 + exp(-t))                    the paper's softmax; never quite 1
    alpha = 1.5   1/2 + (t/4) sqrt(2 - t^2/4)          exactly 1 from t = 2 on
    alpha = 2     1/2 + t/2                            exactly 1 from t = 1 on

These are two-way alpha-entmax in closed form. The four boosts differ in how they measure ``t``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from knockout.checks import positive_number

__all__ = ["Base", "Boost", "Fixed", "Power", "Relative"]


class Boost(ABC):
    """The common part of the four boosts; ``knockout.select`` takes any of them.

    A boost is a value: immutable, comparable, hashable, printed as it is written.
    """

    alpha: float

    def _check(self, **numbers: float) -> None:
        for name, number in numbers.items():
            positive_number(number, f"{type(self).__name__}: {name}")
        if self.alpha not in (1.0, 1.5, 2.0):
            raise ValueError(
                f"{type(self).__name__}: alpha must be 1, 1.5 or 2, the pair weights with a closed form; "
                f"got {self.alpha!r}"
            )

    def _check_base(self, b: float) -> None:
        self._check(b=b)
        if b <= 1:
            raise ValueError(f"{type(self).__name__}: b must be above 1, so that higher scores win; got {b!r}")

    def start(self, scores: Tensor) -> Tensor:
        """The scale of the scores before the first round, shape (..., 1)."""
        return scores.new_ones(()).expand(*scores.shape[:-1], 1)

    @abstractmethod
    def logit(self, better: Tensor, worse: Tensor, paired: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (..., pairs) of one round, and the scale (..., 1) that the next round starts from.

        ``paired`` marks the pairs of two real candidates; the others' logits are never looked at, but must be finite.
        """

    def share(self, better: Tensor, worse: Tensor, paired: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """The share of the better candidate of every pair, 1 where it has no opponent, and the next scale."""
        logit, scale = self.logit(better, worse, paired, scale)
        return torch.where(paired, _entmax_of_two(logit, self.alpha), 1.0), scale


@dataclass(frozen=True)
class Relative(Boost):
    """``t = c * (a - b) / s``: gaps in units of the round's own mean gap ``s``, so c means the same at every scale.

    The scale at most halves from round to round, starting from ``unit``, the difference in scores that counts as one:
    scores that hardly differ stay soft instead of having their noise blown up.

    >>> import knockout
    >>> knockout.boost.Relative(4)
    Relative(c=4, unit=1.0, alpha=1.5)
    """

    c: float
    unit: float = 1.0
    alpha: float = 1.5

    def __post_init__(self) -> None:
        self._check(c=self.c, unit=self.unit)

    def start(self, scores: Tensor) -> Tensor:
        return super().start(scores) * (2.0 * self.unit)

    def logit(self, better: Tensor, worse: Tensor, paired: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        gap = _gap(better, worse, paired)
        pairs = paired.sum(dim=-1, keepdim=True)
        narrowed = torch.maximum(_mean(gap, pairs), scale / 2)
        scale = torch.where(pairs > 0, narrowed, scale)
        return self.c * _measure(gap, scale), scale


@dataclass(frozen=True)
class Fixed(Boost):
    """``t = c * (a - b)``: one sharpness for all rounds; the right c depends on the scale of the scores.

    >>> import knockout
    >>> knockout.boost.Fixed(100)
    Fixed(c=100, alpha=1.0)
    """

    c: float
    alpha: float = 1.0

    def __post_init__(self) -> None:
        self._check(c=self.c)

    def logit(self, better: Tensor, worse: Tensor, paired: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        return self.c * _gap(better, worse, paired), scale


@dataclass(frozen=True)
class Base(Boost):
    """``t = ln(b) * (a - b)``: the paper's boosted softmax as printed, with base b; the same as ``Fixed(ln b)``.

    >>> import knockout
    >>> knockout.boost.Base(20)
    Base(b=20, alpha=1.0)
    """

    b: float
    alpha: float = 1.0

    def __post_init__(self) -> None:
        self._check_base(self.b)

    def logit(self, better: Tensor, worse: Tensor, paired: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        return math.log(self.b) * _gap(better, worse, paired), scale


@dataclass(frozen=True)
class Power(Boost):
    """``t = b**x - b**y`` for scores x >= y: what the paper's authors ran for their figures, with b = 20.

    >>> import knockout
    >>> knockout.boost.Power(20)
    Power(b=20, alpha=1.0)
    """

    b: float
    alpha: float = 1.0

    def __post_init__(self) -> None:
        self._check_base(self.b)

    def logit(self, better: Tensor, worse: Tensor, paired: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        # b^x - b^y = b^x (1 - b^-(x-y)): the bracket lies in [0, 1], and b^x is capped at e^40, far past the point
        # where the smallest representable gap already decides the pair. So any finite scores give finite logits and
        # gradients.
        log_b = math.log(self.b)
        height = torch.exp((log_b * better).clamp(max=40.0))
        return height * -torch.expm1(-log_b * _gap(better, worse, paired)), scale


def as_boost(boost: float | Boost) -> Boost:
    """A bare number means Relative of it."""
    if isinstance(boost, Boost):
        return boost
    if isinstance(boost, bool) or not isinstance(boost, (int, float)):
        raise TypeError(f"boost must be a number or a knockout.boost such as Relative(4); got {boost!r}")
    return Relative(boost)


def _entmax_of_two(logit: Tensor, alpha: float) -> Tensor:
    if alpha == 1.0:
        # Not torch.sigmoid: its CPU kernel rounds differently at the end of a vector, and a row's result must not
        # depend on where in memory the row lies.
        return 1.0 / (1.0 + torch.exp(-logit))
    if alpha == 1.5:
        logit = logit.clamp(max=2.0)
        return 0.5 + logit / 4.0 * torch.sqrt(2.0 - logit * logit / 4.0)
    return (0.5 + logit / 2.0).clamp(max=1.0)


def _gap(better: Tensor, worse: Tensor, paired: Tensor) -> Tensor:
    """The difference in scores, 0 without an opponent, and finite even where it passes the largest number."""
    return torch.where(paired, better - worse, 0.0).clamp(max=torch.finfo(better.dtype).max)


def _mean(gap: Tensor, pairs: Tensor) -> Tensor:
    """Mean gap (..., 1) of the round; scaled down before it is added up, so that it cannot overflow."""
    size = gap.shape[-1]
    return _tree_sum(gap / size) * (size / pairs.clamp(min=1).to(gap.dtype))


def _tree_sum(x: Tensor) -> Tensor:
    """Sum (..., 1) over the last dimension in a fixed tree: the same bits for any threads, memory layout and batch."""
    size = 1 << (x.shape[-1] - 1).bit_length()
    x = torch.nn.functional.pad(x, (0, size - x.shape[-1]))
    while x.shape[-1] > 1:
        x = x.unflatten(-1, (2, -1)).sum(dim=-2)
    return x


def _measure(gap: Tensor, scale: Tensor) -> Tensor:
    return _Measure.apply(gap, scale)  # type: ignore[no-any-return, no-untyped-call]


class _Measure(Function):
    """gap (..., pairs) / scale (..., 1), with a gradient of the scale that is added up in a fixed tree."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gap: Tensor, scale: Tensor) -> Tensor:
        return gap / scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gap, scale = ctx.saved_tensors
        return _measure(grad, scale), -_tree_sum(_measure(grad, scale) * _measure(gap, scale))
