"""Pieces of work, done one by one or side by side, each written down when it is done; with progress on the way."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from threading import Thread
from types import UnionType
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from knockout.eval.journal import Journal, JournalError, Rows, damaged


class Work(NamedTuple):
    """A piece of work: its name, what it costs (in no particular unit) and how to do it."""

    name: str
    cost: float
    run: Callable[[], Rows]


def check(
    results: Journal, work: Sequence[Work], whole: Callable[[str, Rows], bool], here: dict[str, Any], notes: Console
) -> None:
    """Whether what is there is whole, is part of this run, and may be gone on with here."""
    names = {each.name for each in work}
    for name, rows in results.rows.items():
        if name not in names:
            raise JournalError(f"{results.path} holds {name!r}, which is not part of this run: pass another --out")
        if not whole(name, rows):
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


def fit(rows: Rows, fields: Mapping[str, type | UnionType]) -> bool:
    """Whether each of the rows has these fields, of these types, and finite numbers in them."""

    def fits(value: object, kind: type | UnionType) -> bool:
        if isinstance(value, bool) or kind is bool:
            return isinstance(value, bool) and kind is bool
        if isinstance(value, float) and not math.isfinite(value):
            return False
        return isinstance(value, kind) or (isinstance(value, int) and isinstance(0.0, kind))

    return all(row.keys() == fields.keys() and all(fits(row[name], fields[name]) for name in fields) for row in rows)


def measure(work: Sequence[Work], results: Journal, notes: Console, workers: int = 1) -> None:
    """Do what is not done yet, by so many processes, and write it down piece by piece."""
    left = [each for each in work if each.name not in results.rows]
    if left and len(left) < len(work):
        notes.print(f"going on: {len(work) - len(left)} of {len(work)} pieces are there already")
    remaining, begun, done = sum(each.cost for each in left), time.monotonic(), 0.0
    with progress(len(work), len(work) - len(left), notes) as advance:
        for each, rows in _done(left, workers):
            if rows is None:
                advance(each.name, (time.monotonic() - begun) / done * remaining if done else None, 0)
                continue
            results.append(each.name, rows)
            done, remaining = done + each.cost, remaining - each.cost
            advance(each.name, None, 1)


def _done(work: Sequence[Work], workers: int) -> Iterator[tuple[Work, Rows | None]]:
    """Each piece twice: when it is at hand, and with what it has found."""
    if workers == 1:
        for each in work:
            yield each, None
            yield each, each.run()
        return
    for number, rows in side_by_side([each.run for each in work], workers):
        yield work[number], None
        yield work[number], rows


def side_by_side(runs: Sequence[Callable[[], Rows]], workers: int) -> Iterator[tuple[int, Rows]]:
    """What each of them finds, by its number, in the order in which they are done; each process has its threads."""
    threads = max(1, torch.get_num_threads() // workers)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (threads,)) as pool:
        futures: dict[Future[Rows], int] = {pool.submit(run): number for number, run in enumerate(runs)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin(threads: int) -> None:
    """A worker starts; when its parent is killed, so is it."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    torch.set_num_threads(threads)
    Thread(target=follow, daemon=True).start()


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
