"""Learning: networks that select, trained through each method with the same data, steps and learning rate.

``planted``: 8 of 256 candidates are relevant, by a hidden direction; the target is the mean of their payloads. A linear
scorer is evaluated by how many of them a hard top-k of its scores finds.

``neighbours``: an embedding of Fashion-MNIST is trained so that the 9 nearest of 256 images, selected softly, vote for
the right class. It is evaluated by a hard vote of the 9 nearest of 2000 images.

``patches``: an image of Fashion-MNIST lies somewhere on a canvas of 8 x 8 patches, among clutter; a network selects 4
patches by their content, and classifies the image by them. It is evaluated by its accuracy with the top 4 patches,
unscaled, or scaled by a mask or by gates if the method trains with such.

In each, the temperature of a method is either constant or annealed: sixteen times as high for half of the steps, then
lowered by equal factors (as ``knockout.nn.Sharpen`` does).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from evals.arena.methods import METHODS, Select
from evals.learning.tasks import Task, train
from evals.learning.tasks_images import Neighbours, Patches
from evals.learning.tasks_planted import Planted
from harness.journal import Rows

HOLD, START = 0.5, 16.0  # of annealing: part of the steps before it starts, factor of the temperature


def temperature_at(progress: float, temperature: float, annealed: bool) -> float:
    """Compute the temperature after this part of the steps."""
    if not annealed:
        return temperature
    rise = max(0.0, progress - HOLD) / (1.0 - HOLD)
    return float(temperature * START ** (1.0 - rise))


TASKS: dict[str, Callable[[int, Path | None], Task]] = {  # made from a seed and the folder of the data
    "planted": Planted,
    "neighbours": Neighbours,
    "patches": Patches,
}
NEEDS_DATA = ("neighbours", "patches")


def measure(
    task: str, name: str, temperature: float, annealed: bool, steps: int, seeds: int, data: Path | None
) -> Rows:
    """Train with one setting of a method, a row per seed."""
    method = METHODS[name]

    def at(progress: float) -> Select:
        return method.at(temperature_at(progress, temperature, annealed))

    return [
        {
            "task": task, "method": name, "temperature": temperature, "annealed": annealed,
            "seed": seed, "score": train(TASKS[task](seed, data), at, steps, method.for_evaluation(temperature), seed),
        }
        for seed in range(seeds)
    ]  # fmt: skip
