"""The command ``python -m evals``: its options, and what they start."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from harness.command import HelpFormatter, UsageError, consoles, device, number, run_command

PROGRAM = "python -m evals"

REPRODUCE = """\
Measure the paper's evaluation again: quality and time of its operator, of its baseline and of ours, over its grid of n
and k; then draw its figures, test its claims one by one, and report everything beside what was published."""

ARENA = """\
Compare all known methods for a differentiable top-k on shared tasks: what they cost, how close they come to the hard
choice, what their gradients are worth, and what networks learn through them; then draw figures and write a report."""

LEARNING = """\
Train networks through our method, with nothing tuned, and through others, at their defaults and tuned, under many
conditions: tasks, sizes, scales of the scores, optimizers. How well do they learn, and which runs fail?"""

GPU = """\
Compile the Triton kernels ahead of time for several GPUs, none of which need be here: what they use of registers and
memory, and how long a first call takes. Count launches, and model on paper what a call costs."""

EXAMPLES = f"""\
examples:
  {PROGRAM} reproduce                             a part of the grid, in less than two minutes
  {PROGRAM} reproduce --grid paper --out results  all 85 cells: half an hour or more
  {PROGRAM} reproduce --grid paper --out results --resume
                                                        continue that one after it was stopped
  {PROGRAM} arena --quick                         all methods on small tasks, in less than three minutes
  {PROGRAM} arena --out arena --workers 2         everything: about an hour
  {PROGRAM} learning --quick                      every contestant for a few steps, in less than a minute
  {PROGRAM} learning --workers 2 --resume --contestants function layer --only planted needle
                                                        a part of it; without the last two options, all: an hour
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    options = parser().parse_args(arguments)
    return run_command("evals", lambda: options.run(options), "continue with --resume")


def parser() -> argparse.ArgumentParser:
    """Define the commands and their options."""
    top = argparse.ArgumentParser(
        prog=PROGRAM, description="Evaluate the library.", epilog=EXAMPLES, formatter_class=HelpFormatter
    )
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    command = _command(commands, "reproduce", reproduce, "measure the paper's evaluation again", REPRODUCE)
    command.add_argument("--grid", choices=["quick", "paper"], default="quick", help="a part of it, or all 85 cells")
    command.add_argument("--device", default="cpu", help="cpu, cuda, mps, ... (%(default)s)")
    command = _command(commands, "arena", arena, "compare methods for a differentiable top-k", ARENA)
    _training_options(command)
    command = _command(commands, "learning", learning, "which methods learn with nothing tuned", LEARNING)
    _training_options(command)
    command.add_argument("--only", nargs="+", default=[], metavar="CONDITION", help="some conditions (default: all)")
    command.add_argument("--contestants", nargs="+", default=[], metavar="NAME", help="some contestants (default: all)")
    command = _command(commands, "gpu", gpu, "compile the kernels for GPUs", GPU)
    _worker_options(command)
    return top


def _worker_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the commands that work in several processes."""
    command.add_argument("--quick", action="store_true", help="a small part, to see that it runs")
    command.add_argument("--workers", type=number(1, 4096), default=1, help="processes that work (%(default)s)")


def _training_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the commands that train networks."""
    _worker_options(command)
    command.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of Fashion-MNIST's four files (default: of Debian's package)"
    )


def _command(
    commands: Any, name: str, run: Callable[..., None], text: str, description: str
) -> argparse.ArgumentParser:
    """Add a command with the options that all of them have."""
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=description, epilog=EXAMPLES, formatter_class=HelpFormatter
    )
    command.set_defaults(run=run)
    command.add_argument(
        "--out", type=Path, default=Path("build") / name, metavar="DIR", help="folder for results (%(default)s)"
    )
    command.add_argument("--seed", type=number(0, 2**31), default=0, help="seed of all random numbers (%(default)s)")
    command.add_argument("--threads", type=number(1, 4096), help="threads of the CPU (default: PyTorch's choice)")
    command.add_argument(
        "--resume", action="store_true", help="continue a run in --out that was stopped; start if there is none"
    )
    return command


