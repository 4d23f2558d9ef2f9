"""Boosts as numbers: operators take numbers and tensors only."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from knockout.boost import Base, Boost, Fixed, Power, Relative

ALPHAS = (1.0, 1.5, 2.0)
_ALPHA_INDEX = {alpha: index for index, alpha in enumerate(ALPHAS)}
RELATIVE, FIXED, POWER = range(3)
KINDS = {Relative: RELATIVE, Fixed: FIXED, Base: FIXED, Power: POWER}


class BoostCode(NamedTuple):
    """A boost as arguments of the operators ``tournament`` and ``tournament_backward``, in their order."""

    kind: int  # RELATIVE, FIXED or POWER
    alpha: int  # an index into ALPHAS
    c: float  # the c of Relative and Fixed; Base is Fixed with c = ln b; the b of Power
    unit: float  # of Relative; 1 for the others


def encode(boost: Boost) -> BoostCode:
    """The code of a boost whose c, if it has one, is a number."""
    kind, alpha = KINDS[type(boost)], _ALPHA_INDEX[boost.alpha]
    if isinstance(boost, Relative):
        return BoostCode(kind, alpha, float(boost.c), boost.unit)
    if isinstance(boost, Fixed):
        return BoostCode(kind, alpha, float(boost.c), 1.0)
    assert isinstance(boost, (Base, Power))
    return BoostCode(kind, alpha, boost.b if kind == POWER else math.log(boost.b), 1.0)


def decode(code: BoostCode, c_tensor: Tensor | None) -> Boost:
    """The boost of a code, with c from a tensor if there is one."""
    alpha, c = ALPHAS[code.alpha], code.c if c_tensor is None else c_tensor
    if code.kind == RELATIVE:
        return Relative(c, code.unit, alpha)
    return Fixed(c, alpha) if code.kind == FIXED else Power(code.c, alpha)


def detach_c(boost: Boost) -> tuple[Boost, Tensor | None]:
    """A boost whose c is a number, and, if its c was a tensor, a copy of what that holds now."""
    if isinstance(boost, (Relative, Fixed)) and isinstance(boost.c, Tensor):
        return replace(boost, c=1.0), boost.c.detach().clone()
    return boost, None
