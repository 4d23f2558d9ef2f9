"""The conditions: each a task, the recipe that trains it and its number of steps, the same for all contestants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from evals.learning.tasks import Recipe, Task
from evals.learning.tasks_features import HAS_SKLEARN, Features
from evals.learning.tasks_images import Neighbours, Patches
from evals.learning.tasks_planted import Candidates, Indexer, Planted
from evals.learning.tasks_tokens import Needle, Router


class Condition(NamedTuple):
    """A task, made from a seed and the folder of Fashion-MNIST, and how it is trained."""

    task: Callable[[int, Path | None], Task]
    recipe: Recipe = Recipe()
    steps: int = 200


planted = partial(Planted, batch=16, features=32)
adamw = Recipe(partial(torch.optim.AdamW, weight_decay=0.1))
sgd = partial(torch.optim.SGD, momentum=0.9)
constant = Recipe(decay=False)

# Rates, steps and sizes were chosen by seeds 0 to 2, so that lapsum, gated or straight-through learn at some setting.
CONDITIONS: dict[str, Condition] = {
    "planted": Condition(planted),
    "planted 1 of 4096": Condition(partial(planted, n=4096, k=1, batch=8, features=16), steps=800),
    "planted 16 of 2048": Condition(partial(planted, n=2048, k=16, batch=4)),
    "planted 4 of 512": Condition(partial(planted, n=512, k=4)),
    "planted 64 of 256": Condition(partial(planted, k=64, batch=8)),
    **{f"planted x {scale:g}": Condition(partial(planted, scale=scale)) for scale in (0.01, 0.1, 10.0, 100.0)},
    "planted from zero": Condition(partial(planted, start=0.0)),
    "planted bfloat16": Condition(partial(planted, dtype=torch.bfloat16)),
    "planted heavy tails": Condition(partial(planted, candidates=Candidates(freedom=2))),
    "planted duplicates": Condition(partial(planted, candidates=Candidates(copies=4))),
    "planted outlier": Condition(partial(planted, candidates=Candidates(outlier=100.0))),
    "planted AdamW": Condition(planted, adamw),
    "planted SGD": Condition(planted, Recipe(sgd, rate=1.0)),
    "planted constant rate": Condition(planted, constant),
    "planted small rate": Condition(planted, Recipe(rate=4e-3), steps=400),
    "needle": Condition(Needle),
    "needle from zero": Condition(partial(Needle, start=0.0)),
    "needle SGD": Condition(Needle, Recipe(sgd, rate=0.1)),
    "needle small rate": Condition(Needle, Recipe(rate=2e-3), steps=500),
    "indexer": Condition(Indexer),
    "router": Condition(Router),
    "digits": Condition(Features),
    "digits from zero": Condition(partial(Features, start=0.0)),
    "breast cancer": Condition(partial(Features, name="breast_cancer", k=5)),
    "neighbours": Condition(Neighbours, steps=100),
    "patches": Condition(Patches),
}
SLOW = {"sinkhorn": ("planted 1 of 4096", "planted 16 of 2048")}  # left out: it would take longer than all the rest
NEEDS_DATA = ("neighbours", "patches")
NEEDS_SKLEARN = ("digits", "digits from zero", "breast cancer")


def possible(names: Iterable[str], has_data: bool) -> tuple[str, ...]:
    """Leave out the conditions whose data are missing."""
    missing = (() if has_data else NEEDS_DATA) + (() if HAS_SKLEARN else NEEDS_SKLEARN)
    return tuple(name for name in names if name not in missing)
