"""Habits of the command lines: options, exit codes, errors without a traceback, where output goes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.journal import JournalError

if TYPE_CHECKING:
    from rich.console import Console

NEEDED = ("matplotlib", "numpy", "rich")  # the extra "eval" of the package


class UsageError(Exception):
    """A mistake in the call, reported without a traceback."""


def run_command(
    program: str, command: Callable[[], object], to_continue: str = "run the same command again to continue"
) -> int:
    """Run a command and return its exit code: 0 done, 1 failed, 2 a mistake in the call, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a character that a terminal cannot show is no reason to stop
    try:
        command()
    except (UsageError, JournalError) as error:
        return _failed(program, f"error: {error}", 2)
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        return _failed(program, f"error: {error.name} is missing: pip install 'knockout-topk[eval]'", 2)
    except OSError as error:
        return _failed(program, f"error: {error}", 1)
    except KeyboardInterrupt:
        return _failed(program, f"interrupted; finished experiments are kept: {to_continue}", 130)
    return 0


def _failed(program: str, message: str, code: int) -> int:
    print(f"{program}: {message}", file=sys.stderr)
    return code


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Make the type of an option that takes an integer in a range."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}; got {text!r}")
        return value

    return parse


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keep the lines of descriptions; start the help of options at column 22."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=22)


def consoles() -> tuple[Console, Console]:
    """Make the console for results, standard output, and that for progress and notes, standard error.

    Rich honors NO_COLOR, and writes neither colors nor bars where there is no terminal.
    """
    from rich.console import Console

    screen, notes = Console(), Console(stderr=True)
    screen.width = max(screen.width, 80)  # tables would lose digits in less
    return screen, notes
