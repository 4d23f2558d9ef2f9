"""The whole run of ``python -m evals reproduce``: measure what is missing, draw, report, summarize."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from evals.reproduce.claims import agreement, by_cell, claims
from evals.reproduce.experiments import PANELS, Settings, experiments, is_complete
from evals.reproduce.figures import FIGURES
from evals.reproduce.published import published
from evals.reproduce.report import report
from harness.environment import environment
from harness.figures import draw_all
from harness.journal import Journal, write_file
from harness.runner import check_results, open_results, run_experiments

REPORT = "report.md"
OUTPUTS = (REPORT, *(f"{name}.png" for name in FIGURES))


def reproduce(settings: Settings, out: Path, resume: bool, screen: Console, notes: Console) -> Path:
    """Run everything and return the path of the report. Progress goes to ``notes``, the summary to ``screen``."""
    listed, here = experiments(settings), environment("evals")
    results = open_results(out, asdict(settings), here, resume, OUTPUTS)
    check_results(results, listed, is_complete, here, notes)
    run_experiments(listed, results, notes)
    draw_all(FIGURES, results, out)
    write_file(out / REPORT, report(results))
    summarize(results, screen)
    return out / REPORT


def summarize(results: Journal, screen: Console) -> None:
    """Print a table with the largest n for each k of the figures, and the verdict on each claim."""
    cells, theirs = results.of("cell"), published()
    quality = {m: by_cell(cells, m, "nccs") for m in ("halving", "iterative", "Relative(4)", "Relative(16)")}
    seconds = {m: by_cell(cells, m, "seconds") for m in ("hard", "Relative(4)")}
    table = Table(
        title="nCCS (1 is perfect), and milliseconds per batch of 16, forward",
        caption="published: Pietruszka, Borchmann, Graliński, AAAI 2021, arXiv 2010.15552",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
    )
    headings = ("n", "k", "halving\npubl.", "\nhere", "iterative\npubl.", "\nhere", "Rel.\n(4)", "Rel.\n(16)")
    for heading in (*headings, "ms\nhard", "ms\nRel.(4)"):
        table.add_column(heading, justify="right", no_wrap=True)
    largest = {k: max(n for n, size in quality["halving"] if size == k) for _, k in quality["halving"]}
    for k in (k for k in PANELS if k in largest):
        cell = largest[k], k
        row = [str(cell[0]), str(k)]
        for method in ("halving", "iterative"):
            row += [f"{theirs[method, *cell].nccs:.3f}", f"{quality[method][cell]:.3f}"]
        row += [f"{quality[method][cell]:.3f}" for method in ("Relative(4)", "Relative(16)")]
        table.add_row(*row, *(f"{1e3 * each[cell]:.3g}" for each in seconds.values()))
    screen.print(table)
    for number, claim in enumerate(claims(results), 1):
        screen.print(f"{number}. {claim.text} [bold]{claim.verdict}[/bold]", highlight=False)
    compared = [agreement(cells, method) for method in ("halving", "iterative")]
    screen.print(
        f"{sum(each.reproduced for each in compared)} of {sum(each.cells for each in compared)} published results "
        f"reproduced (within 0.02, or four standard errors).",
        highlight=False,
    )
