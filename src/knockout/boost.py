"""Boosts: how decisively the better candidate of a pair wins.

The two scores of a pair give a logit ``t >= 0``, and ``t`` gives the share of the better candidate:

    alpha = 1     1 / (1 + exp(-t))                    the paper's softmax; never quite 1
    alpha = 1.5   1/2 + (t/4) sqrt(2 - t^2/4)          exactly 1 from t = 2 on
    alpha = 2     1/2 + t/2                            exactly 1 from t = 1 on

These are two-way alpha-entmax in closed form. The five boosts differ in how they measure ``t``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from knockout.checks import check_device, check_positive, check_sharpness
from knockout.ops.reference.exact import exact_sum, exp, expm1, sqrt

__all__ = ["Adaptive", "Base", "Boost", "Fixed", "Power", "Relative"]


class Pairs(NamedTuple):
    """The scores of the pairs of one round, best pair first, each (..., pairs)."""

    better: Tensor
    worse: Tensor
    gap: Tensor  # better - worse; 0 where the pair is not real
    real: Tensor  # bool: whether it is a pair of two candidates, and not a bye or padding


class Boost(ABC):
    """The base class of the five boosts; ``knockout.select`` takes any of them.

    A boost is an immutable value: comparable, hashable, and its ``repr`` is the call that makes it. (If its c or unit
    is a tensor, the number in the tensor may change.)
    """

    alpha: float

    def __repr__(self) -> str:
        shown = (f"{field.name}={_shown(getattr(self, field.name))}" for field in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _check(self, **numbers: float) -> None:
        for name, number in numbers.items():
            check_positive(number, f"{type(self).__name__}: {name}")
        if (
            not isinstance(self.alpha, (int, float))
            or isinstance(self.alpha, bool)
            or self.alpha not in (1.0, 1.5, 2.0)
        ):
            raise ValueError(
                f"{type(self).__name__}: alpha must be 1, 1.5 or 2, the pair weights with a closed form; "
                f"got {self.alpha!r}"
            )

    def start(self, scores: Tensor, active: Tensor, rounds: Tensor) -> Tensor:
        """The scale before the first round (..., 1), from the scores (..., n), best first, and which are active.

        ``rounds`` (..., 1) is the number of rounds that each row plays. A boost may carry more than a scale from round
        to round; it is then (..., more).
        """
        return scores.new_ones(()).expand(*scores.shape[:-1], 1)

    @abstractmethod
    def logit(self, pairs: Pairs, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (..., pairs) of one round, and the scale, as of ``start``, that the next round starts from.

        The logit of a pair that is not real may be anything.
        """

    def share(self, pairs: Pairs, scale: Tensor) -> tuple[Tensor, Tensor]:
        """The share of the better candidate of each pair, 1 if it has no opponent, and the scale for the next round."""
        logit, scale = self.logit(pairs, scale)
        share = _entmax_of_two(logit, self.alpha)
        # A share of 1 is a constant: the candidates of a decided pair get no gradient, and the loser's values are not
        # read. (Not `share < 1`: a NaN must stay.)
        return torch.where(pairs.real & ~(share >= 1), share, 1.0), scale


@dataclass(frozen=True, repr=False)
class Relative(Boost):
    """``t = c * (a - b) / s``: gaps in units of the round's mean gap ``s``, so c means the same at every scale.

    This holds for scores that differ by ``unit`` or more: ``s`` starts at ``unit`` and at most halves from round to
    round. Scores that hardly differ are blended; their noise is not amplified.

    >>> import torch, knockout
    >>> knockout.boost.Relative(4)
    Relative(c=4, unit=1.0, alpha=1.5)

    c may be a tensor without dimensions, on the CPU or on the device of the scores. A schedule can change the number in
    it without ``torch.compile`` compiling a new graph, as it does for each new float. It gets no gradient.

    >>> c = torch.tensor(0.5)
    >>> boost = knockout.boost.Relative(c)
    >>> c.fill_(8), boost
    (tensor(8.), Relative(c=8.0, unit=1.0, alpha=1.5))
    """

    c: float | Tensor
    unit: float = 1.0
    alpha: float = 1.5

    def __post_init__(self) -> None:
        check_sharpness(self.c, "Relative: c")
        self._check(unit=self.unit)

    def start(self, scores: Tensor, active: Tensor, rounds: Tensor) -> Tensor:
        return super().start(scores, active, rounds) * (2.0 * max(self.unit, torch.finfo(scores.dtype).tiny))

    def logit(self, pairs: Pairs, scale: Tensor) -> tuple[Tensor, Tensor]:
        limits = torch.finfo(scale.dtype)
        count = pairs.real.sum(dim=-1, keepdim=True)
        narrowed = torch.maximum(_mean_gap(pairs, count), (scale / 2).clamp(min=limits.tiny))
        scale = torch.where(count > 0, narrowed, scale)
        return _capped(self.c, scale.dtype) * _measure(pairs.gap, scale, count), scale


