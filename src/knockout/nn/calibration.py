"""The unit that a layer measures for itself, from the scores that it sees first.

How soft a choice by ``boost.Adaptive`` is depends on the spread of the scores in units. With the first spread as its
unit, the choice starts equally soft at any scale of the scores: soft enough for a fresh scorer to learn. It becomes
sharp by itself as the scores spread.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from knockout.boost import DEFAULT, Adaptive, Boost, Fixed, Relative, as_boost
from knockout.candidates import candidates

# Chosen by what learns with nothing tuned (docs/which.md).
SHARPNESS = float(DEFAULT.c)  # of a layer that measures its unit
MULTIPLE = 1.6  # its unit, in mean distances of the first scores from their median: for normal scores, their spread
OUTLIER = 3.0  # a distance of more than so many mean distances counts as that many


def boost_and_buffers(boost: float | Tensor | Boost | None) -> tuple[Boost, dict[str, float]]:
    """The boost of a layer, and those of its numbers that are buffers. A unit of 0 is to be measured."""
    if boost is None:
        return Adaptive(SHARPNESS, DEFAULT.unit), {"sharpness": SHARPNESS, "unit": 0.0}
    made = as_boost(boost, torch.device("cpu"))
    if isinstance(made, Adaptive):
        c, unit, limits = _number(made.c), _number(made.unit), torch.finfo(torch.float32)
        return replace(made, c=c, unit=unit), {"sharpness": c, "unit": min(max(unit, limits.tiny), limits.max)}
    return made, {"sharpness": _number(made.c)} if isinstance(made, (Relative, Fixed)) else {}


def _number(of: float | Tensor) -> float:
    return of.item() if isinstance(of, Tensor) else float(of)


def measured_unit(scores: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The unit for scores (..., n) with a mask (..., n), both already checked: a tensor without dimensions.

    It is ``MULTIPLE`` times the mean distance of the active candidates of a row from their median, averaged over rows,
    in which outliers count only in part. (For normal scores that is the spread as ``Adaptive`` has it, but it takes no
    sort.) Rows with fewer than two active candidates, or with a NaN or +inf, are left out; if none is left, the unit is
    0. If the spread is 0, it is that of the default boost. No number is fetched from the device.
    """
    with torch.no_grad():
        score, active, valid = candidates(scores, mask)
        if score.device.type != "mps":  # it has no float64
            score = score.double()  # in which sums of float32 numbers cannot overflow
        count = active.sum(dim=-1)
        usable = valid.squeeze(-1) & (count >= 2)
        # Distances from the median are exactly 0 if all scores are equal: rounding must not look like a spread.
        distance = (score - score.masked_fill(~active, torch.nan).nanmedian(dim=-1, keepdim=True).values).abs()
        spread = _mean(distance.clamp(max=OUTLIER * _mean(distance, active).unsqueeze(-1)), active)
        mean = _mean(spread.flatten(), usable.flatten())
        limits = torch.finfo(dtype)
        unit = torch.where(mean > 0, (MULTIPLE * mean).clamp(limits.tiny, limits.max), DEFAULT.unit)
        return torch.where(usable.any(), unit, 0.0).to(dtype)


def _mean(x: Tensor, which: Tensor) -> Tensor:
    """The mean over the last dimension of what ``which`` marks; 0 if that is nothing."""
    return torch.where(which, x, 0.0).sum(dim=-1) / which.sum(dim=-1).clamp(min=1)
