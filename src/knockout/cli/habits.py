"""Habits of a command line: exit codes, errors without a traceback, options, tables, colors.

The command lines of the repository, ``python -m benchmarks`` and ``python -m evals``, have them too.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch


class UsageError(Exception):
    """A mistake in the call of a command, reported without a traceback; exit code 2."""


class CommandError(Exception):
    """A command that could not do its work, reported without a traceback; exit code 1."""


def run(prog: str, parser: argparse.ArgumentParser, arguments: Sequence[str] | None, hint: str = "") -> int:
    """Call the function ``run`` that the parsed arguments name, and return the exit code of the process.

    argparse itself exits, with 2 for a mistake in the call, or 0 after --help.
    """

    def command() -> int:
        options = parser.parse_args(arguments)
        return int(options.run(options))

    return exit_code(prog, command, hint)


def exit_code(prog: str, command: Callable[[], int], hint: str = "") -> int:
    """Run a command, and return the exit code of the process: its own if all went well.

    1 if the command failed, 2 for a mistake in the call, 130 if it was interrupted. Errors are one line on stderr.
    ``hint`` says how to go on after an interrupt.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to stop
    try:
        code = command()
        sys.stdout.flush()  # here, where a closed pipe is still handled
        return code
    except KeyboardInterrupt:
        progress("")
        print(f"{prog}: interrupted" + (f"; {hint}" if hint else ""), file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has gone, as in `knockout info | head -1`. Python flushes stdout once more when it exits.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UsageError as error:
        return failed(prog, error, 2)
    except (CommandError, OSError) as error:
        return failed(prog, error, 1)


def failed(prog: str, error: Exception | str, code: int) -> int:
    """Report an error on stderr, and return the exit code."""
    progress("")
    print(f"{prog}: error: {error}", file=sys.stderr)
    return code


def device(name: str) -> str:
    """Check the value of ``--device``: the name of a device that works here."""
    try:
        found = torch.device(name)
        if found.type == "meta":
            raise RuntimeError("it has no numbers")
        torch.zeros(1, device=found).add(1).item()
    except Exception as error:  # every PyTorch backend has its own way to say that it is missing
        raise UsageError(f"--device: {name!r} cannot be used here ({first_line(error)}); cpu always can") from None
    return str(found)


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its type if there is none."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def number(least: int, most: int) -> Callable[[str], int]:
    """Make an argparse type: a whole number from ``least`` to ``most``."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}; got {text!r}")
        return value

    return convert


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help with line breaks as written."""

    def __init__(self, prog: str, **_: Any) -> None:
        super().__init__(prog, max_help_position=22)


NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]\d+)?|nan|-?inf|-")  # "-" where there is none


def table(header: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> str:
    """Columns of text; those of numbers are aligned right.

    >>> print(table(["name", "seconds"], [["first", "0.25"], ["second", "10"]]))
    name    seconds
    first      0.25
    second       10
    """
    lines = [*([header] if header else []), *rows]
    columns = []
    for column in zip(*lines, strict=True):
        width = max(map(len, column))
        numbers = all(NUMBER.fullmatch(cell) for cell in column[len(lines) - len(rows) :])
        columns.append([cell.rjust(width) if numbers else cell.ljust(width) for cell in column])
    texts = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    if header:
        texts[0] = style(texts[0], "1")
    return "\n".join(texts)


def progress(text: str) -> None:
    """Replace the last line of a terminal on stderr; do nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def style(text: str, code: str) -> str:
    """Text in a style of ANSI terminals ("1" is bold), if stdout is one and NO_COLOR is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"
