"""One row of scores, k = 64. A call has a fixed price, which dominates where n is small: it is measured with n = k, and
the time of a candidate is given with and without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.testing import assert_close

import knockout
from benchmarks.registry import Benchmark, Effort, Row
from harness.timing import medians
from knockout import backends

K = 64
MIDDLE = 2**16


class Length(Benchmark[int]):
    """Time of a selection over n, the cell."""

    name = "length"
    description = "nanoseconds per candidate of knockout.select, from n = 2^10 to 2^24"
    backend = "cpu"
    seconds = 1.0
    all_cells = tuple(2**exponent for exponent in range(10, 25))
    tiny = 2**10

    def check(self, cell: int) -> None:
        scores = _scores(cell)
        found = knockout.select(scores, K, 4.0)
        with backends.force("reference"):
            expected = knockout.select(scores, K, 4.0)
        assert_close(found.indices, expected.indices)
        assert_close(found.scores, expected.scores)

    def measure(self, cell: int, effort: Effort) -> list[Row]:
        scores, few = _scores(cell), _scores(K)
        calls: dict[str, Callable[[], object]] = {
            "soft": partial(knockout.select, scores, K),
            "hard": partial(torch.topk, scores, K),
        }
        taken = medians(calls, *effort)
        # Not in turn with the others, which would leave nothing of it in the caches.
        taken |= medians({"call": partial(knockout.select, few, K)}, *effort)
        return [
            {
                "n": cell,
                "select, ns per candidate": 1e9 * taken["soft"] / cell,
                "without the price of a call": 1e9 * (taken["soft"] - taken["call"]) / cell,
                "torch.topk, ns per candidate": 1e9 * taken["hard"] / cell,
                "a call, us": 1e6 * taken["call"],
            }
        ]

    def summary(self, rows: list[Row]) -> list[str]:
        lines = []
        for name in ("select, ns per candidate", "without the price of a call"):
            middle = next((row[name] for row in rows if row["n"] == MIDDLE), None)
            if middle:
                ratios = [row[name] / middle for row in rows]
                lines.append(f"{name}: {min(ratios):.2f} to {max(ratios):.2f} times that at n = {MIDDLE}")
        return lines


def _scores(n: int) -> torch.Tensor:
    return torch.rand(1, n, generator=torch.Generator().manual_seed(n))


BENCHMARK = Length()
