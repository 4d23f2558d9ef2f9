"""The whole run of ``python -m evals gpu``: compile what is missing, report, summarize."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import triton
from rich.console import Console

from evals.gpu.experiments import Settings, experiments, is_complete
from evals.gpu.report import findings, report
from harness.environment import environment
from harness.journal import write_file
from harness.runner import check_results, open_results, run_experiments

REPORT = "report.md"


def gpu(settings: Settings, out: Path, resume: bool, workers: int, screen: Console, notes: Console) -> Path:
    """Run everything and return the path of the report. Progress goes to ``notes``, the findings to ``screen``."""
    listed, here = experiments(settings), {**environment("evals"), "triton": triton.__version__}
    results = open_results(out, asdict(settings), here, resume, (REPORT,))
    check_results(results, listed, is_complete, here, notes)
    run_experiments(listed, results, notes, workers)
    write_file(out / REPORT, report(results))
    for line in findings(results):
        screen.print(line, highlight=False, markup=False)
    return out / REPORT
