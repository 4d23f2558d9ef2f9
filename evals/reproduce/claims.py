"""The paper's claims, each with a verdict and the measurements behind it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from typing import NamedTuple

from evals.reproduce.published import Published, published
from harness.journal import Journal, Rows

HOLDS, PARTLY, FAILS = "holds", "holds in part", "does not hold"
UNDECIDED, UNKNOWN = "undecided", "not measured"


class Claim(NamedTuple):
    """What the paper says, whether it holds here, and the measurements that show it."""

    text: str
    verdict: str
    measured: str
    figure: str = ""  # the name of the figure that shows it, if there is one


def claims(results: Journal) -> list[Claim]:
    """Test all claims, in the order of the paper."""
    return [claim(results)._replace(figure=figure) for claim, figure in CLAIMS]


def differs(theirs: Published, mean: float, std: float, batches: int) -> bool:
    """Whether two mean nCCS differ by more than 0.02 and by more than four standard errors of their difference."""
    error = math.hypot(theirs.standard_error, std / math.sqrt(batches))
    return abs(mean - theirs.nccs) > max(0.02, 4 * error)


class Agreement(NamedTuple):
    """How many of the published cells of a method were reproduced, and the largest difference."""

    reproduced: int
    cells: int
    largest_difference: float


def agreement(cells: Rows, method: str) -> Agreement:
    """Compare the nCCS of a published method with ours, over the cells that were measured."""
    theirs = published()
    rows = [row for row in cells if row["method"] == method]
    same = [not differs(theirs[method, r["n"], r["k"]], r["nccs"], r["nccs_std"], r["batches"]) for r in rows]
    differences = [abs(theirs[method, r["n"], r["k"]].nccs - r["nccs"]) for r in rows]
    return Agreement(sum(same), len(rows), max(differences, default=0.0))


def by_cell(rows: Rows, method: str, field: str) -> dict[tuple[int, int], float]:
    """Select one measurement of one method, by (n, k)."""
    return {(row["n"], row["k"]): row[field] for row in rows if row["method"] == method}


def higher_quality(results: Journal) -> Claim:
    """Test claim 1."""
    text = "Higher nCCS than the iterative baseline, in every cell."
    cells = results.of("cell")
    theirs = by_cell(cells, "iterative", "nccs")
    if not theirs:
        return Claim(text, UNKNOWN, "")
    measured, verdicts = [], []
    for method in ("halving", "Relative(4)", "Relative(16)"):
        ours = by_cell(cells, method, "nccs")
        above = sum(ours[cell] > theirs[cell] for cell in theirs)
        verdicts.append(above == len(theirs))
        measured.append(f"{method} {above} of {len(theirs)} cells, by {_least(ours, theirs):.2f} at least")
    return Claim(text, _verdict(verdicts[:1]), "; ".join(measured) + ".")


def faster_with_k(results: Journal) -> Claim:
    """Test claim 2."""
    text = "Faster as k grows, while the baseline gets slower."
    cells = results.of("cell")
    lengths = sorted({row["n"] for row in cells if row["n"] >= 1024})
    if not lengths:
        return Claim(text, UNKNOWN, "")
    measured, verdicts = [], []
    for method, falls in (("round by round", True), ("iterative", False), ("halving", True), ("Relative(4)", True)):
        seconds = by_cell(cells, method, "seconds")
        ratios = []
        for n in lengths:
            sizes = sorted(k for length, k in seconds if length == n)
            if sizes[-1] >= 8 * sizes[0]:
                ratios.append(seconds[n, sizes[-1]] / seconds[n, sizes[0]])
        if not ratios:
            return Claim(text, UNKNOWN, "")
        verdicts.append(all(ratio < 1 for ratio in ratios) if falls else all(ratio > 1 for ratio in ratios))
        measured.append(f"{method} {_factor(min(ratios))} to {_factor(max(ratios))}")
    return Claim(
        text,
        _verdict(verdicts[:3]),
        "Time of a forward pass at the largest k in units of that at the smallest, for n of 1024 and more: "
        + "; ".join(measured)
        + ". (Round by round is the paper's algorithm as printed, over vectors. Our plan over scores is faster in "
        "every cell, but the gather of k vectors is much of its time, and grows with k.)",
    )


def rounds_and_quality(results: Journal) -> Claim:
    """Test claim 3."""
    text = "Quality falls with the number of rounds at a fixed boost. (Ours: and not at a relative one.)"
    cells = results.of("cell")
    measured, falls = [], []
    for method in ("halving", "Fixed(100)", "Relative(4)", "Relative(16)"):
        means = quality_by_rounds(cells, method)
        if len(means) < 3:
            return Claim(text, UNKNOWN, "")
        first, last = min(means), max(means)
        falls.append(means[first] - means[last])
        measured.append(f"{method} {means[first]:.3f} at {first}, {means[last]:.3f} at {last}")
    fixed, relative = min(falls[:2]) > 0.05, max(falls[2:]) < 0.05
    return Claim(text, _verdict([fixed, relative]), "Mean nCCS by rounds: " + "; ".join(measured) + ".")


def quality_by_rounds(cells: Rows, method: str) -> dict[int, float]:
    """Average nCCS over the cells with each number of rounds."""
    found: dict[int, list[float]] = {}
    for row in cells:
        if row["method"] == method:
            found.setdefault(row["rounds"], []).append(row["nccs"])
    return {rounds: statistics.fmean(found[rounds]) for rounds in sorted(found)}


def number_of_rounds(results: Journal) -> Claim:
    """Test claim 4."""
    text = "log2(⌈n/k⌉) rounds."
    rows = results.of("rounds")
    if not rows:
        return Claim(text, UNKNOWN, "")
    right = sum(row["played"] == row["said"] for row in rows)
    return Claim(
        text,
        _verdict([right == len(rows)]),
        f"Rounds counted while they were played, in {len(rows)} cases, {right} of them as claimed (rounded up where "
        f"n/k is not a power of two); up to {max(row['played'] for row in rows)} rounds.",
    )


def sorting(results: Journal) -> Claim:
    """Test claim 5."""
    text = "Sorting costs next to nothing."
    rows = results.of("sorting")
    if not rows:
        return Claim(text, UNKNOWN, "")
    shares = [row["seconds_sorting"] / row["seconds"] for row in rows]
    measured = "; ".join(
        f"{share:.0%} at n = {row['n']}, batch {row['batch']}, d = {row['d']}"
        for row, share in zip(rows, shares, strict=True)
    )
    return Claim(
        text,
        HOLDS if max(shares) < 0.1 else FAILS if min(shares) >= 0.1 else PARTLY,
        f"Share of the forward time of the round-by-round operator that is spent sorting scores (next to nothing: "
        f"below 10 %): {measured}.",
    )


def pairing(results: Journal) -> Claim:
    """Test claim 6."""
    text = "Pairing best with worst converges better than random or adjacent pairs."
    cells, runs = results.of("pairing"), results.of("training")
    names = ("fold", "adjacent", "random")
    best = {name: best_runs(runs, f"pairing: {name}", 8) for name in names}
    if not cells or not all(best.values()):
        return Claim(text, UNKNOWN, "")
    quality = {name: statistics.fmean(row["nccs"] for row in cells if row["pairing"] == name) for name in names}
    early = min(row["step"] for row in best["fold"] if row["step"] > 0)
    at_first = {name: [row["recall"] for row in rows if row["step"] == early] for name, rows in best.items()}
    at_last = {name: _last(rows, "recall") for name, rows in best.items()}
    verdicts: list[bool | None] = []
    for other in ("adjacent", "random"):
        verdicts.append(quality["fold"] > quality[other])
        verdicts += [clearly_above(recall["fold"], recall[other]) for recall in (at_first, at_last)]
    return Claim(
        text,
        _verdict(verdicts),
        f"Mean nCCS over {len({(row['n'], row['k']) for row in cells})} cells and two boosts: "
        + ", ".join(f"{name} {mean:.3f}" for name, mean in quality.items())
        + f". Recall in training through Relative(4), after {early} steps: "
        + ", ".join(f"{name} {_spread(each)}" for name, each in at_first.items())
        + "; at the end: "
        + ", ".join(f"{name} {_spread(each)}" for name, each in at_last.items())
        + ".",
    )


def training(results: Journal) -> Claim:
    """Test claim 7."""
    text = "The shorter chain of dependencies trains better as a layer."
    runs = results.of("training")
    sizes = sorted({row["k"] for row in runs})
    measured: list[str] = []
    verdicts: list[bool | None] = []
    for k in sizes:
        loss = {name: last_of(runs, name, k, "loss") for name in ("halving", "Relative(4)", "iterative")}
        recall = {name: last_of(runs, name, k, "recall") for name in loss}
        if not all(loss.values()):
            return Claim(text, UNKNOWN, "")
        verdicts.append(clearly_above(loss["iterative"], loss["halving"]))
        measured.append(
            f"k = {k} (a chain of {_chain(runs, 'halving', k)} rounds, or of {k} softmaxes): "
            + ", ".join(f"{name} {_spread(loss[name])} (recall {statistics.fmean(recall[name]):.2f})" for name in loss)
        )
    if not verdicts:
        return Claim(text, UNKNOWN, "")
    return Claim(
        text,
        _verdict(verdicts),
        "Loss of a hard selection by the trained scorer, with the learning rate that is best for the method (1: the "
        "mean of all candidates; ± standard error over seeds). " + "; ".join(measured) + ".",
    )


CLAIMS: tuple[tuple[Callable[[Journal], Claim], str], ...] = (
    (higher_quality, "quality"),
    (faster_with_k, "time"),
    (rounds_and_quality, "rounds"),
    (number_of_rounds, ""),
    (sorting, ""),
    (pairing, "learning"),
    (training, "learning"),
)


def best_runs(runs: Rows, layer: str, k: int) -> Rows:
    """Select the training runs through a layer with the learning rate that ended with the lowest mean loss."""
    mine = [row for row in runs if (row["layer"], row["k"]) == (layer, k)]
    rates = sorted({row["rate"] for row in mine})
    if not rates:
        return []
    by_rate = {rate: [row for row in mine if row["rate"] == rate] for rate in rates}
    return min(by_rate.values(), key=lambda rows: statistics.fmean(_last(rows, "loss")))


def last_of(runs: Rows, layer: str, k: int, field: str) -> list[float]:
    """Return a measurement at the end of training with the best learning rate, for each seed."""
    return _last(best_runs(runs, layer, k), field)


def _last(rows: Rows, field: str) -> list[float]:
    return list({row["seed"]: row[field] for row in rows}.values())


def clearly_above(more: list[float], less: list[float]) -> bool | None:
    """Whether one mean is above another; None within two standard errors of their difference."""
    error = math.hypot(_error(more), _error(less))
    difference = statistics.fmean(more) - statistics.fmean(less)
    return None if abs(difference) <= 2 * error else difference > 0


def _error(numbers: list[float]) -> float:
    return statistics.stdev(numbers) / math.sqrt(len(numbers)) if len(numbers) > 1 else 0.0


def _spread(numbers: list[float]) -> str:
    return f"{statistics.fmean(numbers):.3f} ± {_error(numbers):.3f}"


def _chain(runs: Rows, layer: str, k: int) -> int:
    return next(int(row["chain"]) for row in runs if row["layer"] == layer and row["k"] == k)


def _least(ours: dict[tuple[int, int], float], theirs: dict[tuple[int, int], float]) -> float:
    return min(ours[cell] - theirs[cell] for cell in theirs)


def _factor(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def _verdict(verdicts: Iterable[bool | None]) -> str:
    verdicts = list(verdicts)
    if all(verdicts):
        return HOLDS
    if any(verdicts):
        return PARTLY
    return FAILS if False in verdicts else UNDECIDED
