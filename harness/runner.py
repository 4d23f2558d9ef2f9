"""Run experiments one after the other or in parallel processes, record each when it is done, show the progress."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import UnionType
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from harness.journal import FILE_NAME, Journal, JournalError, Rows, damaged


class Experiment(NamedTuple):
    """A piece of a run that is measured and recorded as a whole."""

    name: str  # unique in its run; the first word is its kind
    cost: float  # expected time, in any unit: for the estimate of the time left
    run: Callable[[], Rows]


def open_results(
    out: Path,
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
    resume: bool,
    outputs: Sequence[str],
) -> Journal:
    """Open the journal of a run in ``out``, which will write the files ``outputs`` there as well.

    A folder that has any of these files but no journal belongs to something else and is refused.
    """
    foreign = [] if (out / FILE_NAME).exists() else [out / name for name in outputs if (out / name).exists()]
    if foreign:
        raise JournalError(f"{foreign[0]} exists, and would be overwritten: pass another --out, or remove it")
    return Journal.open(out / FILE_NAME, {"settings": dict(settings), "environment": dict(environment)}, resume)


def check_results(
    results: Journal,
    experiments: Sequence[Experiment],
    is_complete: Callable[[str, Rows], bool],
    environment: Mapping[str, Any],
    notes: Console,
) -> None:
    """Check that the recorded results are complete, part of this run, and measured in this environment.

    Results that were all measured in another environment are accepted with a note, since nothing is added to them.
    """
    names = {each.name for each in experiments}
    for name, rows in results.rows.items():
        if name not in names:
            raise JournalError(f"{results.path} holds {name!r}, which is not part of this run: pass another --out")
        if not is_complete(name, rows):
            raise damaged(results.path, f"{name!r}")
    for name, value in environment.items():
        recorded = results.header["environment"].get(name)
        if name == "commit" or recorded == value:
            continue
        if results.rows.keys() != names:
            raise JournalError(
                f"{results.path} was started with another {name} ({recorded!r}, now {value!r}): new results would not "
                f"be comparable with those recorded. Pass another --out, or remove the file"
            )
        notes.print(f"these results were measured with another {name}: {recorded!r}, now {value!r}", highlight=False)


def rows_match(rows: Rows, fields: Mapping[str, type | UnionType]) -> bool:
    """Whether each row has exactly these fields, with values of these types and no NaN or infinity."""

    def fits(value: object, kind: type | UnionType) -> bool:
        if isinstance(value, bool) or kind is bool:
            return isinstance(value, bool) and kind is bool
        if isinstance(value, float) and not math.isfinite(value):
            return False
        return isinstance(value, kind) or (isinstance(value, int) and isinstance(0.0, kind))

    return all(row.keys() == fields.keys() and all(fits(row[name], fields[name]) for name in fields) for row in rows)


def run_experiments(
    experiments: Sequence[Experiment],
    results: Journal,
    notes: Console,
    workers: int = 1,
    finished: Callable[[str, Rows], None] | None = None,
) -> None:
    """Run the experiments that are not recorded yet in so many processes, and record each of them.

    ``finished`` is called with the name and rows of each one that was run.
    """
    left = [each for each in experiments if each.name not in results.rows]
    if left and len(left) < len(experiments):
        notes.print(f"resuming: {len(experiments) - len(left)} of {len(experiments)} experiments are already done")
    cost_left, start, cost_done = sum(each.cost for each in left), time.monotonic(), 0.0
    with _progress(len(experiments), len(experiments) - len(left), notes) as advance:
        for each, rows in _run(left, workers):
            if rows is None:
                advance(each.name, (time.monotonic() - start) / cost_done * cost_left if cost_done else None, 0)
                continue
            results.append(each.name, rows)
            cost_done, cost_left = cost_done + each.cost, cost_left - each.cost
            advance(each.name, None, 1)
            if finished is not None:
                finished(each.name, rows)


def _run(experiments: Sequence[Experiment], workers: int) -> Iterator[tuple[Experiment, Rows | None]]:
    """Yield each experiment twice: before its rows are there, with None, and with them."""
    if workers == 1:
        for each in experiments:
            yield each, None
            yield each, each.run()
        return
    for each, rows in _run_in_parallel(experiments, workers):
        yield each, None
        yield each, rows


def _run_in_parallel(experiments: Sequence[Experiment], workers: int) -> Iterator[tuple[Experiment, Rows]]:
    """Yield each experiment with its rows, in the order in which they finish. Processes share the threads evenly."""
    threads = max(1, torch.get_num_threads() // workers)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start_worker, (threads,)) as pool:
        futures: dict[Future[Rows], Experiment] = {pool.submit(each.run): each for each in experiments}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start_worker(threads: int) -> None:
    """Set up a worker process, which ends when its parent is killed."""

    def exit_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    torch.set_num_threads(threads)
    Thread(target=exit_with_parent, daemon=True).start()


Advance = Callable[[str, float | None, int], None]  # current experiment, seconds left if known, how many finished


@contextmanager
def _progress(total: int, completed: int, notes: Console) -> Iterator[Advance]:
    """Show a bar with the current experiment and the time left; without a terminal, print a line now and then."""
    if not notes.is_terminal or notes.is_dumb_terminal:
        count, last = completed, time.monotonic()

        def line(name: str, left: float | None, step: int) -> None:
            nonlocal count, last
            count += step
            if step == 0 and time.monotonic() - last > 10:
                last = time.monotonic()
                notes.print(f"[{count}/{total}] {name}, {_time_left(left)}", markup=False, highlight=False)

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
                bar.update(task, left=_time_left(left))

        yield show


def _time_left(seconds: float | None) -> str:
    if seconds is None:
        return "time unknown"
    if seconds < 90:
        return f"{seconds:.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"
