"""What a benchmark is, the names of all of them, and how one is run."""

from __future__ import annotations

import argparse
import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch

from harness.memory import keep_freed_memory
from harness.timing import threads
from knockout import backends
from knockout.cli.habits import CommandError, progress

# A name is that of a module here, which holds a BENCHMARK.
NAMES = (
    "kernels",
    "length",
    "memory",
    "gather",
    "hard",
    "rounds",
    "bare",
    "distributed",
    "steps",
    "beyond_memory",
    "rivals",
    "rules",
)

Row = dict[str, Any]  # one line of the table: the heading of each column, with its unit, and the value
Cell = TypeVar("Cell")


class Effort(NamedTuple):
    """How long to measure: at least so many rounds, and at least so many seconds."""

    rounds: int
    seconds: float


class Outcome(NamedTuple):
    """What a benchmark has measured."""

    benchmark: Benchmark[Any]
    threads: int
    rows: list[Row]


class Benchmark(ABC, Generic[Cell]):
    """A correctness check and a measurement, which run on a list of cells."""

    name: ClassVar[str]
    description: ClassVar[str]  # one line
    backend: ClassVar[str] = ""  # one that has to be used on the CPU
    threads: ClassVar[int | None] = None  # of the CPU, unless --threads says otherwise
    seconds: ClassVar[float] = 0.5  # of measuring, for each comparison
    keeps_memory: ClassVar[bool] = False  # whether to measure without the cost of new memory: see harness/memory.py
    left_out: ClassVar[str] = ""  # why `python -m benchmarks all` leaves it out

    all_cells: Sequence[Cell] = ()
    tiny: Cell  # takes no time: for --quick and for the tests

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the benchmark's own options; by default it has none."""

    def cells(self, options: argparse.Namespace) -> Sequence[Cell]:  # noqa: ARG002
        """The cells to measure; by default all."""
        return self.all_cells

    @contextmanager
    def prepared(self, cells: Sequence[Cell], options: argparse.Namespace) -> Iterator[None]:  # noqa: ARG002
        """Set up what all cells need, and take it down at the end; by default nothing."""
        yield

    @abstractmethod
    def check(self, cell: Cell) -> None:
        """Raise an AssertionError if what is going to be measured gives wrong results."""

    @abstractmethod
    def measure(self, cell: Cell, effort: Effort) -> list[Row]:
        """Rows with the same columns for every cell."""

    def summary(self, rows: list[Row]) -> list[str]:  # noqa: ARG002
        """Lines to print below the table."""
        return []

    def run(self, options: argparse.Namespace) -> Outcome:
        """Check all cells, then measure all; a CommandError, and no rows, if a check fails."""
        if self.backend and backends.chosen_for(torch.device("cpu")) != self.backend:
            reason = backends.why_not(self.backend) or "another one is forced"
            raise CommandError(f"{self.name} measures the backend {self.backend!r}, which is not used here: {reason}")
        cells = [self.tiny] if options.quick else self.cells(options)
        effort = Effort(options.repeats or (1 if options.quick else 5), 0.0 if options.quick else self.seconds)
        rows: list[Row] = []
        if self.keeps_memory and not options.quick:
            keep_freed_memory()
        with threads(options.threads or self.threads), self.prepared(cells, options):
            for done, cell in enumerate(cells, 1):
                progress(f"{self.name}: checking {done} of {len(cells)}")
                with self._refusing(cell):
                    self.check(cell)
            for done, cell in enumerate(cells, 1):
                progress(f"{self.name}: measuring {done} of {len(cells)}")
                with self._refusing(cell):
                    rows += self.measure(cell, effort)
            progress("")
            return Outcome(self, torch.get_num_threads(), rows)

    @contextmanager
    def _refusing(self, cell: Cell) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            progress("")
            text = f"{self.name}: the results of {cell} are wrong; no times are reported. {error}"
            raise CommandError(text) from error
        except BrokenProcessPool as error:
            raise CommandError(f"{self.name}: a process that worked on {cell} was stopped; out of memory?") from error


def load(name: str) -> Benchmark[Any]:
    """The benchmark of that name."""
    found: Benchmark[Any] = importlib.import_module(f"benchmarks.{name}").BENCHMARK
    return found
