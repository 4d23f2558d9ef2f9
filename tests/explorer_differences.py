"""The explorer's arithmetic against the library, on drawn cases: ``python -m tests.explorer_differences --cases 2000``.

Prints the number of cases and the largest difference of each quantity. Weights, scores, masses and perplexities are
compared as they are, gradients and the masks of other methods relative to their largest entry, if that is above 1.

Rounding decides no order here: the explorer takes the steps of ops/reference/exact.py, and has the library's bits.
(Only the logarithm of a base, of ``Base`` and ``Power``, may be another in the last bit.)
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from py_mini_racer import MiniRacer
from torch import Tensor

import knockout
from knockout.boost import Adaptive, Base, Boost, Fixed, Power, Relative
from knockout.explorer import ARITHMETIC, source
from knockout.functional import Order

ASK = """
function ask(settings) {
  const made = tournament(settings);
  const every = (size, of) => Array.from({ length: size }, (_, i) => of(i));
  const { k, scores } = settings;
  const answer = {
    leaders: made.leaders, filled: made.filled, weights: made.weights, scores: made.scores, mass: made.mass,
    perplexity: made.perplexity, gradientsOfScores: every(k, made.gradientOfScore),
    gradientsOfWeights: every(k, (slot) => every(scores.length, (i) => made.gradientOfWeight(slot, i))),
    methods: Object.fromEntries(Object.entries(METHODS).map(([name, mass]) => [name, mass(settings)])),
  };
  return JSON.stringify(answer, (_, x) => (typeof x === "number" && !Number.isFinite(x) ? String(x) : x));
}
"""


@dataclass
class Case:
    scores: list[float]
    mask: list[bool] | None
    k: int
    boost: Boost
    order: Order
    hard: bool
    temperature: float = 0.1

    def settings(self) -> dict[str, Any]:
        """The case as the explorer is told it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "boost": boost_settings(self.boost)}


def boost_settings(boost: Boost) -> dict[str, Any]:
    numbers = {field.name: getattr(boost, field.name) for field in fields(boost)}  # type: ignore[arg-type]
    return {"kind": type(boost).__name__.lower(), **numbers}


def engine(*more: str) -> MiniRacer:
    """A JavaScript engine that has read the arithmetic, and more files of the explorer."""
    context = MiniRacer()
    for text in (*map(source, (*ARITHMETIC, *more)), ASK):
        context.eval(text)
    return context


def asked(context: MiniRacer, case: Case) -> dict[str, Any]:
    """What the explorer computes."""
    # json.dumps writes NaN and Infinity, which JSON has not, as JavaScript does.
    text = context.eval(f"ask({json.dumps(case.settings())})")
    assert isinstance(text, str)
    answer: dict[str, Any] = json.loads(text)
    return answer


def expected(case: Case) -> dict[str, Any]:
    """The same from the library."""
    scores = torch.tensor(case.scores, dtype=torch.float64, requires_grad=True)
    mask = None if case.mask is None else torch.tensor(case.mask)
    picked = knockout.select(scores, case.k, case.boost, mask, case.order, case.hard)
    weights = picked.weights()
    methods = knockout.methods

    def gradient(of: Tensor) -> list[float]:
        (found,) = torch.autograd.grad(of, scores, retain_graph=True)
        return found.tolist()

    return {
        "leaders": picked.indices.tolist(),
        "filled": picked.mask.tolist(),
        "weights": weights.tolist(),
        "scores": picked.scores.tolist(),
        "mass": picked.mass().tolist(),
        "perplexity": picked.perplexity().tolist(),
        "gradientsOfScores": [gradient(score) for score in picked.scores],
        "gradientsOfWeights": [[gradient(weight) for weight in slot] for slot in weights],
        "methods": {
            "iterative": methods.iterative(scores, case.k, peaked=False, mask=mask).mass().tolist(),
            "iterative, peaked": methods.iterative(scores, case.k, mask=mask).mass().tolist(),
            "lapsum": methods.lapsum(scores, case.k, case.temperature, mask=mask).mass().tolist(),
            "hard": methods.hard(scores, case.k, mask=mask).mass().tolist(),
        },
    }


