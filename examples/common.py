"""Shared by the examples: options, experiments in parallel processes, training steps, times, tables."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table as ScreenTable
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from harness.command import HelpFormatter, consoles, number
from harness.documents import Table, markdown_table
from harness.environment import environment
from harness.journal import Journal, Rows
from harness.runner import Experiment, open_results, run_experiments
from harness.timing import interleaved, median
from knockout.nn import BoostSchedule

screen, notes = consoles()


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Make a parser with the options that all examples have."""
    options = argparse.ArgumentParser(
        prog=f"python -m examples.{name}", description=description, formatter_class=HelpFormatter
    )
    options.add_argument(
        "--out",
        type=Path,
        default=Path("build/examples") / name,
        metavar="DIR",
        help="folder for results (%(default)s)",
    )
    options.add_argument("--quick", action="store_true", help="a minute or less, to see that it runs")
    return options


def training_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Make a parser for an example that trains several networks."""
    options = parser(name, description)
    options.add_argument(
        "--seeds", type=number(1, 1000), default=3, help="how many times each network is trained (%(default)s)"
    )
    options.add_argument(
        "--workers", type=number(1, 4096), default=1, help="processes, which share the threads (%(default)s)"
    )
    return options


def measure_all(
    run: Callable[..., Rows],
    arguments: Mapping[str, Mapping[str, Any]],
    out: Path,
    settings: Mapping[str, Any],
    workers: int,
) -> Journal:
    """Call ``run`` with each of the arguments, by the name of an experiment, unless the journal in ``out`` has it."""
    experiments = [Experiment(name, 1.0, partial(run, **given)) for name, given in arguments.items()]
    journal = open_results(out, settings, environment("examples"), resume=True, outputs=())
    run_experiments(experiments, journal, notes, workers, finished=_print_last_row)
    return journal


def _print_last_row(name: str, rows: Rows) -> None:
    numbers = ", ".join(f"{key} {value:.4g}" for key, value in rows[-1].items() if isinstance(value, float))
    notes.print(f"{name}: {numbers}", highlight=False, markup=False)


def encoder_layers(dim: int, heads: int, count: int) -> list[nn.TransformerEncoderLayer]:
    """Make transformer layers without dropout, with normalization before attention."""
    return [
        nn.TransformerEncoderLayer(dim, heads, 2 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        for _ in range(count)
    ]


def optimizer_for(model: nn.Module, rate: float, steps: int) -> tuple[Optimizer, LRScheduler]:
    """Make AdamW with a learning rate that rises to ``rate`` in a tenth of the steps, then falls to 0."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    return optimizer, OneCycleLR(optimizer, rate, total_steps=steps + 1, pct_start=0.1)


def training_step(loss: Tensor, optimizer: Optimizer, *schedules: LRScheduler | BoostSchedule | None) -> None:
    """Take one step of the optimizer, and of those schedules that are not None."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for schedule in schedules:
        if schedule is not None:
            schedule.step()


def milliseconds(
    models: Mapping[str, nn.Module], x: Tensor, labels: Tensor, seconds: float
) -> dict[str, tuple[float, float]]:
    """Measure milliseconds per example of classifiers, in training and in inference."""

    def training(model: nn.Module) -> None:
        model.zero_grad()
        cross_entropy(model.train()(x), labels).backward()

    @torch.inference_mode()
    def inference(model: nn.Module) -> None:
        model.eval()(x)

    taken = [
        interleaved({name: partial(use, model) for name, model in models.items()}, rounds=3, seconds=seconds)
        for use in (training, inference)
    ]
    return {name: (1e3 * median(taken[0][name]) / len(x), 1e3 * median(taken[1][name]) / len(x)) for name in models}


def spread(numbers: Sequence[float], digits: int = 1, scale: float = 100.0) -> str:
    """Format mean ± standard deviation, by default in percent."""
    mean = f"{scale * statistics.mean(numbers):.{digits}f}"
    return mean if len(numbers) < 2 else f"{mean} ± {scale * statistics.stdev(numbers):.{digits}f}"


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], out: Path) -> None:
    """Print a table, and append it as Markdown to ``tables.md`` in ``out``."""
    rows = list(rows)
    table = ScreenTable(*columns, title=title)
    for row in rows:
        table.add_row(*row)
    screen.print(table)
    with (out / "tables.md").open("a") as file:
        file.write(f"**{title}**\n\n{markdown_table(Table(columns, rows, left=len(columns)))}\n\n")
