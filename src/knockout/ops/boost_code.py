"""Boosts as numbers: operators take numbers and tensors only."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from knockout.boost import Adaptive, Base, Boost, Fixed, Power, Relative

ALPHAS = (1.0, 1.5, 2.0)
_ALPHA_INDEX = {alpha: index for index, alpha in enumerate(ALPHAS)}
RELATIVE, FIXED, POWER, ADAPTIVE = range(4)
KINDS = {Relative: RELATIVE, Fixed: FIXED, Base: FIXED, Power: POWER, Adaptive: ADAPTIVE}


class BoostCode(NamedTuple):
    """A boost as arguments of the operators ``tournament`` and ``tournament_backward``, in their order."""

    kind: int  # RELATIVE, FIXED, POWER or ADAPTIVE
    alpha: int  # an index into ALPHAS
    c: float  # the c of Relative, Fixed and Adaptive; Base is Fixed with c = ln b; the b of Power
    unit: float  # of Relative and Adaptive; 1 for the others


def encode(boost: Boost) -> BoostCode:
    """The code of a boost that has numbers only, no tensors."""
    kind, alpha = KINDS[type(boost)], _ALPHA_INDEX[boost.alpha]
    if isinstance(boost, (Relative, Adaptive)):
        return BoostCode(kind, alpha, float(boost.c), float(boost.unit))
    if isinstance(boost, Fixed):
        return BoostCode(kind, alpha, float(boost.c), 1.0)
    assert isinstance(boost, (Base, Power))
    return BoostCode(kind, alpha, boost.b if kind == POWER else math.log(boost.b), 1.0)


def decode(code: BoostCode, c_tensor: Tensor | None, unit_tensor: Tensor | None) -> Boost:
    """The boost of a code, with c and unit from tensors where there are any."""
    alpha, c = ALPHAS[code.alpha], code.c if c_tensor is None else c_tensor
    if code.kind == ADAPTIVE:
        return Adaptive(c, code.unit if unit_tensor is None else unit_tensor, alpha)
    if code.kind == RELATIVE:
        return Relative(c, code.unit, alpha)
    return Fixed(c, alpha) if code.kind == FIXED else Power(code.c, alpha)


def detach_tensors(boost: Boost) -> tuple[Boost, Tensor | None, Tensor | None]:
    """A boost with numbers only, and, if its c or its unit was a tensor, a copy of what that holds now."""
    c = unit = None
    if isinstance(boost, (Relative, Fixed, Adaptive)) and isinstance(boost.c, Tensor):
        c = boost.c.detach().clone()
        boost = replace(boost, c=1.0)
    if isinstance(boost, Adaptive) and isinstance(boost.unit, Tensor):
        unit = boost.unit.detach().clone()
        boost = replace(boost, unit=1.0)
    return boost, c, unit
