"""The report: every claim with its verdict, the figures, and all measurements in tables."""

from __future__ import annotations

import statistics

from evals.reproduce.claims import agreement, best_runs, claims, differs, last_of
from evals.reproduce.experiments import TRAINED
from evals.reproduce.figures import label
from evals.reproduce.grid import METHODS
from evals.reproduce.published import published
from harness.documents import Block, Figure, Heading, Table, Text, markdown, provenance_table
from harness.journal import Journal, Rows

CITATION = (
    'M. Pietruszka, Ł. Borchmann, F. Graliński: "Successive Halving Top-k Operator", AAAI 2021, arXiv 2010.15552; '
    "published results from the log that came with the authors' code (repository applicaai/successive-halving-topk)"
)


def report(results: Journal) -> str:
    """Write the report, in Markdown."""
    return markdown("The paper, reproduced", blocks(results))


def blocks(results: Journal) -> list[Block]:
    """Write the parts of the report."""
    cells = results.of("cell")
    return [
        Text(_summary(results, cells)),
        Heading("The paper's claims"),
        Table(
            ["", "claim", "verdict", "measured", "figure"],
            [
                [str(i), claim.text, claim.verdict, claim.measured, claim.figure]
                for i, claim in enumerate(claims(results), 1)
            ],
            left=5,
        ),
        Heading("The paper's figures"),
        Figure(
            "time",
            "Time of a forward pass over n, a panel for each k. The published times (grey) were measured on another "
            "machine, a GPU, with a loop over the batch: compare their shape, not their height.",
        ),
        Figure("quality", "nCCS over n, a panel for each k; the published means in grey."),
        Heading("Beyond the paper"),
        Figure("backward", "Time of a forward and a backward pass, with gradients to values and scores."),
        Figure("rounds", "Quality over the number of rounds: it falls at a fixed boost, and not at a relative one."),
        Figure(
            "learning",
            "Recall of the relevant candidates by a hard selection, while a linear scorer is trained through each "
            "method. On the right: through Relative(4), by pairing.",
        ),
        Heading("Quality, cell by cell"),
        Text(
            "Mean nCCS (1 is perfect). A star: it differs from the published one by more than 0.02 and by more than "
            "four standard errors of the difference."
        ),
        _quality_table(cells),
        Heading("Time, cell by cell"),
        Text("Milliseconds per batch of 16 rows, d = 32: forward, and in brackets forward and backward. Medians."),
        _time_table(cells),
        Heading("Training"),
        Text(
            "256 candidates, k of them relevant; a linear scorer, Adam, with the learning rate that is best for each "
            "method. Recall and loss of a hard selection by the trained scorer, mean (and lowest recall) over seeds. "
            "Chain: dependent steps between a score and the output. The paper's halving expects scores from 0 to 1, so "
            "it gets their sigmoid; all others get the scores themselves."
        ),
        _training_table(results.of("training")),
        Heading("Pairing"),
        Text("Mean nCCS by pairing: the paper's fold of the sorted field, adjacent pairs, random pairs."),
        _pairing_table(results.of("pairing")),
        Heading("How it was measured"),
        provenance_table(results.header),
        Text(f"Source of the published results: {CITATION}."),
    ]


def _summary(results: Journal, cells: Rows) -> str:
    settings = results.header["settings"]
    compared = {method: agreement(cells, method) for method in ("halving", "iterative")}
    quick = (
        ""
        if settings["grid"] == "paper"
        else " A quick run, with few seeds; for all cells: python -m evals reproduce --grid paper."
    )
    return (
        f"The evaluation of the Successive Halving Top-k operator, measured again: {len(cells) // len(METHODS)} cells "
        f"of n and k, up to {settings['batches']} batches of 16 rows in each, values ~ U[-1, 1], scores ~ U[0, 1], "
        "d = 32. "
        + " ".join(
            f"Of the published nCCS of the {method} method, {each.reproduced} of {each.cells} were reproduced (within "
            f"0.02, or four standard errors); the largest difference is {each.largest_difference:.3f}."
            for method, each in compared.items()
        )
        + quick
    )


def _quality_table(cells: Rows) -> Table:
    theirs, ours = published(), {(row["method"], row["n"], row["k"]): row for row in cells}
    rows = []
    for n, k in dict.fromkeys((row["n"], row["k"]) for row in cells):
        line = [str(n), str(k), str(ours["halving", n, k]["rounds"])]
        for method in ("halving", "iterative"):
            known, found = theirs[method, n, k], ours[method, n, k]
            star = "*" if differs(known, found["nccs"], found["nccs_std"], found["batches"]) else ""
            line += [f"{known.nccs:.3f}", f"{found['nccs']:.3f}", f"{found['nccs'] - known.nccs:+.3f}{star}"]
        rows.append(
            line + [f"{ours[method, n, k]['nccs']:.3f}" for method in ("Relative(4)", "Relative(16)", "Fixed(100)")]
        )
    header = [
        "n",
        "k",
        "rounds",
        "halving, published",
        "here",
        "difference",
        "iterative, published",
        "here",
        "difference",
    ]
    return Table([*header, "Relative(4)", "Relative(16)", "Fixed(100)"], rows)


def _time_table(cells: Rows) -> Table:
    ours = {(row["method"], row["n"], row["k"]): row for row in cells}
    rows = [
        [str(n), str(k)]
        + [
            f"{1e3 * ours[m, n, k]['seconds']:.3g} ({1e3 * ours[m, n, k]['seconds_with_backward']:.3g})"
            for m in METHODS
        ]
        for n, k in dict.fromkeys((row["n"], row["k"]) for row in cells)
    ]
    return Table(["n", "k", *map(label, METHODS)], rows)


def _training_table(runs: Rows) -> Table:
    rows = []
    for name, k in TRAINED:
        recall, loss = last_of(runs, name, k, "recall"), last_of(runs, name, k, "loss")
        if recall:
            best = best_runs(runs, name, k)[0]
            means = [f"{statistics.fmean(recall):.3f} ({min(recall):.3f})", f"{statistics.fmean(loss):.3f}"]
            rows.append([label(name), str(k), str(best["chain"]), str(best["rate"]), *means, str(len(recall))])
    return Table(["layer", "k", "chain", "rate", "recall", "loss", "seeds"], rows, left=1)


def _pairing_table(found: Rows) -> Table:
    names = list(dict.fromkeys(row["pairing"] for row in found))
    by = {(row["n"], row["k"], row["boost"], row["pairing"]): row["nccs"] for row in found}
    rows = [
        [boost, str(n), str(k), *(f"{by[n, k, boost, name]:.3f}" for name in names)]
        for n, k, boost in dict.fromkeys((row["n"], row["k"], row["boost"]) for row in found)
    ]
    return Table(["boost", "n", "k", *names], rows, left=1)