@dataclass(frozen=True, repr=False)
class Adaptive(Boost):
    """``t = c / rounds * h * (a - b) / s``: all rounds equally soft, and sharper as the scores spread: it learns.

    ``s`` is the mean gap of the round's pairs, without the widest eighth of them, so that outliers do not count, but at
    least half of that of the round before. ``h`` rises slowly with the spread g of the row's scores, from 1/3 to 3, and
    is 1 where g is ``unit``: (unit + 3 g) / (3 unit + g). For scores that hardly differ it is less, 10 g / unit: their
    noise is not amplified. The spread is such a mean gap too, if all candidates were paired, the best with the worst.

    So c is how sharp the choice is over all rounds together, however many there are. A candidate that loses early in a
    long tournament gets as much gradient as one that loses late. A scorer sets the sharpness by itself, by how far it
    spreads its scores.

    >>> import torch, knockout
    >>> scores = torch.tensor([3.0, 2.5, 1.0, 0.0])
    >>> for unit in (0.2, 20.0):
    ...     knockout.select(scores, k=1, boost=knockout.boost.Adaptive(c=2, unit=unit)).weights()
    tensor([[0.8792, 0.1172, 0.0036, 0.0000]])
    tensor([[0.3675, 0.2847, 0.1892, 0.1587]])

    c and unit may be tensors, as c of ``Relative``. The layers of ``knockout.nn`` measure their unit by themselves.
    """

    c: float | Tensor
    unit: float | Tensor = 1.0
    alpha: float = 1.5

    def __post_init__(self) -> None:
        check_sharpness(self.c, "Adaptive: c")
        check_sharpness(self.unit, "Adaptive: unit")
        self._check()

    def start(self, scores: Tensor, active: Tensor, rounds: Tensor) -> Tensor:
        spread = _spread(scores, active)
        limits = torch.finfo(spread.dtype)
        # The scale of a round whose mean gap is the spread: rounds / h times that.
        x = (spread / self._unit(spread)).clamp(max=_FAR)
        width = torch.maximum(spread * ((3.0 + x) / (1.0 + 3.0 * x)), self._unit(spread) / 10.0)
        width = (width * rounds.to(width.dtype)).clamp(min=limits.tiny, max=limits.max / 4)
        return torch.cat([2.0 * width, width, spread], dim=-1)

    def logit(self, pairs: Pairs, scale: Tensor) -> tuple[Tensor, Tensor]:
        limits = torch.finfo(scale.dtype)
        before, width, spread = scale.split(1, dim=-1)
        count = pairs.real.sum(dim=-1, keepdim=True)
        # A spread that is not a normal number counts as 0, as if all scores were equal.
        spreads = spread >= limits.tiny
        mean = width * (_mean_gap(*_without_widest(pairs, count)) / torch.where(spreads, spread, 1.0))
        mean = torch.where(spreads, mean.clamp(max=limits.max), 0.0)
        narrowed = torch.maximum(mean, (before / 2).clamp(min=limits.tiny))
        current = torch.where(count > 0, narrowed, before)
        logit = _capped(self.c, scale.dtype) * _measure(pairs.gap, current, count)
        return logit, torch.cat([current, width, spread], dim=-1)

    def _unit(self, like: Tensor) -> Tensor:
        limits = torch.finfo(like.dtype)
        if isinstance(self.unit, Tensor):
            return self.unit.detach().to(like).clamp(limits.tiny, limits.max)
        return like.new_full((), min(max(self.unit, limits.tiny), limits.max))


