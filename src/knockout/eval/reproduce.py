"""The run behind ``knockout reproduce``: measure what is missing, then draw, report and sum up."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from knockout.eval.claims import agreement, by_cell, claims
from knockout.eval.environment import environment
from knockout.eval.experiments import PANELS, Settings, Work, are_whole, experiments
from knockout.eval.figures import FIGURES, draw_all
from knockout.eval.journal import Journal, JournalError, damaged, write
from knockout.eval.published import published
from knockout.eval.report import write_report

RESULTS = "results.jsonl"
OUTPUTS = ("results.csv", "results.json", "report.md", "report.html", *(f"{name}.png" for name in FIGURES))


def reproduce(settings: Settings, out: Path, resume: bool, screen: Console, notes: Console) -> Path:
    """Everything; returns the path of the report. Progress goes to ``notes``, the summary to ``screen``."""
    work, here = experiments(settings), environment()
    strange = [] if (out / RESULTS).exists() else [out / name for name in OUTPUTS if (out / name).exists()]
    if strange:
        raise JournalError(f"{strange[0]} exists, and would be overwritten: pass another --out, or remove it")
    results = Journal.open(out / RESULTS, {"settings": asdict(settings), "environment": here}, resume)
    check(results, work, here, notes)
    measure(work, results, notes)
    export(results, out)
    draw_all(results, out)
    report = write_report(results, out)
    summarise(results, screen)
    return report


def check(results: Journal, work: Sequence[Work], here: dict[str, Any], notes: Console) -> None:
    """Whether what is there is whole, is part of this run, and may be gone on with here."""
    names = {each.name for each in work}
    for name, rows in results.rows.items():
        if name not in names:
            raise JournalError(f"{results.path} holds {name!r}, which is not part of this run: pass another --out")
        if not are_whole(name, rows):
            raise damaged(results.path, f"{name!r}")
    for name, value in here.items():
        begun = results.header["environment"].get(name)
        if name == "commit" or begun == value:
            continue
        if results.rows.keys() != names:
            raise JournalError(
                f"{results.path} was begun with another {name} ({begun!r}, now {value!r}): what is missing would not "
                f"belong to what is there. Pass another --out, or remove the file"
            )
        notes.print(f"these results were measured with another {name}: {begun!r}, now {value!r}", highlight=False)


def measure(work: Sequence[Work], results: Journal, notes: Console) -> None:
    """Do what is not done yet, and write it down piece by piece."""
    left = [each for each in work if each.name not in results.rows]
    if left and len(left) < len(work):
        notes.print(f"going on: {len(work) - len(left)} of {len(work)} pieces are there already")
    remaining, begun, done = sum(each.cost for each in left), time.monotonic(), 0.0
    with progress(len(work), len(work) - len(left), notes) as advance:
        for each in left:
            pace = (time.monotonic() - begun) / done if done else 0.0
            advance(each.name, pace * remaining if done else None, 0)
            results.append(each.name, each.run())
            done, remaining = done + each.cost, remaining - each.cost
            advance(each.name, None, 1)


Advance = Callable[[str, float | None, int], None]


@contextmanager
def progress(total: int, completed: int, notes: Console) -> Iterator[Advance]:
    """A bar with the piece at hand and the time left; where nobody watches, a line from time to time."""
    if not notes.is_terminal or notes.is_dumb_terminal:
        count, last = completed, time.monotonic()

        def line(name: str, left: float | None, step: int) -> None:
            nonlocal count, last
            count += step
            if step == 0 and time.monotonic() - last > 10:
                last = time.monotonic()
                notes.print(f"[{count}/{total}] {name}, {_time(left)}", markup=False, highlight=False)

        yield line
        return
    columns = (
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[left]:>14s}"),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=notes, transient=True) as bar:
        task = bar.add_task("", total=total, completed=completed, left="")

        def show(name: str, left: float | None, step: int) -> None:
            bar.update(task, description=name, advance=step)
            if step == 0:
                bar.update(task, left=_time(left))

        yield show


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "time unknown"
    if seconds < 90:
        return f"{seconds:.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"


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
