"""The whole run of ``python -m evals learning``: measure what is missing, draw, report, summarize."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from evals.learning.claims import Outcome, findings
from evals.learning.experiments import Settings, experiments, is_complete, is_wanted
from evals.learning.figures import FIGURES
from evals.learning.report import report
from harness.environment import environment
from harness.figures import draw_all
from harness.journal import write_file
from harness.runner import check_results, open_results, run_experiments

REPORT = "report.md"
OUTPUTS = (REPORT, *(f"{name}.png" for name in FIGURES))


def learning(
    settings: Settings, data: Path | None, out: Path, resume: bool, workers: int, only: Collection[str],
    contestants: Collection[str], screen: Console, notes: Console,
) -> Path:  # fmt: skip
    """Run everything, or ``only`` some conditions and contestants if there are any; return the path of the report.

    These two are no part of the settings: what is left out now can be added later, with the same results file.
    """
    listed, here = experiments(settings, data), environment("evals")
    results = open_results(out, asdict(settings), here, resume, OUTPUTS)
    check_results(results, listed, is_complete, here, notes)
    wanted = [each for each in listed if is_wanted(each.name, only, contestants)]
    run_experiments(wanted, results, notes, workers)
    draw_all(FIGURES, results, out)
    write_file(out / REPORT, report(results))
    for line in findings(Outcome(results)):
        screen.print(line, highlight=False, markup=False)
    return out / REPORT