_FAR = 2.0**40  # a spread of so many units counts as this many: what follows from it does not change any more


@dataclass(frozen=True, repr=False)
class Fixed(Boost):
    """``t = c * (a - b)``: one sharpness for all rounds; the right c depends on the scale of the scores.

    c may be a tensor, as for ``Relative``.

    >>> import knockout
    >>> knockout.boost.Fixed(100)
    Fixed(c=100, alpha=1.0)
    """

    c: float | Tensor
    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_sharpness(self.c, "Fixed: c")
        self._check()

    def logit(self, pairs: Pairs, scale: Tensor) -> tuple[Tensor, Tensor]:
        return _capped(self.c, scale.dtype) * pairs.gap, scale


@dataclass(frozen=True, repr=False)
class _WithBase(Boost):
    """The fields of the boosts that have a base b."""

    b: float
    alpha: float = 1.0

    def __post_init__(self) -> None:
        self._check(b=self.b)
        if self.b <= 1:
            raise ValueError(f"{type(self).__name__}: b must be above 1, so that higher scores win; got {self.b!r}")


@dataclass(frozen=True, repr=False)
class Base(_WithBase):
    """``t = ln(b) * (a - b)``: the paper's boosted softmax as printed, with base b.

    It gives the same as ``Fixed(ln b)``:

    >>> import math, torch, knockout
    >>> scores = torch.tensor([0.5, 0.9])
    >>> by_base = knockout.select(scores, k=1, boost=knockout.boost.Base(20))
    >>> by_base.weights(), knockout.select(scores, k=1, boost=knockout.boost.Fixed(math.log(20))).weights()
    (tensor([[0.2318, 0.7682]]), tensor([[0.2318, 0.7682]]))
    """

    def logit(self, pairs: Pairs, scale: Tensor) -> tuple[Tensor, Tensor]:
        return math.log(self.b) * pairs.gap, scale


@dataclass(frozen=True, repr=False)
class Power(_WithBase):
    """``t = b**x - b**y`` for scores x >= y: what the paper's authors ran for their figures, with b = 20.

    >>> import knockout
    >>> knockout.boost.Power(20)
    Power(b=20, alpha=1.0)
    """

    def logit(self, pairs: Pairs, scale: Tensor) -> tuple[Tensor, Tensor]:
        # b^x - b^y = b^x (1 - b^-(x-y)): the parenthesis lies in [0, 1], and b^x is capped at e^40, where even the
        # smallest representable gap decides the pair. So any finite scores give finite logits and gradients.
        log_b = math.log(self.b)
        height = exp((log_b * pairs.better).clamp(max=40.0))
        return height * -expm1(-log_b * pairs.gap), scale


# What ``knockout.topk`` takes if it is not told: what learns at ordinary scales of the scores (docs/which.md).
DEFAULT = Adaptive(c=2.0, unit=1.5)


def as_boost(boost: float | Tensor | Boost | None, device: torch.device) -> Boost:
    """A boost as it is; for a number, or a tensor that holds one, Relative of it; for None, the default.

    Tensors in it must be on the CPU or on this device.
    """
    if boost is None:
        return DEFAULT
    if type(boost) is float and not torch.compiler.is_compiling() and boost in _RELATIVE:
        return _RELATIVE[boost]
    if isinstance(boost, Tensor):
        boost = Relative(boost)
    if isinstance(boost, Boost):
        for name in ("c", "unit"):
            number = getattr(boost, name, None)
            if isinstance(number, Tensor) and number.device.type != "cpu":
                check_device(number, f"{type(boost).__name__}: {name}", device)
        return boost
    if isinstance(boost, bool) or not isinstance(boost, Real):
        raise TypeError(
            f"boost must be a number, a knockout.boost such as Relative(4), or None for the default; got {boost!r}"
        )
    relative = Relative(boost if isinstance(boost, (int, float)) else float(boost))
    if type(boost) is float and not torch.compiler.is_compiling() and len(_RELATIVE) < 100:
        _RELATIVE[boost] = relative
    return relative


_RELATIVE: dict[float, Relative] = {}  # boosts made before: to check and make one takes longer than a small selection


