"""The whole run of ``python -m evals arena``: measure what is missing, draw, report, summarize."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from evals.arena.claims import findings
from evals.arena.experiments import Settings, is_complete, studies, timings
from evals.arena.figures import FIGURES
from evals.arena.report import report
from harness.environment import environment
from harness.figures import draw_all
from harness.journal import write_file
from harness.runner import check_results, open_results, run_experiments

REPORT = "report.md"
OUTPUTS = (REPORT, *(f"{name}.png" for name in FIGURES))


def arena(
    settings: Settings, data: Path | None, out: Path, resume: bool, workers: int, screen: Console, notes: Console
) -> Path:
    """Run everything and return the path of the report. Progress goes to ``notes``, the findings to ``screen``."""
    alone, in_parallel, here = timings(settings), studies(settings, data), environment("evals")
    results = open_results(out, asdict(settings), here, resume, OUTPUTS)
    check_results(results, [*alone, *in_parallel], is_complete, here, notes)
    run_experiments(alone, results, notes)
    run_experiments(in_parallel, results, notes, workers)
    draw_all(FIGURES, results, out)
    write_file(out / REPORT, report(results))
    for line in findings(results):
        screen.print(line, highlight=False, markup=False)
    return out / REPORT
