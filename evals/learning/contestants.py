"""The contestants: ours with nothing set, some rules for our boost, and other methods, at their defaults and tuned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor

import knockout
from evals.arena.experiments import learning_settings
from evals.arena.learning import temperature_at
from evals.arena.methods import MASKS, METHODS, Select, scaled
from knockout import Selection, methods
from knockout.boost import Relative
from knockout.nn import Sharpen, TopK


class Run(NamedTuple):
    """The selections of one training run."""

    at: Callable[[float], Select]  # the one that trains, after this part of the steps
    hard: Select  # for evaluation: the true top k, scaled as in training
    soft: Select | None = None  # for evaluation, as soft as it was trained


Start = Callable[[int], Run]  # begin a run that selects k, with nothing kept from other runs


def constant(select: Select) -> Start:
    """Use one selection all the time."""
    return lambda _: Run(lambda _: select, methods.hard, select)


def with_layer(make: Callable[[int], TopK], hard: Select = methods.hard) -> Start:
    """Use a new layer in every run: it may adapt itself to the scores that it is trained with."""

    def start(k: int) -> Run:
        layer = make(k)

        def training(scores: Tensor, _: int) -> Selection:
            return layer.train().select(scores)

        def evaluation(scores: Tensor, _: int) -> Selection:
            return layer.eval().select(scores)

        return Run(lambda _: training, hard, evaluation)

    return start


def sharpened(start: float, end: float) -> Start:
    """Use the schedule ``knockout.nn.Sharpen``."""
    schedule = Sharpen(TopK(1, end), steps=1, start=start, end=end)

    def at(progress: float) -> Select:
        return partial(knockout.select, boost=Relative(schedule.boost_at(progress)))

    return lambda _: Run(at, methods.hard, at(1.0))


def layer_with_schedule(k: int) -> Run:
    """Use a layer with the schedule ``knockout.nn.Sharpen``."""
    layer = TopK(k)
    schedule = Sharpen(layer, steps=1)

    def at(progress: float) -> Select:
        layer.sharpness.fill_(schedule.boost_at(progress))
        return lambda scores, _: layer.train().select(scores)

    return Run(at, methods.hard, lambda scores, _: layer.eval().select(scores))


def gated_layer(k: int) -> Run:
    """Use a layer whose slots are multiplied by ``Selection.gates``, in evaluation too."""
    layer = TopK(k)

    def gated(scores: Tensor, training: bool, hard: bool = False) -> Selection:
        layer.hard = hard
        picked = layer.train(training).select(scores)
        return scaled(methods.hard(scores, k) if hard else picked, picked.gates())

    return Run(
        lambda _: lambda scores, _: gated(scores, True),
        lambda scores, _: gated(scores, False, hard=True),
        lambda scores, _: gated(scores, False),
    )


# To add one of ours, add it here. The first two have nothing set.
PLAIN: dict[str, Start] = {
    "function": constant(knockout.select),
    "layer": with_layer(TopK),
}
RULES: dict[str, Start] = {
    "layer, gated": gated_layer,
    "layer, hard": with_layer(partial(TopK, hard=True)),
    "layer, Sharpen": layer_with_schedule,
    "Relative(4)": constant(partial(knockout.select, boost=Relative(4))),
    "Sharpen 0.5 to 8": sharpened(0.5, 8.0),
}
OURS = PLAIN | RULES


def rival(name: str, select: Select) -> Start:
    """Use a method with these settings; the arena says how its choice is evaluated."""
    method = METHODS[name]
    hard = select if method.gates or method.family == MASKS else methods.hard
    return lambda _: Run(lambda _: select, hard)


def rival_at(name: str, temperature: float, annealed: bool) -> Start:
    """Use a method at a temperature that is constant or falls to this one."""
    method = METHODS[name]

    def at(progress: float) -> Select:
        return method.at(temperature_at(progress, temperature, annealed))

    return lambda _: Run(at, method.for_evaluation(temperature))


AT_DEFAULTS: dict[str, Select] = {
    "gated": partial(methods.gated, scale=2.0),  # as in the arena: a row of score 0 passes unchanged
    "straight-through": methods.straight_through,
    "gumbel": methods.gumbel,
    "lapsum": methods.lapsum,
    "coordinate descent": methods.coordinate_descent,
    "iterative": methods.iterative,
    "sinkhorn": partial(methods.sinkhorn, steps=20),  # as in the arena: its 50 take too long
}
RIVALS: dict[str, Start] = {name: rival(name, select) for name, select in AT_DEFAULTS.items()}
DEFAULTS = OURS | RIVALS
# Sinkhorn is not tuned: that would take as long as all others together, and it standardizes the scores by itself.
TUNED = {f"{name}, tuned": name for name in RIVALS if name != "sinkhorn"}
DEFAULT = "default"


def grid(name: str) -> dict[str, Start]:
    """The settings that a rival is tuned over: the arena's temperatures, and one of them annealed."""
    return {
        f"{temperature:g}{', annealed' if annealed else ''}": rival_at(name, temperature, annealed)
        for temperature, annealed in learning_settings(name, 4, 1)
    }