def _capped(c: float | Tensor, dtype: torch.dtype) -> float | Tensor:
    """The c of a boost, at most the largest finite number; a tensor as a copy, since its number may change later."""
    most = torch.finfo(dtype).max
    return c.detach().to(dtype).clamp(max=most) if isinstance(c, Tensor) else min(c, most)


def _shown(number: object) -> str:
    if not isinstance(number, Tensor):
        return repr(number)
    # Not .item() on other devices: it would wait for them.
    return str(number.item()) if number.device.type == "cpu" else f"<a tensor on {number.device}>"


def _entmax_of_two(logit: Tensor, alpha: float) -> Tensor:
    if alpha == 1.0:
        return 1.0 / (1.0 + exp(-logit))
    if alpha == 1.5:
        logit = logit.clamp(max=2.0)
        return 0.5 + logit / 4.0 * sqrt(2.0 - logit * logit / 4.0)
    return (0.5 + logit / 2.0).clamp(max=1.0)


def _mean_gap(pairs: Pairs, count: Tensor) -> Tensor:
    """Mean gap (..., 1) of the real pairs of a round.

    Summed as distances of all scores from the middle of the field, which are the same however the field is paired, so
    backends need not sort for it. In float64 and scaled down, so that it cannot overflow.
    """
    better, worse = _scaled_down(pairs.better), _scaled_down(pairs.worse)
    middle = better[..., -1:].detach()  # the last winner; as many scores are above as below, so its gradient is 0
    distance = torch.cat([better - middle, middle - worse], dim=-1)
    total = exact_sum(torch.where(torch.cat([pairs.real, pairs.real], dim=-1), distance, 0.0), 2 * count)
    return _scaled_up(total / count.clamp(min=1).to(total.dtype), pairs.gap.dtype)


def _without_widest(pairs: Pairs, count: Tensor) -> tuple[Pairs, Tensor]:
    """The pairs of a round without the eighth of them that have the widest gaps, and how many that leaves (..., 1)."""
    widest = count // 8
    return pairs._replace(real=pairs.real & (pairs.real.cumsum(dim=-1) > widest)), count - widest


def _spread(scores: Tensor, active: Tensor) -> Tensor:
    """Mean gap (..., 1) of scores (..., n), best first, if all that are active were paired, the best with the worst.

    Without the widest eighth of the pairs; if the number of candidates is odd, without the one in the middle, too.
    Summed as in ``_mean_gap``.
    """
    dtype, scores = scores.dtype, _scaled_down(scores)
    count = active.sum(dim=-1, keepdim=True)
    pairs, rank = count // 2, torch.arange(scores.shape[-1], device=scores.device)
    widest = pairs // 8
    middle = scores.gather(-1, ((count - 1) // 2).clamp(min=0)).detach()
    distance = torch.where(rank < pairs, scores - middle, torch.where(rank >= count - pairs, middle - scores, 0.0))
    total = exact_sum(torch.where((rank >= widest) & (rank < count - widest), distance, 0.0), count - 2 * widest)
    return _scaled_up(total / (pairs - widest).clamp(min=1).to(total.dtype), dtype)


def _scaled_down(scores: Tensor) -> Tensor:
    """In float64 where there is one, and small enough for sums to be finite."""
    return scores.to(scores.dtype if scores.device.type == "mps" else torch.float64) * 2.0**-40


def _scaled_up(mean: Tensor, dtype: torch.dtype) -> Tensor:
    return (mean * 2.0**40).clamp(max=torch.finfo(dtype).max).to(dtype)


def _measure(gap: Tensor, scale: Tensor, count: Tensor) -> Tensor:
    return _Measure.apply(gap, scale, count)  # type: ignore[no-any-return, no-untyped-call]


class _Measure(Function):
    """gap (..., pairs) / scale (..., 1), with a gradient of the scale that does not depend on the order of the pairs.

    ``count`` (..., 1) is the number of gaps that have a gradient.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(gap: Tensor, scale: Tensor, count: Tensor) -> Tensor:
        return gap / scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        gap, scale, count = ctx.saved_tensors
        d_gap = _measure(grad, scale, count)
        return d_gap, -exact_sum(d_gap * _measure(gap, scale, count), count).to(grad.dtype), None
