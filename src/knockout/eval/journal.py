"""The results of a run, as they come: a line of JSON for every piece of work that is done, never written again.

The first line says what is being measured, by what. Whoever is killed loses the line at hand and nothing else. A file
that does not fit, because it is damaged or because it belongs to another run, is left as it is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # not on Windows: there nobody watches over two runs with one file
    flock = None  # type: ignore[assignment]

FORMAT = "knockout results 1"

Rows = list[dict[str, Any]]


class JournalError(Exception):
    """A results file that cannot be used, and what to do about it."""


class Journal:
    """``Journal.open`` one to add to it, ``Journal.read`` one to look; ``rows`` holds what is done, by its name."""

    def __init__(self, path: Path, header: dict[str, Any], rows: dict[str, Rows]) -> None:
        self.path, self.header, self.rows = path, header, rows
        self._file: BinaryIO | None = None  # while we are the one who writes
        self._end = 0  # where what counts ends: a killed run may have left an unfinished line behind it

    @classmethod
    def open(cls, path: Path, header: dict[str, Any], resume: bool) -> Journal:
        """Begin, or with ``resume`` go on where the file ends. The header holds "settings" and "environment"."""
        line = _line({"format": FORMAT, **header})
        path.parent.mkdir(parents=True, exist_ok=True)
        begun = _create(path, line)
        if not begun and not resume:
            raise JournalError(
                f"{path} exists: pass --resume to go on with it, another --out to begin anew, or remove it"
            )
        file = path.open("r+b")
        if flock is not None:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except OSError:
                raise JournalError(f"{path} is being written by another run: wait for it, or stop it") from None
        # Only now, with nobody else at it, does what is there count.
        journal = cls.read(path)
        journal._file, journal._end = file, path.read_bytes().rfind(b"\n") + 1
        for name, mine in json.loads(line)["settings"].items():
            theirs = journal.header["settings"].get(name)
            if theirs != mine:
                raise JournalError(
                    f"{path} belongs to another run: it was begun with {name} = {theirs!r}, this one has {mine!r}; "
                    f"pass the same settings, or another --out"
                )
        return journal

    @classmethod
    def read(cls, path: Path) -> Journal:
        """What a file holds. A last line that was not finished does not count."""
        lines = path.read_bytes().decode("utf-8", errors="replace").split("\n")[:-1]
        header = _parse(lines[0], path, 1) if lines else {}
        if header.get("format") != FORMAT or not all(
            isinstance(header.get(part), dict) for part in ("settings", "environment")
        ):
            raise JournalError(f"{path} is not a results file of {FORMAT!r}: pass another --out, or remove it")
        rows: dict[str, Rows] = {}
        for number, line in enumerate(lines[1:], 2):
            record = _parse(line, path, number)
            work, found = record.get("work"), record.get("rows")
            if not isinstance(work, str) or work in rows or not isinstance(found, list):
                raise damaged(path, f"line {number}")
            if not found or not all(isinstance(row, dict) for row in found):
                raise damaged(path, f"line {number}")
            rows[work] = found
        return cls(path, header, rows)

    def append(self, work: str, rows: Rows) -> None:
        """Write down what a piece of work has found; when this returns, it stays."""
        assert self._file is not None, "opened for reading"
        self._file.seek(self._end)
        self._file.truncate()
        self._file.write(_line({"work": work, "rows": rows}))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._end = self._file.tell()
        self.rows[work] = rows

    def of(self, kind: str) -> Rows:
        """All rows of one kind of work, in the order they came in."""
        return [row for work, rows in self.rows.items() if work.split()[0] == kind for row in rows]


def write(path: Path, content: str | bytes) -> None:
    """Write a whole file, or nothing: whoever reads it never finds half of it."""
    beside = _beside(path)
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def damaged(path: Path, where: str) -> JournalError:
    """A file that was meant to be ours, and is not whole."""
    return JournalError(
        f"{path} is damaged at {where}: it was left as it is. Mend or remove that line, or pass another --out"
    )


def _create(path: Path, line: bytes) -> bool:
    """Make a file with its first line, at once and unless there is one; whether it was made."""
    beside = _beside(path)
    try:
        beside.write_bytes(line)
        os.link(beside, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        try:
            with path.open("xb") as file:
                file.write(line)
        except FileExistsError:
            return False
    finally:
        beside.unlink(missing_ok=True)
    return True


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise damaged(path, f"line {number}") from None
    if not isinstance(record, dict):
        raise damaged(path, f"line {number}")
    return record


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
