"""The judge: both algorithms of the paper, for one row, loop by loop, in Python's own float64.

Nothing here is vectorised, shared with the library, or clever. Vectors and scores are blended round by round, as the
paper's pseudo-code does it; the weights of the candidates are carried along as one more vector, one-hot to start with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from knockout.boost import Adaptive, Base, Boost, Fixed, Power, Relative

Vector = list[float]


@dataclass
class Entrant:
    score: float
    vector: Vector
    weights: Vector
    leader: int


@dataclass
class Outcome:
    values: list[Vector]
    scores: Vector
    indices: list[int]
    weights: list[Vector]
    closest: float = math.inf  # the smallest difference that decided an order; rounding decides if it is tiny


def halving(values: list[Vector], scores: Vector, k: int, boost: Boost, mask: list[bool] | None = None) -> Outcome:
    """Algorithm 2: sort, pair the best with the worst, blend, halve, until k are left."""
    n = len(scores)
    active = [j for j in range(n) if (mask is None or mask[j]) and scores[j] != -math.inf]
    field = [Entrant(scores[j], values[j], [float(i == j) for i in range(n)], j) for j in active]
    rounds = 0
    while k * 2**rounds < len(field):
        rounds += 1
    closest = math.inf
    scale = 2 * boost.unit if isinstance(boost, Relative) else math.nan
    field.sort(key=lambda entrant: (-entrant.score, entrant.leader))
    softer = 1.0  # how much softer an adaptive boost makes all rounds
    if isinstance(boost, Adaptive):
        spread = without_widest([field[i].score - field[-1 - i].score for i in range(len(field) // 2)])
        unit = float(boost.unit)
        width = rounds * max(spread * (3 * unit + spread) / (unit + 3 * spread), unit / 10)
        softer = width / spread if spread else 0.0
        scale = 2 * width
    for left in range(rounds, 0, -1):
        field.sort(key=lambda entrant: (-entrant.score, entrant.leader))
        closest = min([closest] + [a.score - b.score for a, b in pairwise(field) if a.score != b.score])
        size = k * 2**left
        pairs = [(i, size - 1 - i) for i in range(size // 2)]
        gaps = [field[i].score - field[j].score for i, j in pairs if j < len(field)]
        if isinstance(boost, Relative) and gaps:
            scale = max(math.fsum(gaps) / len(gaps), scale / 2)
        if isinstance(boost, Adaptive) and gaps:
            scale = max(softer * without_widest(gaps), scale / 2)
        winners = []
        for i, j in pairs:
            if j >= len(field):
                winners.append(field[i])  # a bye
            else:
                share = pair_weight(logit(field[i].score, field[j].score, boost, scale), boost.alpha)
                winners.append(blend(field[i], field[j], share))
        field = winners
    empty = k - len(field)
    return Outcome(
        values=[entrant.vector for entrant in field] + [[0.0] * len(values[0])] * empty,
        scores=[entrant.score for entrant in field] + [0.0] * empty,
        indices=[entrant.leader for entrant in field] + [-1] * empty,
        weights=[entrant.weights for entrant in field] + [[0.0] * n] * empty,
        closest=closest,
    )


def without_widest(gaps: Vector) -> float:
    """The mean gap, without the widest eighth."""
    counted = sorted(gaps)[: len(gaps) - len(gaps) // 8]
    return math.fsum(counted) / len(counted) if counted else 0.0


def logit(a: float, b: float, boost: Boost, scale: float) -> float:
    if isinstance(boost, (Relative, Adaptive)):
        return float(boost.c) * (a - b) / scale
    if isinstance(boost, Fixed):
        return float(boost.c) * (a - b)
    if isinstance(boost, Base):
        return math.log(boost.b) * (a - b)
    assert isinstance(boost, Power)
    return float(boost.b**a - boost.b**b)


def pair_weight(t: float, alpha: float) -> float:
    if alpha == 1:
        return 1 / (1 + math.exp(-min(t, 700)))
    if alpha == 1.5:
        return 0.5 + t / 4 * math.sqrt(2 - t * t / 4) if t < 2 else 1.0
    return min(0.5 + t / 2, 1.0)


def blend(a: Entrant, b: Entrant, w: float) -> Entrant:
    def mix(x: Vector, y: Vector) -> Vector:
        return [w * p + (1 - w) * q if w < 1 else p for p, q in zip(x, y, strict=True)]

    return Entrant(w * a.score + (1 - w) * b.score, mix(a.vector, b.vector), mix(a.weights, b.weights), a.leader)


def iterative(
    values: list[Vector], scores: Vector, k: int, peaked: bool, alpha: float, mask: list[bool] | None = None
) -> Outcome:
    """Algorithm 1: k times, weigh all by the distance from the best one left, then remove it."""
    n, d = len(scores), len(values[0])
    left = [j for j in range(n) if (mask is None or mask[j]) and scores[j] != -math.inf]
    out = Outcome([], [], [], [])
    for _ in range(k):
        if not left:
            out.values.append([0.0] * d)
            out.scores.append(0.0)
            out.indices.append(-1)
            out.weights.append([0.0] * n)
            continue
        best = max(left, key=lambda j: (scores[j], -j))
        peak = {j: math.exp(-alpha * (scores[j] - scores[best]) ** 2) for j in left}
        denominator = sum(peak[j] for j in left if not (peaked and j == best)) or 1.0
        weights = [peak[j] / denominator if j in peak else 0.0 for j in range(n)]
        out.weights.append(weights)
        out.values.append([sum(weights[j] * values[j][c] for j in left) for c in range(d)])
        out.scores.append(sum(weights[j] * scores[j] for j in left))
        out.indices.append(best)
        left.remove(best)
    return out
