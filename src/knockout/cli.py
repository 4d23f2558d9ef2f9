"""The command ``knockout``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import knockout

REPRODUCE = """\
Measure the paper's evaluation again: quality and time of its operator, of its baseline and of ours, over its grid of n
and k; then its figures, its claims one by one, and a report with everything beside what was published."""

ARENA = """\
Every known way to a differentiable top-k on shared tasks: what it costs, how close it comes to the hard choice, what
its gradients are worth, and what networks learn through it; then tables, pictures and one page with all of it."""

EXAMPLES = """\
examples:
  knockout reproduce                             a part of the grid, in less than two minutes
  knockout reproduce --grid paper --out results  all 85 cells: half an hour or more
  knockout reproduce --grid paper --out results --resume
                                                 go on where that one was stopped
  knockout arena --quick                         all methods on small tasks, in less than three minutes
  knockout arena --out arena --workers 2         the whole of it: about an hour
"""


class UsageError(Exception):
    """A mistake of whoever called, to be told without a traceback."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if all went well, 1 if it failed, 2 for a mistake in the call, 130 if it was interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a name that a terminal cannot show is no reason to stop
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except UsageError as error:
        print(f"knockout: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"knockout: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("knockout: interrupted; what was finished is kept: go on with --resume", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(
        prog="knockout", description="Choose k of n things with a gradient.", epilog=EXAMPLES, formatter_class=_Help
    )
    top.add_argument("--version", action="version", version=f"knockout {knockout.__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    command = _command(commands, "reproduce", reproduce, "the paper's evaluation, measured again", REPRODUCE)
    command.add_argument("--grid", choices=["quick", "paper"], default="quick", help="a part of it, or all 85 cells")
    _options(command, "knockout-results")
    command.add_argument("--device", default="cpu", help="cpu, cuda, mps, ... (%(default)s)")
    command = _command(commands, "arena", arena, "every way to a differentiable top-k, compared", ARENA)
    command.add_argument("--quick", action="store_true", help="a small part, to see that it runs")
    _options(command, "knockout-arena")
    command.add_argument("--workers", type=_number(1, 4096), default=1, help="processes for training (%(default)s)")
    command.add_argument(
        "--data", type=Path, metavar="DIR", help="of Fashion-MNIST's four files (where Debian's package puts them)"
    )
    return top


def _command(commands: Any, name: str, run: Callable[..., int], text: str, description: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=description, epilog=EXAMPLES, formatter_class=_Help
    )
    command.set_defaults(run=run)
    return command


def _options(command: argparse.ArgumentParser, out: str) -> None:
    """Those of every evaluation."""
    command.add_argument("--out", type=Path, default=Path(out), metavar="DIR", help="where results go (%(default)s)")
    command.add_argument("--seed", type=_number(0, 2**31), default=0, help="of all that is drawn (%(default)s)")
    command.add_argument("--threads", type=_number(1, 4096), help="of the CPU (as many as PyTorch takes)")
    command.add_argument(
        "--resume", action="store_true", help="go on with a run in --out that was stopped; begin if there is none"
    )


def reproduce(options: argparse.Namespace) -> int:
    """``knockout reproduce``."""
    with _evaluating(options) as (screen, notes):
        from knockout.eval.experiments import settings_for
        from knockout.eval.reproduce import reproduce as run

        settings = settings_for(options.grid, options.seed, _device(options.device), torch.get_num_threads())
        _show(screen, "report", run(settings, options.out, options.resume, screen, notes))
    return 0


def arena(options: argparse.Namespace) -> int:
    """``knockout arena``."""
    with _evaluating(options) as (screen, notes):
        from knockout.eval import fashion
        from knockout.eval.arena.program import settings_for
        from knockout.eval.arena.run import arena as run

        data = options.data or fashion.DEBIAN
        try:
            fashion.load(data)
        except (OSError, ValueError) as error:
            if options.data:
                raise UsageError(f"--data: {error}") from None
            notes.print(f"without Fashion-MNIST, two tasks are left out. {error}", highlight=False, markup=False)
            data = None
        settings = settings_for(options.quick, options.seed, torch.get_num_threads(), data is not None)
        page = run(settings, data, options.out, options.resume, options.workers, screen, notes)
        _show(screen, "page", page)
    return 0


@contextmanager
def _evaluating(options: argparse.Namespace) -> Iterator[tuple[Any, Any]]:
    """What an evaluation needs: its libraries, threads, and two consoles, for the summary and for notes."""
    os.environ["MPLBACKEND"] = "agg"  # figures are files: no display is needed, nor a choice of one
    try:
        import matplotlib  # noqa: F401
        from rich.console import Console

        from knockout.eval.journal import JournalError
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is missing: pip install 'knockout-topk[eval]'") from None
    if options.out.exists() and not options.out.is_dir():
        raise UsageError(f"--out must be a folder; {options.out} is a file")
    if options.threads:
        torch.set_num_threads(options.threads)
    screen, notes = Console(), Console(stderr=True)
    screen.width = max(screen.width, 80)  # the summary's: narrower, it would lose figures
    try:
        yield screen, notes
    except JournalError as error:
        raise UsageError(str(error)) from None


def _show(screen: Any, what: str, path: Path) -> None:
    screen.print(f"{what}: {path}", soft_wrap=True, highlight=False, markup=False)


def _device(name: str) -> str:
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it has no numbers")
        torch.zeros(1, device=device).add(1).item()
    except Exception as error:  # every backend has its own way to say that it is not there
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"--device: {name!r} cannot be used here ({reason}); cpu always can") from None
    return str(device)


def _number(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}; got {text!r}")
        return value

    return number


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=22)


if __name__ == "__main__":
    sys.exit(main())
