"""What the examples share: pieces of work spread over processes, written down as they are done, shown on the way."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from benchmarks.timing import medians
from knockout.eval.environment import environment
from knockout.eval.journal import Journal, JournalError, Rows
from knockout.eval.works import side_by_side
from knockout.nn import BoostSchedule

console = Console()

Run = Callable[..., Rows]  # a piece of work; it gets its arguments by name


def parser(description: str, name: str) -> argparse.ArgumentParser:
    """The options that all examples have."""
    options = argparse.ArgumentParser(prog=f"python -m examples.{name}", description=description)
    options.add_argument("--out", type=Path, default=Path("build/examples") / name, help="where results are kept")
    options.add_argument("--quick", action="store_true", help="a minute or less: shows that it runs, not what it shows")
    options.add_argument("--seeds", type=_count, default=3, help="how many times everything is trained")
    options.add_argument("--workers", type=_count, default=1, help="processes, each with its share of the threads")
    return options


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {number}")
    return number


def carry_out(
    run: Run, works: Mapping[str, Mapping[str, Any]], out: Path, settings: Mapping[str, Any], workers: int
) -> Journal:
    """All works, by their names and arguments, that the journal in ``out`` does not have yet."""
    header = {"settings": dict(settings), "environment": environment()}
    journal = Journal.open(out / "results.jsonl", header, resume=True)
    todo = {name: arguments for name, arguments in works.items() if name not in journal.rows}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("working", total=len(works), completed=len(works) - len(todo))
        for name, rows in _results(run, todo, workers):
            journal.append(name, rows)
            progress.update(task, advance=1, description=name)
            progress.console.print(f"{name}: {_shown(rows[-1])}")
    return journal


def _results(run: Run, todo: Mapping[str, Mapping[str, Any]], workers: int) -> Iterable[tuple[str, Rows]]:
    if workers == 1:
        yield from ((name, run(**arguments)) for name, arguments in todo.items())
        return
    names = list(todo)
    for number, rows in side_by_side([partial(run, **todo[name]) for name in names], workers):
        yield names[number], rows


def _shown(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value:.4g}" for key, value in row.items() if isinstance(value, float))


def optimizer_for(model: nn.Module, rate: float, steps: int) -> tuple[Optimizer, LRScheduler]:
    """AdamW, its learning rate up to ``rate`` in a tenth of the steps and down to nothing in the others."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    return optimizer, OneCycleLR(optimizer, rate, total_steps=steps + 1, pct_start=0.1)


def learn(loss: Tensor, optimizer: Optimizer, *schedules: LRScheduler | BoostSchedule | None) -> None:
    """One step of training, and of the schedules that there are: of the learning rate, of the boost."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for schedule in schedules:
        if schedule is not None:
            schedule.step()


def times(models: Mapping[str, nn.Module], x: Tensor, labels: Tensor, seconds: float) -> dict[str, tuple[float, float]]:
    """Milliseconds an example, in training and in inference, of classifiers that take turns."""

    def learning(model: nn.Module) -> None:
        model.zero_grad()
        cross_entropy(model.train()(x), labels).backward()

    @torch.inference_mode()
    def inference(model: nn.Module) -> None:
        model.eval()(x)

    taken = [
        medians({name: partial(use, model) for name, model in models.items()}, seconds, least=3)
        for use in (learning, inference)
    ]
    return {name: (1e3 * taken[0][name] / len(x), 1e3 * taken[1][name] / len(x)) for name in models}


def spread(numbers: Sequence[float], digits: int = 1, scale: float = 100.0) -> str:
    """Mean ± standard deviation, by default in percent."""
    mean = f"{scale * statistics.mean(numbers):.{digits}f}"
    return mean if len(numbers) < 2 else f"{mean} ± {scale * statistics.stdev(numbers):.{digits}f}"


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], out: Path) -> None:
    """A table, on the screen and as Markdown in ``out``."""
    rows = list(rows)
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    lines = [" | ".join(columns), "|".join(["---"] * len(columns)), *(" | ".join(row) for row in rows)]
    with (out / "tables.md").open("a") as file:
        file.write(f"**{title}**\n\n" + "".join(f"| {line} |\n" for line in lines) + "\n")


def guarded(main: Callable[[], None]) -> None:
    """Run an example; what the user can mend is said in a line."""
    try:
        main()
    except (JournalError, OSError, ValueError) as error:
        console.print(f"[red]{type(error).__name__}[/red]: {error}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("stopped; what was done is kept: the same command goes on from there")
        sys.exit(130)
