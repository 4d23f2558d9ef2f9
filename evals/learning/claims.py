"""What the results say: which runs failed, how far ours are from the best, and what learns clearly better."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from typing import NamedTuple

from evals.arena.claims import clearly_above
from evals.learning.contestants import DEFAULTS, PLAIN, RIVALS, TUNED
from harness.journal import Journal, Rows


class Result(NamedTuple):
    """The judged runs of a contestant under a condition, in the order of their seeds."""

    setting: str
    scores: list[float]
    soft: list[float]  # empty where the score has no soft counterpart

    @property
    def mean(self) -> float:
        """The mean score with the hard choice."""
        return statistics.fmean(self.scores)


class Outcome:
    """The results of all that was measured, which may be a part of the program."""

    def __init__(self, results: Journal) -> None:
        settings = results.header["settings"]
        rows = [row for row in results.of("run") if row["seed"] in settings["seeds"]]
        found: dict[tuple[str, str], Rows] = {}
        for row in rows:
            found.setdefault((row["condition"], row["contestant"]), []).append(row)
        self.chance: dict[str, float] = {row["condition"]: row["chance"] for row in rows}
        self.results = {
            name: Result(
                mine[0]["setting"],
                [row["score"] for row in mine],
                [row["soft"] for row in mine if row["soft"] is not None],
            )
            for name, mine in found.items()
        }
        # In the order of the program, not in that of the file.
        self.conditions = [name for name in settings["conditions"] if name in self.chance]
        self.contestants = [
            name for name in (*DEFAULTS, *TUNED) if any((each, name) in found for each in self.conditions)
        ]

    def of(self, condition: str, contestant: str) -> Result | None:
        """The result of a contestant under a condition, if it was measured."""
        return self.results.get((condition, contestant))

    def best(self, condition: str, among: list[str] | None = None) -> str | None:
        """The contestant with the highest mean under a condition."""
        names = [name for name in among or self.contestants if (condition, name) in self.results]
        return max(names, key=lambda name: self.results[condition, name].mean, default=None)

    def least(self, condition: str) -> float:
        """The score below which a run failed: halfway from chance to the best mean of any contestant."""
        best, chance = self.best(condition), self.chance[condition]
        assert best is not None
        return chance + max(0.0, self.results[condition, best].mean - chance) / 2

    def failed(self, condition: str, contestant: str) -> int:
        """How many runs of a contestant failed under a condition."""
        found = self.of(condition, contestant)
        return sum(score < self.least(condition) for score in found.scores) if found else 0

    def failures(self, contestant: str) -> tuple[int, int, dict[str, int]]:
        """How many runs of a contestant failed, of how many, and how many under each condition in which any did."""
        by = {each: count for each in self.conditions if (count := self.failed(each, contestant))}
        runs = sum(len(found.scores) for (_, name), found in self.results.items() if name == contestant)
        return sum(by.values()), runs, by

    def share(self, condition: str, contestant: str) -> float | None:
        """The mean of a contestant above chance, as a share of that of the best one."""
        found, span = self.of(condition, contestant), 2 * (self.least(condition) - self.chance[condition])
        return None if found is None or span <= 0 else max(0.0, found.mean - self.chance[condition]) / span

    def clearly(self, ours: str, other: str) -> tuple[list[str], list[str]]:
        """The conditions in which ours is clearly above another contestant, and those in which it is clearly below."""
        above: list[str] = []
        below: list[str] = []
        for condition in self.conditions:
            one, two = self.of(condition, ours), self.of(condition, other)
            verdict = clearly_above(one.scores, two.scores) if one and two else None
            if verdict is not None:
                (above if verdict else below).append(condition)
        return above, below

    def cost_of_hard(self, condition: str, contestant: str) -> float | None:
        """The mean score with the soft selection, less that with the hard choice."""
        found = self.of(condition, contestant)
        return statistics.fmean(found.soft) - found.mean if found and found.soft else None

    def measured(self, names: Collection[str]) -> list[str]:
        """Those of some contestants that have results."""
        return [name for name in self.contestants if name in names]


def findings(outcome: Outcome) -> list[str]:
    """Say how often each contestant with nothing set fails, and how far ours are from the best."""
    lines = []
    for name in outcome.measured(PLAIN):
        failed, runs, by = outcome.failures(name)
        where = ", ".join(f"{condition} ({count})" for condition, count in by.items())
        shares = [share for each in outcome.conditions if (share := outcome.share(each, name)) is not None]
        lines.append(
            f"{name}: {failed} of {runs} runs failed{f', with {where}' if where else ''}. Its mean above chance is "
            f"{100 * statistics.fmean(shares or [0.0]):.0f} % of that of the best, on average over conditions."
        )
    others = []
    for name in outcome.measured(RIVALS):
        failed, runs, _ = outcome.failures(name)
        others.append(f"{name} {failed} of {runs}")
    if others:
        lines.append(f"Failed runs of the other methods at their defaults: {', '.join(others)}.")
    return lines
