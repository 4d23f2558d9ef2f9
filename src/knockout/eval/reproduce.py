"""The run behind ``knockout reproduce``: measure what is missing, then draw, report and sum up."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from knockout.eval.claims import agreement, by_cell, claims
from knockout.eval.environment import environment
from knockout.eval.experiments import PANELS, Settings, are_whole, experiments
from knockout.eval.figures import FIGURES, draw_all
from knockout.eval.journal import Journal, JournalError, write
from knockout.eval.published import published
from knockout.eval.report import write_report
from knockout.eval.works import check, measure

RESULTS = "results.jsonl"
OUTPUTS = ("results.csv", "results.json", "report.md", "report.html", *(f"{name}.png" for name in FIGURES))


def reproduce(settings: Settings, out: Path, resume: bool, screen: Console, notes: Console) -> Path:
    """Everything; returns the path of the report. Progress goes to ``notes``, the summary to ``screen``."""
    work, here = experiments(settings), environment()
    strange = [] if (out / RESULTS).exists() else [out / name for name in OUTPUTS if (out / name).exists()]
    if strange:
        raise JournalError(f"{strange[0]} exists, and would be overwritten: pass another --out, or remove it")
    results = Journal.open(out / RESULTS, {"settings": asdict(settings), "environment": here}, resume)
    check(results, work, are_whole, here, notes)
    measure(work, results, notes)
    export(results, out)
    draw_all(FIGURES, results, out)
    report = write_report(results, out)
    summarise(results, screen)
    return report


def export(results: Journal, out: Path) -> None:
    """The results as tables: the cells as CSV, all of it with what it was measured by as JSON."""
    kinds = dict.fromkeys(work.split()[0] for work in results.rows)
    cells, file = results.of("cell"), io.StringIO()
    table = csv.DictWriter(file, fieldnames=list(cells[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(cells)
    write(out / "results.csv", file.getvalue())
    everything = {**results.header, **{kind: results.of(kind) for kind in kinds}}
    write(out / "results.json", json.dumps(everything, indent=1) + "\n")


def summarise(results: Journal, screen: Console) -> None:
    """A table of the panels, and a line a claim."""
    cells, theirs = results.of("cell"), published()
    quality = {m: by_cell(cells, m, "nccs") for m in ("halving", "iterative", "Relative(4)", "Relative(16)")}
    seconds = {m: by_cell(cells, m, "seconds") for m in ("hard", "Relative(4)")}
    table = Table(
        title="nCCS (1 is perfect), and milliseconds a batch of 16, forward",
        caption="published: Pietruszka, Borchmann, Graliński, AAAI 2021, arXiv 2010.15552",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
    )
    headings = ("n", "k", "halving\npubl.", "\nhere", "iterative\npubl.", "\nhere", "Rel.\n(4)", "Rel.\n(16)")
    for heading in (*headings, "ms\nhard", "ms\nRel.(4)"):
        table.add_column(heading, justify="right", no_wrap=True)
    longest = {k: max(n for n, size in quality["halving"] if size == k) for _, k in quality["halving"]}
    for k in (k for k in PANELS if k in longest):
        cell = longest[k], k
        row = [str(cell[0]), str(k)]
        for method in ("halving", "iterative"):
            row += [f"{theirs[method, *cell].nccs:.3f}", f"{quality[method][cell]:.3f}"]
        row += [f"{quality[method][cell]:.3f}" for method in ("Relative(4)", "Relative(16)")]
        table.add_row(*row, *(f"{1e3 * each[cell]:.3g}" for each in seconds.values()))
    screen.print(table)
    for number, claim in enumerate(claims(results), 1):
        screen.print(f"{number}. {claim.text} [bold]{claim.verdict}[/bold]", highlight=False)
    met = [agreement(cells, method) for method in ("halving", "iterative")]
    screen.print(
        f"{sum(each.met for each in met)} of {sum(each.of for each in met)} published figures met "
        f"(within 0.02, or four standard errors).",
        highlight=False,
    )
