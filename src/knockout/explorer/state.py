"""What a selection is to the explorer: the state that its page starts with."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TypedDict

import torch
from torch import Tensor

from knockout.boost import Boost
from knockout.functional import Order, select
from knockout.plan import SparsePlan
from knockout.selection import Selection

MOST_ON_PAGE = 32  # candidates
LARGEST = 1e300  # of a score: the arithmetic of the page does not guard against overflow


class State(TypedDict):
    """What ``state.js`` calls a state; it completes what is left out. A score of None is -inf, which JSON has not."""

    scores: list[float | None]
    mask: list[bool]
    k: int
    boost: dict[str, str | float]
    order: Order
    hard: bool
    names: list[str] | None


def state_of(scores: Tensor, mask: Tensor | None, boost: Boost, row: Selection, names: list[str] | None) -> State:
    """The state of one row: a selection without batch dimensions from scores (n) and a mask (n)."""
    numbers = [_shortest(number, scores.dtype) for number in scores.tolist()]
    if any(LARGEST < abs(number) < math.inf for number in numbers):
        raise ValueError(f"scores must be from {-LARGEST:g} to {LARGEST:g}, for the page; got {max(numbers, key=abs)}")
    active = [number != -math.inf and (mask is None or bool(mask[i])) for i, number in enumerate(numbers)]
    filled = int(row.mask.sum())
    # A fraction, or a count for each row, of which this is the one. Slots that are empty in any case may stay.
    k = row.k if filled == sum(active) else filled
    leaders = row.indices[row.mask].tolist()
    return State(
        scores=[None if number == -math.inf else number for number in numbers],
        mask=[True] * len(numbers) if mask is None else mask.tolist(),
        k=k,
        boost={"kind": type(boost).__name__.lower(), **_numbers(boost)},
        order=_order(scores, mask, k, boost, leaders),
        hard=isinstance(row._plan, SparsePlan) and row._plan.hard,
        # A text that no encoding has would stop the page when it writes its address.
        names=names and [name.encode("utf-8", "replace").decode() for name in names],
    )


def _shortest(number: float, dtype: torch.dtype) -> float:
    """The decimal with the fewest digits that this number of a dtype is: 0.1 for the float32 next to 0.1."""
    decimals = (float(f"{number:.{digits}g}") for digits in range(1, 17))
    return next((decimal for decimal in decimals if torch.tensor(decimal, dtype=dtype).item() == number), number)


def _numbers(boost: Boost) -> dict[str, float]:
    numbers = ((field.name, getattr(boost, field.name)) for field in fields(boost))  # type: ignore[arg-type]
    return {
        name: _shortest(float(number), number.dtype) if isinstance(number, Tensor) else float(number)
        for name, number in numbers
    }


def _order(scores: Tensor, mask: Tensor | None, k: int, boost: Boost, leaders: list[int]) -> Order:
    """The order that these leaders are in, which a selection does not keep. Plays again."""
    orders: tuple[Order, Order] = ("score", "position")
    for order in orders:
        again = select(scores, k, boost, mask, order)
        if again.indices[again.mask].tolist() == leaders:
            return order
    raise ValueError("selection must be of scores that have not changed since it was made: select again")
