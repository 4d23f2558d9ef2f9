"""Who takes part: every method with its name, its family, and the temperatures that it may be tuned over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

import knockout
from knockout import Selection, methods
from knockout.boost import Relative
from knockout.plan import SparsePlan

Select = Callable[[Tensor, int], Selection]  # scores (..., n), k -> plan


class Contestant(NamedTuple):
    """A method, told how soft to be by one number; low is hard for all of them."""

    select: Callable[[Tensor, int, float], Selection]  # scores, k, temperature -> plan
    family: str  # KNOCKOUT, SLOTS, MASKS or COMMON
    temperatures: tuple[float, ...]  # the declared grid, for learning
    default: float  # the method's own, for cost, fidelity and gradients
    still: Callable[[Tensor, int, float], Selection] | None = None  # without noise, if it draws some and can do without
    gates: bool = False  # whether it scales rows by twice a sigmoid of their scores

    def at(self, temperature: float) -> Select:
        """The method with a temperature, as it trains."""
        return lambda scores, k: self.select(scores, k, temperature)

    def standing(self) -> Select:
        """At its default temperature, without noise if it can, and with the same noise in every call if not."""
        select = self.still or self.select
        return reseeded(lambda scores, k: select(scores, k, self.default))

    def judged(self, temperature: float) -> Select:
        """The top k, as ``torch.topk`` chooses them; scaled as they were in training, if they were."""
        if self.gates:
            return lambda scores, k: methods.gated(scores, k, temperature if self.family == COMMON else 1.0, scale=2.0)
        return self.at(temperature) if self.family == MASKS else methods.hard


KNOCKOUT, SLOTS, MASKS, COMMON = "knockout", "weights in every slot", "k-hot mask", "hard choice"
USUAL = (0.03, 0.1, 0.3, 1.0)


def gated(selection: Selection) -> Selection:
    """The rows of a tournament, each scaled by twice a sigmoid of its blended score."""
    plan = selection._plan
    assert isinstance(plan, SparsePlan)
    gate = 2.0 * torch.sigmoid(plan.score).unsqueeze(-1)
    return Selection(replace(plan, weight=gate * plan.weight), selection.indices, selection.mask, selection.dtype)


# Knockout's temperature is one over its boost; "hard" is its straight-through choice, with the soft gradient.
NOTES = (
    "Some methods are the better, and the slower, the more steps or samples they take: here Sinkhorn takes 20 steps "
    "(by default 50), coordinate descent 20 (50), the perturbed top-k 50 samples (100). Gates are twice a sigmoid, so "
    "that a score of 0 passes a row unchanged; knockout's, of the blended scores. Knockout runs in native kernels, "
    "all others in PyTorch's operators."
)
CONTESTANTS: dict[str, Contestant] = {
    "knockout": Contestant(
        lambda s, k, t: knockout.select(s, k, Relative(1.0 / t)), KNOCKOUT, (0.125, 0.25, 0.5, 1.0), 0.25
    ),
    "knockout, hard": Contestant(
        lambda s, k, t: knockout.select(s, k, Relative(1.0 / t), hard=True), KNOCKOUT, (0.125, 0.25, 0.5, 1.0), 0.25
    ),
    "knockout, gated": Contestant(
        lambda s, k, t: gated(knockout.select(s, k, Relative(1.0 / t))),
        KNOCKOUT,
        (0.125, 0.25, 0.5, 1.0),
        0.25,
        gates=True,
    ),
    "iterative": Contestant(
        lambda s, k, t: methods.iterative(s, k, peaked=False, alpha=1.0 / t**2), SLOTS, (0.1, 0.3, 1.0, 3.0), 1.0
    ),
    "softsort": Contestant(lambda s, k, t: methods.softsort(s, k, t), SLOTS, USUAL, 0.1),
    "neuralsort": Contestant(lambda s, k, t: methods.neuralsort(s, k, t), SLOTS, (1.0, 10.0, 100.0, 1000.0), 1.0),
    "sinkhorn": Contestant(lambda s, k, t: methods.sinkhorn(s, k, t, steps=20), SLOTS, USUAL, 0.1),
    "perturbed": Contestant(lambda s, k, t: methods.perturbed(s, k, t, samples=50), SLOTS, (0.1, 0.3, 1.0, 3.0), 0.1),
    "gumbel": Contestant(
        lambda s, k, t: methods.gumbel(s, k, t),
        SLOTS,
        (0.1, 0.3, 1.0, 3.0),
        0.1,
        still=lambda s, k, t: methods.gumbel(s, k, t, noise=False),
    ),
    "lapsum": Contestant(lambda s, k, t: methods.lapsum(s, k, t), MASKS, USUAL, 0.1),
    "lml": Contestant(lambda s, k, t: methods.lml(s, k, t), MASKS, USUAL, 0.1),
    "projection": Contestant(lambda s, k, t: methods.projection(s, k, t), MASKS, (0.3, 1.0, 3.0, 10.0), 1.0),
    "coordinate descent": Contestant(lambda s, k, t: methods.coordinate_descent(s, k, t, steps=20), MASKS, USUAL, 0.1),
    "threshold": Contestant(lambda s, k, t: methods.threshold(s, k, t), MASKS, USUAL, 0.1),
    "straight-through": Contestant(
        lambda s, k, t: methods.straight_through(s, k, t), COMMON, (0.1, 0.3, 1.0, 3.0), 1.0
    ),
    "gated": Contestant(
        lambda s, k, t: methods.gated(s, k, t, scale=2.0), COMMON, (0.1, 0.3, 1.0, 3.0), 1.0, gates=True
    ),
}
# One knockout, and who is to be compared with it.
SOFT = ["knockout", *(name for name, each in CONTESTANTS.items() if each.family in (SLOTS, MASKS))]


def reseeded(select: Select, seed: int = 0) -> Select:
    """The same noise in every call, and torch's own generator as if nothing had happened."""

    def call(scores: Tensor, k: int) -> Selection:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return select(scores, k)

    return call
