"""Habits of the command lines: exit codes, errors without a traceback, where output goes.

Those that the installed command ``knockout`` has too come from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.journal import JournalError
from knockout.cli.habits import HelpFormatter, UsageError, device, exit_code, number

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["HelpFormatter", "UsageError", "consoles", "device", "number", "run_command"]

NEEDED = ("matplotlib", "numpy", "rich")  # beside what the library needs


def run_command(
    program: str, command: Callable[[], object], to_continue: str = "run the same command again to continue"
) -> int:
    """Run a command and return its exit code: 0 done, 1 failed, 2 a mistake in the call, 130 interrupted."""

    def checked() -> int:
        try:
            command()
        except JournalError as error:
            raise UsageError(str(error)) from None
        except ModuleNotFoundError as error:
            if error.name not in NEEDED:
                raise
            raise UsageError(f"{error.name} is missing: make install") from None
        return 0

    return exit_code(program, checked, f"finished experiments are kept: {to_continue}")


def consoles() -> tuple[Console, Console]:
    """Make the console for results, standard output, and that for progress and notes, standard error.

    Rich honors NO_COLOR, and writes neither colors nor bars where there is no terminal.
    """
    from rich.console import Console

    screen, notes = Console(), Console(stderr=True)
    screen.width = max(screen.width, 80)  # tables would lose digits in less
    return screen, notes
