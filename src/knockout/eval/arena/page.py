"""The arena's page: what was measured, who stands where, and which one to use."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from knockout.eval.arena import gradients, verdicts
from knockout.eval.arena.contestants import CONTESTANTS, NOTES
from knockout.eval.arena.cost import EVERYBODY, TIME, WITHIN
from knockout.eval.arena.fidelity import DISTRIBUTIONS
from knockout.eval.arena.learning import NEEDS_DATA
from knockout.eval.document import Block, Heading, Picture, Table, Text, write_pages
from knockout.eval.journal import Journal, Rows

TITLE = "The arena: every way to a differentiable top-k"


def document(results: Journal) -> list[Block]:
    """What the page says, in order."""
    settings = results.header["settings"]
    cells, learned = results.of("cost"), results.of("learning")
    tasks = list(dict.fromkeys(row["task"] for row in learned))
    return [
        Text(_summary(results)),
        *[Text(line) for line in findings(results)],
        Heading("Cost against fidelity, cost against learning"),
        Picture(
            "pareto",
            "Up and to the left is better. Colours are families: knockout, weights in every slot, k-hot masks, and "
            "hard choices with a gradient put in.",
        ),
        Heading("Cost"),
        Text(
            "Milliseconds for a batch of 16 rows, d = 32, uniform scores, each method at its default temperature: "
            "forward, and in brackets forward and backward, with gradients to values and scores; medians, taking turns "
            f"in one process. {NOTES} "
            f"A method that takes more than {settings['seconds']:g} s or {settings['mebibytes']:g} MiB for a call with "
            "backward is shown as such."
        ),
        _time_table(cells),
        Picture("cost", "Seconds with backward over n, a panel for each k."),
        Text("MiB that a call with backward adds to the process, gradients included."),
        _memory_table(cells),
        Picture("memory", "The same over n."),
        Heading("Fidelity"),
        Text(
            f"Of the weight that a method gives away, the share on the true top k, at its default temperature, with "
            f"n = {settings['n']}, k = {settings['k']}; in brackets the lowest and the highest over its grid of "
            "temperatures. And nCCS, how close the k rows come to the true ones. The rows of a method that gives a "
            "mask are the true ones, scaled: its nCCS is 1 by construction, and says nothing."
        ),
        _fidelity_table(results.of("fidelity")),
        Picture("fidelity", "Mass on the true top k, by how the scores are distributed."),
        Heading("Gradients"),
        Text(
            "Whether the gradient is that of what is computed: its cosine with central differences, and its distance "
            "from them over their length (for the perturbed top-k, both of 100 000 samples). How many candidates get "
            "a gradient of at least a thousandth of the largest in their row, through the k rows and through the mask, "
            "with normal scores at the default temperature. And the scales, of 1e-3 ... 1e3 times these scores, at "
            "which the method works as it is: at least half of the mass on the true top k, and a gradient for more "
            "than 1.5 k candidates. Who does not work at a scale needs another temperature there. (What a perturbed "
            "top-k reaches far from the top is the noise of its estimate, which is 0 on the average.)"
        ),
        _gradient_table(results.of("agreement"), results.of("scales")),
        Picture("scales", "What the scale of the scores does to the choice, and to its gradient."),
        Heading("Learning"),
        Text(
            f"The same data, {settings['steps']} steps and learning rate for all; {settings['seeds']} seeds; every "
            "method with the best of its declared settings, four temperatures held constant and one of them also "
            "annealed, from sixteen times as soft. Mean ± standard deviation over seeds, and the least. Planted: "
            "recall of 8 relevant ones among 256. Neighbours: accuracy of a vote of the 9 nearest. Patches: accuracy "
            "with the top 4 of 64 patches, scaled by a mask's shares or by gates where a method trains with such. A "
            "star: better than knockout, by a t-test at 5 % of the differences seed by seed (not corrected for there "
            "being many methods, nor for settings being chosen by the same seeds)."
            if settings["program"] == "full"
            else "A quick run: it shows that it runs, not who learns better."
        ),
        *[_learning_table(learned, task) for task in tasks],
        *[Text(f"Not measured without Fashion-MNIST: {name}.") for name in NEEDS_DATA if name not in tasks],
        Picture("learning", "Every method's best setting: mean, standard deviation, and every seed."),
        Heading("The boost"),
        Text(
            "Mean score, and the least over seeds, of each rule for knockout's boost under each condition; the tasks "
            "are those above, with other starts, scales, sizes and types of scores."
        ),
        _boost_table(results),
        Picture("boosts", "Mean score of each rule under each condition."),
        Text(
            "Whether gradients blow up: the length of the gradient of a row of 256 scores, k = 8, for the sum of the "
            "mean of the k rows; mean, and in brackets the largest of 16 rows."
        ),
        _stability_table(results.of("stability")),
        Heading("How it was measured"),
        Table(
            ["", ""],
            [
                [name, str(value)]
                for part in ("settings", "environment")
                for name, value in results.header[part].items()
            ],
            left=2,
        ),
    ]


def _summary(results: Journal) -> str:
    settings = results.header["settings"]
    quick = "" if settings["program"] == "full" else " A quick run; the whole is: knockout arena."
    return (
        f"{len(CONTESTANTS)} ways to select k of n with a gradient, behind one interface, on shared tasks: cost, "
        f"fidelity, gradients and learning.{quick}"
    )


def findings(results: Journal) -> list[str]:
    """The two things that must be known of ours: whether it is the fastest, and whether it learns as well."""
    lines = []
    for field, text in (("seconds", "forward"), ("seconds_with_backward", "forward and backward")):
        found = verdicts.fastest(results.of("cost"), field)
        beaten = "; ".join(f"n = {n}, k = {k}: {name}, {ratio:.2f} x" for n, k, name, ratio in found.beaten)
        lines.append(
            f"Of the {found.cells} cells with n of 1024 and more, knockout is the fastest soft method, {text}, in "
            f"{found.cells - len(found.beaten)}." + (f" It is beaten at {beaten}." if beaten else "")
        )
    rows = results.of("learning") if results.header["settings"]["program"] == "full" else []
    for task in dict.fromkeys(row["task"] for row in rows):
        order = verdicts.standings(rows, task)
        ours = next(each for each in order if each.method == verdicts.US)
        better = [f"{each.method} ({statistics.fmean(each.scores):.3f})" for each in order if each.better]
        worse = sum(each.better is False for each in order)
        lines.append(
            f"Learning, {task}: knockout {statistics.fmean(ours.scores):.3f}, place {order.index(ours) + 1} of "
            f"{len(order)}; clearly better than {worse} methods, "
            + (f"clearly beaten by {', '.join(better)}." if better else "clearly beaten by none.")
        )
    return lines


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
    rows = [[name, *(shown(by[name, n, k]) for n, k in sizes)] for name in EVERYBODY]
    return Table(["method", *(f"n = {n}, k = {k}" for n, k in sizes)], rows, left=1)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def _fidelity_table(rows: Rows) -> Table:
    table = []
    for name, contestant in CONTESTANTS.items():
        line = [name, f"{contestant.default:g}"]
        for kind in DISTRIBUTIONS:
            mine = {row["temperature"]: row for row in rows if (row["method"], row["distribution"]) == (name, kind)}
            masses = [mine[temperature]["mass"] for temperature in contestant.temperatures]
            default = mine[contestant.default]
            line.append(f"{default['mass']:.2f} ({min(masses):.2f} … {max(masses):.2f}), {default['nccs']:.2f}")
        table.append(line)
    return Table(["method", "temperature", *DISTRIBUTIONS], table, left=1)


def _gradient_table(agreement: Rows, scales: Rows) -> Table:
    table = []
    for row in agreement:
        name = row["method"]
        mine = [each for each in scales if each["method"] == name]
        at_one = next(each for each in mine if each["scale"] == 1.0)
        works = gradients.working(mine)
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
    for each in verdicts.standings(rows, task):
        spread = f" ± {statistics.stdev(each.scores):.3f}" if len(each.scores) > 1 else ""
        mean = f"{statistics.fmean(each.scores):.3f}{spread}{' *' if each.better else ''}"
        table.append([each.method, CONTESTANTS[each.method].family, mean, f"{min(each.scores):.3f}", each.setting])
    return Table([task, "family", "score", "least", "temperature"], table, left=2)


def _boost_table(results: Journal) -> Table:
    found = verdicts.by_rule(results)
    conditions = list(dict.fromkeys(condition for by in found.values() for condition in by))
    rows = []
    for rule, by in found.items():
        every = [score for each in by.values() for score in each]
        means = [f"{statistics.fmean(by[c]):.3f} ({min(by[c]):.2f})" if c in by else "" for c in conditions]
        rows.append([rule, *means, f"{statistics.fmean(every):.3f}"])
    return Table(["rule", *conditions, "mean"], rows, left=1)


def _stability_table(rows: Rows) -> Table:
    fields = list(dict.fromkeys(row["field"] for row in rows))
    by = {(row["rule"], row["field"]): f"{row['mean']:.2g} ({row['largest']:.2g})" for row in rows}
    rules = dict.fromkeys(row["rule"] for row in rows)
    return Table(["rule", *fields], [[rule, *(by[rule, field] for field in fields)] for rule in rules], left=1)


def write_page(results: Journal, folder: Path) -> Path:
    """``arena.html`` and ``arena.md`` beside the pictures; the path of the first."""
    return write_pages(TITLE, document(results), folder, "arena")
