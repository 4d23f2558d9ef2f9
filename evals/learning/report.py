"""The report of the learning program: the findings, the figure, and all results in tables."""

from __future__ import annotations

from evals.learning.claims import Outcome, Result, findings
from evals.learning.conditions import NEEDS_DATA, NEEDS_SKLEARN
from evals.learning.contestants import OURS, PLAIN, RIVALS, TUNED
from harness.documents import Block, Figure, Heading, Table, Text, markdown, provenance_table
from harness.journal import Journal, Rows

BOLD = "\ue000"  # stands for two stars until the end: the tables of a document escape stars


def report(results: Journal) -> str:
    """Write the report, in Markdown."""
    title = "Learning: does a scorer learn through a method with nothing tuned?"
    return markdown(title, blocks(results)).replace(BOLD, "**")


def blocks(results: Journal) -> list[Block]:
    """Write the parts of the report."""
    outcome, settings = Outcome(results), results.header["settings"]
    ours, rivals, tuned = (outcome.measured(names) for names in (OURS, RIVALS, TUNED))
    return [
        *([] if settings["program"] == "full" else [Text("A quick run: it shows that everything runs, and no more.")]),
        *[Text(line) for line in findings(outcome)],
        *_left_out(settings["conditions"], NEEDS_DATA, "Fashion-MNIST", settings["program"]),
        *_left_out(settings["conditions"], NEEDS_SKLEARN, "scikit-learn", settings["program"]),
        Figure("shares", "Mean score above chance, as a share of the best contestant's under each condition."),
        Heading("Ours"),
        Text(
            "Mean score with the hard choice, and in brackets the lowest over seeds. Bold: some runs failed, that is, "
            "scored less than halfway from chance to the best mean of any contestant under the condition. Function and "
            "layer have nothing set; the others are rules for the boost."
        ),
        _scores_table(outcome, ours),
        Heading("Other methods at their defaults"),
        _scores_table(outcome, rivals),
        Heading("Other methods, tuned"),
        Text(
            "Each with the best of its settings, chosen for each condition by other seeds: four temperatures, and one "
            "annealed, from sixteen times as high. Sinkhorn is not tuned."
        ),
        _scores_table(outcome, tuned, with_setting=True),
        Heading("The distance to the best"),
        Text("The best of all other methods under each condition, and how far ours are above it."),
        _distance_table(outcome, rivals + tuned),
        Heading("Ours against other methods at their defaults"),
        Text(
            "The number of conditions in which ours is clearly above and clearly below, by a paired t-test over seeds "
            "at 5 % (not corrected for their number), and the latter by name."
        ),
        _duel_table(outcome, rivals),
        Heading("Failed runs"),
        _failure_table(outcome),
        Heading("The cost of choosing hard"),
        Text("Mean score with the soft selection, in evaluation mode, less that with the hard choice."),
        _hardness_table(outcome, ours),
        Heading("Gradients"),
        Text(
            "The length of the gradient of the sum of the mean of k = 8 value rows, for rows of 256 scores of several "
            "kinds; mean, and in brackets the largest of 16 rows."
        ),
        _stability_table(results.of("stability")),
        Heading("How it was measured"),
        provenance_table(results.header),
    ]


def _left_out(measured: list[str], needing: tuple[str, ...], what: str, program: str) -> list[Block]:
    missing = [name for name in needing if name not in measured and program == "full"]
    return [Text(f"Not measured without {what}: {', '.join(missing)}.")] if missing else []


def _scores_table(outcome: Outcome, names: list[str], with_setting: bool = False) -> Table:
    def cell(condition: str, name: str) -> str:
        found = outcome.of(condition, name)
        if found is None:
            return ""
        text = _score(found) + (f" at {found.setting}" if with_setting else "")
        return f"{BOLD}{text}{BOLD}" if outcome.failed(condition, name) else text

    rows = [[each, *(cell(each, name) for name in names)] for each in outcome.conditions]
    return Table(["condition", *names], rows, left=1)


def _score(found: Result) -> str:
    return f"{found.mean:.3f} ({min(found.scores):.2f})"


def _distance_table(outcome: Outcome, others: list[str]) -> Table:
    plain, rows = outcome.measured(PLAIN), []
    for condition in outcome.conditions:
        best = outcome.best(condition, others) if others else None
        found = outcome.of(condition, best) if best else None
        if best is None or found is None:
            continue
        line = [condition, best, found.setting, _score(found)]
        for name in plain:
            mine = outcome.of(condition, name)
            line.append(f"{mine.mean - found.mean:+.3f}" if mine else "")
        rows.append(line)
    return Table(["condition", "best", "setting", "score", *plain], rows, left=3)


def _duel_table(outcome: Outcome, rivals: list[str]) -> Table:
    rows = []
    for mine in outcome.measured(PLAIN):
        for name in rivals:
            above, below = outcome.clearly(mine, name)
            rows.append([mine, name, str(len(above)), str(len(below)), ", ".join(below)])
    return Table(["ours", "other", "above", "below", "below in"], rows, left=2)


def _failure_table(outcome: Outcome) -> Table:
    rows = []
    for name in outcome.contestants:
        failed, runs, by = outcome.failures(name)
        rows.append([name, f"{failed} of {runs}", ", ".join(f"{each} ({count})" for each, count in by.items())])
    return Table(["contestant", "failed", "in"], rows, left=1)


def _hardness_table(outcome: Outcome, names: list[str]) -> Table:
    rows = []
    for condition in outcome.conditions:
        found = [outcome.cost_of_hard(condition, name) for name in names]
        if any(each is not None for each in found):
            rows.append([condition, *("" if each is None else f"{each:+.3f}" for each in found)])
    return Table(["condition", *names], rows, left=1)


def _stability_table(rows: Rows) -> Table:
    fields = list(dict.fromkeys(row["field"] for row in rows))
    by = {(row["contestant"], row["field"]): f"{row['mean']:.2g} ({row['largest']:.2g})" for row in rows}
    names = dict.fromkeys(row["contestant"] for row in rows)
    return Table(["", *fields], [[name, *(by[name, field] for field in fields)] for name in names], left=1)
