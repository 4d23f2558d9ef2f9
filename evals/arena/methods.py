"""The methods that are compared: how each is called, its family, and the temperatures that it may be tuned over."""

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

Select = Callable[[Tensor, int], Selection]  # scores (..., n), k -> selection
SelectAt = Callable[[Tensor, int, float], Selection]  # scores (..., n), k, temperature -> selection

KNOCKOUT, SLOTS, MASKS, HARD_CHOICE = "knockout", "weights in every slot", "k-hot mask", "hard choice"


class Method(NamedTuple):
    """A method whose softness is set by a temperature: the lower, the harder."""

    select: SelectAt
    family: str  # KNOCKOUT, SLOTS, MASKS or HARD_CHOICE
    temperatures: tuple[float, ...]  # those to choose from in learning
    default: float  # the temperature for cost, fidelity and gradients
    without_noise: SelectAt | None = None  # for a method that draws noise, if it can do without
    gates: bool = False  # whether it multiplies value rows by twice the sigmoid of their scores

    def at(self, temperature: float) -> Select:
        """The method at a temperature, as used in training."""
        return lambda scores, k: self.select(scores, k, temperature)

    def deterministic(self, temperature: float) -> Select:
        """The method at a temperature without noise, or if it needs noise, with the same noise in every call."""
        select = self.without_noise or self.select
        return with_fixed_noise(lambda scores, k: select(scores, k, temperature))

    def for_evaluation(self, temperature: float) -> Select:
        """The selection that a trained network is evaluated with: the true top k, scaled as in training."""
        if self.gates:
            gate_temperature = temperature if self.family == HARD_CHOICE else 1.0
            return lambda scores, k: methods.gated(scores, k, gate_temperature, scale=2.0)
        return self.at(temperature) if self.family == MASKS else methods.hard


def with_fixed_noise(select: Select, seed: int = 0) -> Select:
    """Use the same noise in every call, and leave torch's own generator as it was."""

    def call(scores: Tensor, k: int) -> Selection:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return select(scores, k)

    return call


def _knockout(scores: Tensor, k: int, temperature: float, hard: bool = False) -> Selection:
    return knockout.select(scores, k, Relative(1.0 / temperature), hard=hard)


def _gated_knockout(scores: Tensor, k: int, temperature: float) -> Selection:
    """Scale the slots of a tournament by twice the sigmoid of their blended scores."""
    selection = _knockout(scores, k, temperature)
    return scaled(selection, 2.0 * torch.sigmoid(selection.scores))


def scaled(selection: Selection, factor: Tensor) -> Selection:
    """Scale the slots of a selection by a factor each (..., k)."""
    plan = selection._plan
    assert isinstance(plan, SparsePlan)
    weight = factor.unsqueeze(-1) * plan.weight
    return Selection(replace(plan, weight=weight), selection.indices, selection.mask, selection.dtype)


# Knockout's temperature is one over its boost; "knockout, hard" returns the hard choice, with the soft gradient.
NOTES = (
    "Some methods get better, and slower, with more steps or samples: here Sinkhorn takes 20 steps (by default 50), "
    "coordinate descent 20 (50), the perturbed top-k 50 samples (100). Gates are twice a sigmoid, so that a score of 0 "
    "passes a value row unchanged; those of knockout are of its blended scores. Knockout runs in C++ kernels, all "
    "others in PyTorch's operators."
)
FOR_KNOCKOUT, LOW, HIGH = (0.125, 0.25, 0.5, 1.0), (0.03, 0.1, 0.3, 1.0), (0.1, 0.3, 1.0, 3.0)
METHODS: dict[str, Method] = {
    "knockout": Method(_knockout, KNOCKOUT, FOR_KNOCKOUT, 0.25),
    "knockout, hard": Method(lambda s, k, t: _knockout(s, k, t, hard=True), KNOCKOUT, FOR_KNOCKOUT, 0.25),
    "knockout, gated": Method(_gated_knockout, KNOCKOUT, FOR_KNOCKOUT, 0.25, gates=True),
    "iterative": Method(lambda s, k, t: methods.iterative(s, k, peaked=False, alpha=1.0 / t**2), SLOTS, HIGH, 1.0),
    "softsort": Method(lambda s, k, t: methods.softsort(s, k, t), SLOTS, LOW, 0.1),
    "neuralsort": Method(lambda s, k, t: methods.neuralsort(s, k, t), SLOTS, (1.0, 10.0, 100.0, 1000.0), 1.0),
    "sinkhorn": Method(lambda s, k, t: methods.sinkhorn(s, k, t, steps=20), SLOTS, LOW, 0.1),
    "perturbed": Method(lambda s, k, t: methods.perturbed(s, k, t, samples=50), SLOTS, HIGH, 0.1),
    "gumbel": Method(
        lambda s, k, t: methods.gumbel(s, k, t),
        SLOTS,
        HIGH,
        0.1,
        without_noise=lambda s, k, t: methods.gumbel(s, k, t, noise=False),
    ),
    "lapsum": Method(lambda s, k, t: methods.lapsum(s, k, t), MASKS, LOW, 0.1),
    "lml": Method(lambda s, k, t: methods.lml(s, k, t), MASKS, LOW, 0.1),
    "projection": Method(lambda s, k, t: methods.projection(s, k, t), MASKS, (0.3, 1.0, 3.0, 10.0), 1.0),
    "coordinate descent": Method(lambda s, k, t: methods.coordinate_descent(s, k, t, steps=20), MASKS, LOW, 0.1),
    "threshold": Method(lambda s, k, t: methods.threshold(s, k, t), MASKS, LOW, 0.1),
    "straight-through": Method(lambda s, k, t: methods.straight_through(s, k, t), HARD_CHOICE, HIGH, 1.0),
    "gated": Method(lambda s, k, t: methods.gated(s, k, t, scale=2.0), HARD_CHOICE, HIGH, 1.0, gates=True),
}
OURS = "knockout"
# The methods with soft weights, for the comparison of times: ours and those of the other families.
SOFT = [OURS, *(name for name, each in METHODS.items() if each.family in (SLOTS, MASKS))]