def drawn(cases: int, seed: int) -> Iterator[Case]:
    """Scores with ties, outliers, near-constant, large; all boosts and alphas, masks, byes, k from 1 to n."""
    draw = random.Random(seed)
    for _ in range(cases):
        n = draw.choice([1, 2, 3, draw.randint(1, 32), draw.randint(1, 32), 32])
        width = draw.choice([1e-6, 1e-2, 1.0, 1.0, 1.0, 10.0, 1e4])
        kind = draw.choice(["normal", "uniform", "ties", "outlier", "equal"])
        center = draw.choice([0.0, 0.0, 1.0, -3.0])
        scores = {
            "normal": [center + draw.gauss(0, width) for _ in range(n)],
            "uniform": [draw.uniform(0, width) for _ in range(n)],
            "ties": [center + width * draw.randint(-2, 2) for _ in range(n)],
            "outlier": [draw.gauss(0, 1) + (100 * width if i == 0 else 0) for i in range(n)],
            "equal": [center] * n,
        }[kind]
        draw.shuffle(scores)
        if draw.random() < 0.2:
            scores = [-math.inf if draw.random() < 0.3 else score for score in scores]
        mask = [draw.random() < draw.choice([0.3, 0.7, 0.95]) for _ in range(n)] if draw.random() < 0.3 else None
        k = draw.choice([1, n, draw.randint(1, n), draw.randint(1, max(1, n // 4))])
        alpha = draw.choice([1, 1.5, 2])
        c, unit, b = (round(10 ** draw.uniform(*ends), 3) for ends in ((-1, 2), (-2, 2), (0.1, 2)))
        boosts: list[Boost] = [
            Adaptive(2, 1.5),
            Adaptive(c, unit, alpha),
            Relative(c, unit, alpha),
            Relative(c, 1.0, alpha),
            Fixed(c, alpha),
            Base(b, alpha),
            Power(b, alpha),
        ]
        order: Order = "position" if draw.random() < 0.3 else "score"
        yield Case(scores, mask, k, draw.choice(boosts), order, draw.random() < 0.2, draw.choice([0.1, 0.1, 0.01, 1.0]))


def differences(answer: dict[str, Any], truth: dict[str, Any]) -> dict[str, float]:
    """The largest difference of each quantity; infinite where leaders or what is filled are not the same."""
    found = {name: 0.0 if answer[name] == truth[name] else math.inf for name in ("leaders", "filled")}
    for name in ("weights", "scores", "mass", "perplexity"):
        found[name] = _largest(answer[name], truth[name])
    for name in ("gradientsOfScores", "gradientsOfWeights"):
        rows = list(zip(_flat_rows(answer[name]), _flat_rows(truth[name]), strict=True))
        found[name] = max(_largest(a, b) / max([1.0, *map(abs, b)]) for a, b in rows)
    for name, mass in truth["methods"].items():
        found[name] = _largest(answer["methods"][name], mass) / max([1.0, *map(abs, mass)])
    return found


def _flat_rows(nested: list[Any]) -> list[list[float]]:
    return [row for each in nested for row in _flat_rows(each)] if isinstance(nested[0], list) else [nested]


def _largest(ours: Any, theirs: Any) -> float:
    if isinstance(theirs, list):
        return max((_largest(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)
    ours = float(ours)
    return 0.0 if ours == theirs or (math.isnan(ours) and math.isnan(theirs)) else abs(ours - theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    context = engine()
    torch.set_num_threads(1)
    largest: dict[str, float] = {}
    for number, case in enumerate(drawn(options.cases, options.seed)):
        found = differences(asked(context, case), expected(case))
        if max(found.values()) > 1e-9:
            print(f"case {number}: {found}\n  {case}")
        largest = {name: max(difference, largest.get(name, 0.0)) for name, difference in found.items()}
    print(f"{options.cases} cases, largest differences:")
    for name, difference in largest.items():
        print(f"  {name:20} {difference:.2g}")


if __name__ == "__main__":
    main()
