"""The run behind ``knockout arena``: measure what is missing, then draw, write the page and sum up."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from knockout.eval.arena.page import findings, write_page
from knockout.eval.arena.pictures import PICTURES
from knockout.eval.arena.program import Settings, are_whole, studies, timing
from knockout.eval.environment import environment
from knockout.eval.figures import draw_all
from knockout.eval.journal import Journal, JournalError, write
from knockout.eval.works import check, measure

RESULTS = "results.jsonl"
OUTPUTS = ("results.json", "arena.md", "arena.html", *(f"{name}.png" for name in PICTURES))


def arena(
    settings: Settings, data: Path | None, out: Path, resume: bool, workers: int, screen: Console, notes: Console
) -> Path:
    """Everything; returns the path of the page. Progress goes to ``notes``, what was found to ``screen``."""
    alone, together, here = timing(settings), studies(settings, data), environment()
    strange = [] if (out / RESULTS).exists() else [out / name for name in OUTPUTS if (out / name).exists()]
    if strange:
        raise JournalError(f"{strange[0]} exists, and would be overwritten: pass another --out, or remove it")
    results = Journal.open(out / RESULTS, {"settings": asdict(settings), "environment": here}, resume)
    check(results, [*alone, *together], are_whole, here, notes)
    measure(alone, results, notes)
    measure(together, results, notes, workers)
    kinds = dict.fromkeys(work.split()[0] for work in results.rows)
    everything = {**results.header, **{kind: results.of(kind) for kind in kinds}}
    write(out / "results.json", json.dumps(everything, indent=1) + "\n")
    draw_all(PICTURES, results, out)
    page = write_page(results, out)
    for line in findings(results):
        screen.print(line, highlight=False, markup=False)
    return page
