"""``python -m fuzz``: drawn calls for some minutes; what fails is shown with the command that runs it again."""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import fuzz
from fuzz import kept
from fuzz.kept import KINDS
from fuzz.kind import Kind
from fuzz.watch import Failure, Sources, Task, limit_memory, watch
from knockout.backends import available
from knockout.cli.habits import HelpFormatter, UsageError, number, progress, run, table

PROG = "python -m fuzz"
KEPT = "kept"
SHARES = {"hostile": 0.5, "public": 0.35, "misuse": 0.15}  # of the time
SHOWN = 20  # failures whose report is shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; for exit codes see ``knockout.cli.habits.run``."""
    parser = argparse.ArgumentParser(prog=PROG, description=fuzz.__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--seconds", type=number(1, 10**7), default=300, help="how long to draw new cases (300)")
    parser.add_argument("--cases", type=number(1, 10**9), help="stop after so many cases of each kind, not by time")
    parser.add_argument("--seed", type=number(0, 2**63), default=0, help="other cases for every seed (0)")
    parser.add_argument("--workers", type=number(1, 1024), default=os.cpu_count() or 1, help="processes (one per core)")
    parser.add_argument("--limit", type=number(1, 10**4), default=60, help="seconds that a case may take (60)")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="kinds of cases (all)")
    parser.add_argument("--replay", metavar="KIND:SEED:NUMBER", help="run one case, here and without a limit")
    parser.add_argument("--keep", action="store_true", help="add what fails, or the replayed case, to fuzz/kept.jsonl")
    parser.set_defaults(run=_command)
    return run(PROG, parser, arguments)


def _command(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)  # no thread may run when workers are forked
    print(f"backends: {', '.join(available())}; {_build()}", file=sys.stderr)
    return _replay(options) if options.replay else _fuzz(options)


def _build() -> str:
    """Which kernels are tested."""
    spec = find_spec("knockout.ops.cpu._C")
    if spec is None or spec.origin is None:
        return "no kernels"
    sanitized = b"__asan_init" in Path(spec.origin).read_bytes()
    return f"kernels {'with' if sanitized else 'WITHOUT'} sanitizers: {os.path.relpath(spec.origin)}"


def _replay(options: argparse.Namespace) -> int:
    name, _, place = options.replay.partition(":")
    try:
        if name == KEPT:
            line = kept.read()[int(place)]
            kind, case, why = KINDS[line.kind], KINDS[line.kind].read(line.case), line.why
        else:
            seed, at = map(int, place.split(":"))
            kind, why = KINDS[name], options.replay
            case = kind.draw(seed, at)
    except (KeyError, ValueError, IndexError):
        raise UsageError(f"--replay: pass KIND:SEED:NUMBER or kept:LINE; got {options.replay!r}") from None
    print(kind.describe(case), flush=True)
    if options.keep:
        kept.keep(kind, case, why)
    limit_memory()
    try:
        print(kind.run(case))
    except Exception:
        traceback.print_exc()
        return 1
    return 0


class Budget:
    """Tasks for the workers, so that every kind gets its share of the time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.end = time.monotonic() + options.seconds
        self.cases = options.cases
        self.next = dict.fromkeys(options.kinds, 0)
        self.seconds = dict.fromkeys(options.kinds, 0.0)

    def tasks(self) -> Iterator[Task]:
        """First the kept cases, then blocks of drawn ones."""
        if count := len(kept.read()):
            yield Task(KEPT, range(count))
        while kinds := [name for name in self.next if self.cases is None or self.next[name] < self.cases]:
            if self.cases is None and time.monotonic() > self.end:
                return
            name = min(kinds, key=lambda name: self.seconds[name] / SHARES[name])
            first, block = self.next[name], KINDS[name].block
            self.next[name] += block
            self.seconds[name] += 1e-3 * block  # a guess, until the block is done
            yield Task(name, range(first, first + block))


def _fuzz(options: argparse.Namespace) -> int:
    start, budget = time.monotonic(), Budget(options)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    failures: list[Failure] = []
    interrupted = False
    try:
        for news in watch(_sources(options.seed), budget.tasks(), options.workers, options.limit):
            if isinstance(news, Failure):
                if _same(news) not in map(_same, failures):
                    print(_title(news, options.seed), file=sys.stderr, flush=True)
                failures.append(news)
            else:
                counts[news.source].update(news.counts)
                if news.source in budget.seconds:
                    budget.seconds[news.source] += news.seconds
            done = sum(sum(each.values()) for each in counts.values())
            progress(f"{time.monotonic() - start:.0f} s, {done} calls, {len(failures)} failed")
    except KeyboardInterrupt:
        interrupted = True
    progress("")
    _print_counts(counts, len(failures), time.monotonic() - start)
    _print_failures(failures, options)
    if interrupted:
        raise KeyboardInterrupt
    return 1 if failures else 0


def _sources(seed: int) -> Sources:
    lines = kept.read()
    return {
        KEPT: lambda number: lines[number].run(),
        **{name: partial(_run_drawn, kind, seed) for name, kind in KINDS.items()},
    }


def _run_drawn(kind: Kind[Any], seed: int, at: int) -> str:
    return kind.run(kind.draw(seed, at))


def _same(failure: Failure) -> tuple[str, str]:
    """What failures have in common that probably have the same cause: all but the numbers in the text."""
    where = re.search(r"#\d+ .* (\S*knockout\S*:\d+)", failure.report)
    return failure.source, re.sub(r"-?\d+", "#", f"{_cause(failure)} {where[1] if where else ''}")


def _cause(failure: Failure) -> str:
    """What went wrong, with what a sanitizer says about it, without paths of this machine."""
    found = re.search(r"AddressSanitizer: (\S+)|runtime error: (.*)", failure.report)
    text = f"{failure.what}, {found[1] or found[2]}" if found else failure.what
    return re.sub(r"/\S+/", "", text)


def _title(failure: Failure, seed: int) -> str:
    place = f"{failure.number}" if failure.source == KEPT else f"{seed}:{failure.number}"
    return f"{failure.source}:{place}: {failure.what}"


def _print_counts(counts: dict[str, Counter[str]], failed: int, seconds: float) -> None:
    rows = [[name, what, str(count)] for name, each in sorted(counts.items()) for what, count in sorted(each.items())]
    total = sum(int(row[2]) for row in rows) + failed
    print(table(["kind", "calls", "number"], rows))
    print(f"{total} calls in {seconds:.0f} s, {total / seconds:.0f} per second; {failed} failed")


def _print_failures(failures: list[Failure], options: argparse.Namespace) -> None:
    # One of each kind first: what fails often would hide the rest.
    by_kind: dict[tuple[str, str], list[Failure]] = defaultdict(list)
    for failure in failures:
        by_kind[_same(failure)].append(failure)
    for same in itertools.islice(by_kind.values(), SHOWN):
        failure = same[0]
        print(f"\n{_title(failure, options.seed)}" + (f" ({len(same)} times)" if len(same) > 1 else ""))
        if failure.source != KEPT:
            case = KINDS[failure.source].draw(options.seed, failure.number)
            print(KINDS[failure.source].describe(case))
            if options.keep:
                kept.keep(KINDS[failure.source], case, f"{KINDS[failure.source].describe(case)}: {_cause(failure)}")
        print(f"{PROG} --replay {_title(failure, options.seed).rpartition(': ')[0].split(': ')[0]}")
        print("\n".join("  " + line for line in failure.report.splitlines()[:40]))
    if len(by_kind) > SHOWN:
        print(f"\n... and {len(by_kind) - SHOWN} other kinds of failures")


if __name__ == "__main__":
    sys.exit(main())
