"""The report of the arena: the findings, the figures, and all measurements in tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from evals.arena.claims import findings, standings
from evals.arena.cost import MEASURED, TIME, WITHIN
from evals.arena.fidelity import DISTRIBUTIONS
from evals.arena.gradients import working_scales
from evals.arena.learning import NEEDS_DATA
from evals.arena.methods import METHODS, NOTES
from harness.documents import Block, Figure, Heading, Table, Text, markdown, provenance_table
from harness.journal import Journal, Rows


def report(results: Journal) -> str:
    """Write the report, in Markdown."""
    return markdown("The arena: methods for a differentiable top-k, compared", blocks(results))


def blocks(results: Journal) -> list[Block]:
    """Write the parts of the report."""
    settings = results.header["settings"]
    cells, learned = results.of("cost"), results.of("learning")
    tasks = list(dict.fromkeys(row["task"] for row in learned))
    return [
        Text(_summary(results)),
        *[Text(line) for line in findings(results)],
        Heading("Cost against fidelity, cost against learning"),
        Figure(
            "pareto",
            "Up and to the left is better. Colors are families: knockout, weights in every slot, k-hot masks, and "
            "hard choices with a substitute gradient.",
        ),
        Heading("Cost"),
        Text(
            "Milliseconds for a batch of 16 rows, d = 32, uniform scores, each method at its default temperature: "
            "forward, and in brackets forward and backward, with gradients to values and scores; medians of "
            f"interleaved calls in one process. {NOTES} "
            f"A method that takes more than {settings['seconds']:g} s or {settings['mebibytes']:g} MiB for a call with "
            "backward is shown as too slow or too large."
        ),
        _time_table(cells),
        Figure("cost", "Seconds, forward and backward, over n, a panel for each k."),
        Text("MiB that a call with backward adds to the process, including gradients."),
        _memory_table(cells),
        Figure("memory", "MiB of a call with backward over n, a panel for each k."),
        Heading("Fidelity"),
        Text(
            f"Mass: the share of all weight that the true top k get, at the default temperature of a method, with n = "
            f"{settings['n']}, k = {settings['k']}; in brackets the lowest and the highest over its temperatures. "
            "After the comma nCCS: how close the k value rows come to the true ones. Methods that compute a mask "
            "return the true rows, scaled: their nCCS is 1 by construction, and says nothing."
        ),
        _fidelity_table(results.of("fidelity")),
        Figure("fidelity", "Mass on the true top k, by the distribution of the scores."),
        Heading("Gradients"),
        Text(
            "Cosine and distance: whether the gradient is right, by its cosine with central differences, and its "
            "distance from them relative to their length (for the perturbed top-k, both of 100 000 samples). Reached: "
            "the share of candidates that get a gradient of at least a thousandth of the largest in their row, through "
            "the k value rows and through the mask, with normal scores at the default temperature. Works at scales: "
            "the factors, of 1e-3 ... 1e3, of these scores at which at least half of the mass is on the true top k, "
            "and at least 1.5 k candidates get a gradient. At other scales the method needs another temperature. (The "
            "gradient of a perturbed top-k far from the top is noise of its estimate, with mean 0.)"
        ),
        _gradient_table(results.of("agreement"), results.of("scales")),
        Figure(
            "scales", "Mass on the true top k, and candidates with a usable gradient, over the scale of the scores."
        ),
        Heading("Learning"),
        Text(
            f"The same data, {settings['steps']} steps and learning rate for all; {settings['seeds']} seeds; every "
            "method with the best of its settings: four constant temperatures, and one of them also annealed, from "
            "sixteen times as high. Mean ± standard deviation over seeds, and the lowest. Planted: recall of 8 "
            "relevant candidates among 256. Neighbours: accuracy of a vote of the 9 nearest. Patches: accuracy with "
            "the top 4 of 64 patches, scaled by a mask or by gates where a method trains with such. A star: better "
            "than knockout, by a paired t-test over seeds at 5 % (not corrected for the number of methods, nor for "
            "settings that are chosen by the same seeds)."
            if settings["program"] == "full"
            else "A quick run: it shows that everything runs, not which method learns better."
        ),
        *[_learning_table(learned, task) for task in tasks],
        *[Text(f"Not measured without Fashion-MNIST: {name}.") for name in NEEDS_DATA if name not in tasks],
        Figure("learning", "Every method's best setting: mean, standard deviation, and every seed."),
        Heading("How it was measured"),
        provenance_table(results.header),
    ]


def _summary(results: Journal) -> str:
    settings = results.header["settings"]
    quick = "" if settings["program"] == "full" else " A quick run; for all of it: python -m evals arena."
    return (
        f"{len(METHODS)} methods that select k of n with a gradient, on shared tasks: cost, fidelity, gradients and "
        f"learning.{quick}"
    )


def _time_table(cells: Rows) -> Table:
    def shown(row: dict[str, Any]) -> str:
        if row["status"] != WITHIN:
            return "too slow" if row["status"] == TIME else "too large"
        return f"{_ms(row['seconds'])} ({_ms(row['seconds_with_backward'])})"

    return _by_cell(cells, shown)


def _memory_table(cells: Rows) -> Table:
    def shown(row: dict[str, Any]) -> str:
        used = row["mebibytes"]
        return f"{used:.1f}" if isinstance(used, float) else "too slow" if row["status"] == TIME else "too large"

    return _by_cell(cells, shown)


def _by_cell(cells: Rows, shown: Callable[[dict[str, Any]], str]) -> Table:
    sizes = list(dict.fromkeys((row["n"], row["k"]) for row in cells))
    by = {(row["method"], row["n"], row["k"]): row for row in cells}
    rows = [[name, *(shown(by[name, n, k]) for n, k in sizes)] for name in MEASURED]
    return Table(["method", *(f"n = {n}, k = {k}" for n, k in sizes)], rows, left=1)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def _fidelity_table(rows: Rows) -> Table:
    table = []
    for name, method in METHODS.items():
        line = [name, f"{method.default:g}"]
        for kind in DISTRIBUTIONS:
            mine = {row["temperature"]: row for row in rows if (row["method"], row["distribution"]) == (name, kind)}
            masses = [mine[temperature]["mass"] for temperature in method.temperatures]
            default = mine[method.default]
            line.append(f"{default['mass']:.2f} ({min(masses):.2f} … {max(masses):.2f}), {default['nccs']:.2f}")
        table.append(line)
    return Table(["method", "temperature", *DISTRIBUTIONS], table, left=1)


def _gradient_table(agreement: Rows, scales: Rows) -> Table:
    table = []
    for row in agreement:
        name = row["method"]
        mine = [each for each in scales if each["method"] == name]
        at_one = next(each for each in mine if each["scale"] == 1.0)
        works = working_scales(mine)
        span = ", ".join(f"{scale:g}" for scale in works) or "none"
        far = "" if row["distance"] is None else f"{row['distance']:.1e}"
        shares = [f"{100 * at_one[part]:.1f} %" for part in ("rows", "mask")]
        table.append([name, f"{row['cosine']:.3f}", far, *shares, span, f"{len(works)} of {len(mine)}"])
    return Table(
        ["method", "cosine", "distance", "reached, by rows", "by the mask", "works at scales", "of those tried"],
        table,
        left=1,
    )


def _learning_table(rows: Rows, task: str) -> Table:
    table = []
    for each in standings(rows, task):
        spread = f" ± {statistics.stdev(each.scores):.3f}" if len(each.scores) > 1 else ""
        mean = f"{statistics.fmean(each.scores):.3f}{spread}{' *' if each.better else ''}"
        table.append([each.method, METHODS[each.method].family, mean, f"{min(each.scores):.3f}", each.setting])
    return Table([task, "family", "score", "lowest", "temperature"], table, left=2)