def reproduce(options: argparse.Namespace) -> None:
    """Run ``python -m evals reproduce``."""
    screen, notes = _prepare(options)
    from evals.reproduce.experiments import settings_for
    from evals.reproduce.run import reproduce as run

    settings = settings_for(options.grid, options.seed, device(options.device), torch.get_num_threads())
    _show_path(screen, run(settings, options.out, options.resume, screen, notes))


def arena(options: argparse.Namespace) -> None:
    """Run ``python -m evals arena``."""
    screen, notes = _prepare(options)
    from evals.arena.experiments import settings_for
    from evals.arena.run import arena as run

    data = _data(options, notes)
    settings = settings_for(options.quick, options.seed, torch.get_num_threads(), data is not None)
    _show_path(screen, run(settings, data, options.out, options.resume, options.workers, screen, notes))


def learning(options: argparse.Namespace) -> None:
    """Run ``python -m evals learning``."""
    screen, notes = _prepare(options)
    from evals.learning.contestants import DEFAULTS, TUNED
    from evals.learning.experiments import settings_for
    from evals.learning.run import learning as run
    from evals.learning.tasks_features import HAS_SKLEARN

    if not options.threads:
        torch.set_num_threads(1)  # the networks are small, and so results do not depend on the number of workers
    data = _data(options, notes)
    if not HAS_SKLEARN:
        notes.print("without scikit-learn, the selection of features is left out: make install", highlight=False)
    settings = settings_for(options.quick, options.seed, torch.get_num_threads(), data is not None)
    for option, asked, known in (
        ("--only", options.only, settings.conditions),
        ("--contestants", options.contestants, (*DEFAULTS, *TUNED)),
    ):
        unknown = [name for name in asked if name not in known]
        if unknown:
            raise UsageError(f"{option}: {unknown[0]!r} is not one of {', '.join(map(repr, known))}")
    path = run(
        settings, data, options.out, options.resume, options.workers, options.only, options.contestants, screen, notes
    )
    _show_path(screen, path)


def gpu(options: argparse.Namespace) -> None:
    """Run ``python -m evals gpu``."""
    screen, notes = _prepare(options)
    if find_spec("triton") is None:
        raise UsageError("triton is missing, which is there for Linux only: make install")
    from knockout.ops.triton.backend import interpreted

    if interpreted():
        raise UsageError("TRITON_INTERPRET must not be set: interpreted kernels cannot be compiled")
    from evals.gpu.experiments import settings_for
    from evals.gpu.run import gpu as run

    _show_path(screen, run(settings_for(options.quick), options.out, options.resume, options.workers, screen, notes))


def _data(options: argparse.Namespace, notes: Any) -> Path | None:
    """Find the folder of Fashion-MNIST; None if there is none, and none was asked for."""
    from harness import fashion_mnist

    data: Path = options.data or fashion_mnist.DEBIAN
    try:
        fashion_mnist.load(data)
    except (OSError, ValueError) as error:
        if options.data:
            raise UsageError(f"--data: {error}") from None
        notes.print(f"without Fashion-MNIST, two tasks are left out. {error}", highlight=False, markup=False)
        return None
    return data


def _prepare(options: argparse.Namespace) -> tuple[Any, Any]:
    """Check and apply the options of all commands; make the consoles for results and for notes."""
    os.environ["MPLBACKEND"] = "agg"  # figures are files: they need no display
    import matplotlib  # noqa: F401  # if it is missing, fail before anything is measured

    screen, notes = consoles()
    if options.out.exists() and not options.out.is_dir():
        raise UsageError(f"--out must be a folder; {options.out} is a file")
    if options.threads:
        torch.set_num_threads(options.threads)
    return screen, notes


def _show_path(screen: Any, path: Path) -> None:
    screen.print(f"report: {path}", soft_wrap=True, highlight=False, markup=False)
