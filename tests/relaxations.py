"""The other methods' formulas as their papers give them, a row at a time, in plain Python: slow and obvious.

Each takes the scores of the active candidates, and returns rows of weights (k, n) or a mask (n).
"""

from __future__ import annotations

import math
from collections.abc import Callable

Row = list[float]


def softmax(logits: Row) -> Row:
    highest = max(logits)
    powers = [math.exp(x - highest) for x in logits]
    return [x / math.fsum(powers) for x in powers]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def softsort(s: Row, k: int, temperature: float, power: int = 1) -> list[Row]:
    return [softmax([-(abs(best - x) ** power) / temperature for x in s]) for best in sorted(s, reverse=True)[:k]]


def neuralsort(s: Row, k: int, temperature: float) -> list[Row]:
    n, distance = len(s), [math.fsum(abs(x - y) for y in s) for x in s]
    return [
        softmax([((n + 1 - 2 * i) * x - d) / temperature for x, d in zip(s, distance, strict=True)])
        for i in range(1, k + 1)
    ]


def sinkhorn(s: Row, k: int, temperature: float, steps: int) -> list[Row]:
    """Rows and columns of exp(-cost / temperature) scaled in turn, the columns last."""
    largest = max(map(abs, s)) or 1.0
    s = [x / largest for x in s]  # squares of the smallest numbers vanish
    n, mean = len(s), math.fsum(s) / len(s)
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in s) / n) or 1.0
    target = [(k - j) / k for j in range(k + 1)]
    capacity = [1.0] * k + [float(n - k)]
    plan = [[math.exp(-(((x - mean) / deviation - y) ** 2) / temperature) for y in target] for x in s]

    def columns() -> None:
        for j in range(k + 1):
            total = math.fsum(row[j] for row in plan)
            for row in plan:
                row[j] *= capacity[j] / (total or 1.0)

    for i in range(n):  # the first step starts from candidates that offer what they have, whatever it costs
        mine = (s[i] - mean) / deviation
        plan[i] = [x * math.exp(mine**2 / temperature) for x in plan[i]]
    for _ in range(steps):
        columns()
        for i in range(n):
            total = math.fsum(plan[i])
            plan[i] = [x / total for x in plan[i]]
    columns()
    return [[row[j] for row in plan] for j in range(k)]


def gumbel(s: Row, k: int, temperature: float) -> list[Row]:
    left, taken = list(s), []
    for _ in range(k):
        taken.append(softmax([x / temperature for x in left]))
        left = [x + math.log(max(1 - t, 2.3e-308)) for x, t in zip(left, taken[-1], strict=True)]
    return taken


def balanced(s: Row, k: int, temperature: float, function: Callable[[float], float]) -> Row:
    """A share function of s / temperature - t, with t found by bisection."""
    if k >= len(s):
        return [1.0] * len(s)
    low, high = min(s) / temperature - 100, max(s) / temperature + 100
    for _ in range(200):
        middle = (low + high) / 2
        enough = math.fsum(function(x / temperature - middle) for x in s) > k
        low, high = (middle, high) if enough else (low, middle)
    return [function(x / temperature - low) for x in s]


def lapsum(s: Row, k: int, temperature: float) -> Row:
    return balanced(s, k, temperature, lambda x: 1 - math.exp(-x) / 2 if x > 0 else math.exp(x) / 2)


def lml(s: Row, k: int, temperature: float) -> Row:
    return balanced(s, k, temperature, sigmoid)


def projection(s: Row, k: int, temperature: float) -> Row:
    return balanced(s, k, temperature, lambda x: min(max(x, 0.0), 1.0))


def coordinate_descent(s: Row, k: int, temperature: float) -> Row:
    """Its limit."""
    return balanced(s, k, temperature, lambda x: math.exp(min(x, 0.0)))


def threshold(s: Row, k: int, temperature: float) -> Row:
    if k >= len(s):
        return [1.0] * len(s)
    best = sorted(s, reverse=True)
    return [sigmoid((x - (best[k - 1] + best[k]) / 2) / temperature) for x in s]
