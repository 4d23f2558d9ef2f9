"""``python -m benchmarks``: list the benchmarks, or run one of them, or all."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.registry import NAMES, Benchmark, Outcome, load
from knockout.cli.habits import HelpFormatter, UsageError, number, run, table
from knockout.cli.info import environment, processor

PROG = "python -m benchmarks"
ALL = "all"
SHARED = ("threads", "json", "repeats", "quick")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; for exit codes see ``knockout.cli.habits.run``."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    # The options depend on the benchmark, and only the one that runs is imported.
    name = given.pop(0) if given and not given[0].startswith("-") else None
    return run(PROG, _parser(name), given)


def _parser(name: str | None) -> argparse.ArgumentParser:
    if name is None:
        top = argparse.ArgumentParser(
            prog=PROG, description="List the benchmarks.", epilog=f"{PROG} NAME [options] runs one of them."
        )
        top.set_defaults(run=_list)
        return top
    if name == ALL:
        parser = _options(ALL, "Run every benchmark but those that the list says are left out.")
        parser.set_defaults(run=_run_all)
        return parser
    if name not in NAMES:
        parser = argparse.ArgumentParser(add_help=False)
        parser.set_defaults(run=lambda _: _unknown(name))
        return parser
    benchmark = load(name)
    parser = _options(name, f"{benchmark.description}.\n\n{sys.modules[type(benchmark).__module__].__doc__}")
    benchmark.add_options(parser)
    parser.set_defaults(run=partial(_run_one, benchmark))
    return parser


def _options(name: str, description: str) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    parser = argparse.ArgumentParser(prog=f"{PROG} {name}", description=description, formatter_class=HelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one tiny cell, to see that it runs")
    parser.add_argument("--repeats", type=number(1, 10**6), help="rounds of each comparison, at least (5)")
    parser.add_argument("--threads", type=number(1, 4096), help="of the CPU (as many as PyTorch uses, or one)")
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="also write the rows to a file; without a name, print them instead of the table",
    )
    return parser


def _list(_: argparse.Namespace) -> int:
    benchmarks = [load(name) for name in NAMES]
    print(table(["benchmark", "what it measures"], [[each.name, each.description] for each in benchmarks]))
    print(f"\n{PROG} NAME [options] runs one, {PROG} NAME --help lists its options.")
    left_out = [f"{each.name} ({each.left_out})" for each in benchmarks if each.left_out]
    print(f"{PROG} {ALL} runs every one but {', '.join(left_out)}.")
    return 0


def _unknown(name: str) -> int:
    raise UsageError(f"unknown benchmark {name!r}; choose from {', '.join((*NAMES, ALL))}")


def _run_all(options: argparse.Namespace) -> int:
    outcomes = []
    for name in NAMES:
        benchmark = load(name)
        if not benchmark.left_out:
            own = _parser(name).parse_args([])
            for each in SHARED:
                setattr(own, each, getattr(options, each))
            outcomes.append(_run(benchmark, own))
    _write(outcomes, options.json)
    return 0


def _run_one(benchmark: Benchmark[Any], options: argparse.Namespace) -> int:
    _write([_run(benchmark, options)], options.json)
    return 0


def _run(benchmark: Benchmark[Any], options: argparse.Namespace) -> Outcome:
    """Run a benchmark and print its table, unless JSON is printed instead."""
    outcome = benchmark.run(options)
    if options.json == "-":
        return outcome
    print(f"{benchmark.name}: {benchmark.description}")
    print(f"processor: {processor()}; threads: {outcome.threads}; torch {torch.__version__}\n")
    # Lists of numbers are in the JSON alone.
    columns = [name for name, value in outcome.rows[0].items() if not isinstance(value, list)]
    print(table(columns, [[_text(row[name]) for name in columns] for row in outcome.rows]))
    for line in benchmark.summary(outcome.rows):
        print(line)
    print(flush=True)
    return outcome


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _write(outcomes: list[Outcome], file: str | None) -> None:
    if file is None:
        return
    results = [{"benchmark": each.benchmark.name, "threads": each.threads, "rows": each.rows} for each in outcomes]
    text = json.dumps({"environment": environment(), "results": results}, indent=2)
    if file == "-":
        print(text)
    else:
        Path(file).write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
