"""The results of a run, as they come: a line of JSON for every piece of work that is done, never written again.

The first line says what is being measured, by what. Whoever is killed loses the line at hand and nothing else. A file
that does not fit, because it is damaged or because it belongs to another run, is left as it is.
"""

from __future__ import annotations

import json
import os
from io import BufferedReader
from pathlib import Path
from typing import Any

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # not on Windows: there nobody watches over two runs with one file
    flock = None  # type: ignore[assignment]

FORMAT = "knockout results 1"

Rows = list[dict[str, Any]]


class JournalError(Exception):
    """A results file that cannot be used, and what to do about it."""


class Journal:
    """``Journal.open`` one; ``rows`` holds what is done, by the name of the piece of work."""

    def __init__(self, path: Path, header: dict[str, Any], rows: dict[str, Rows]) -> None:
        self.path, self.header, self.rows = path, header, rows
        self._guard: BufferedReader | None = None

    @classmethod
    def open(cls, path: Path, header: dict[str, Any], resume: bool) -> Journal:
        """Begin, or with ``resume`` go on where the file ends. The header holds "settings" and "environment"."""
        header = json.loads(_line({"format": FORMAT, **header}))  # as it will be read
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, _line(header))
            return cls(path, header, {})._guarded()
        if not resume:
            raise JournalError(
                f"{path} exists: pass --resume to go on with it, another --out to begin anew, or remove it"
            )
        journal = cls.read(path)._guarded()
        for name, mine in header["settings"].items():
            theirs = journal.header["settings"].get(name)
            if theirs != mine:
                raise JournalError(
                    f"{path} belongs to another run: it was begun with {name} = {theirs!r}, this one has {mine!r}; "
                    f"pass the same settings, or another --out"
                )
        return journal

    @classmethod
    def read(cls, path: Path) -> Journal:
        """What a file holds. A last line that was not finished does not count, and is taken off the file."""
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        lines = whole.decode("utf-8", errors="replace").splitlines()
        header = _parse(lines[0], path, 1) if lines else None
        if (
            header is None
            or header.get("format") != FORMAT
            or not isinstance(header.get("settings"), dict)
            or not isinstance(header.get("environment"), dict)
        ):
            raise JournalError(f"{path} is not a results file of {FORMAT!r}: pass another --out, or remove it")
        rows: dict[str, Rows] = {}
        for number, line in enumerate(lines[1:], 2):
            record = _parse(line, path, number)
            work, found = record.get("work"), record.get("rows")
            if not isinstance(work, str) or work in rows or not isinstance(found, list):
                raise _damaged(path, number)
            if not all(isinstance(row, dict) for row in found):
                raise _damaged(path, number)
            rows[work] = found
        if whole != text:
            with path.open("r+b") as file:
                file.truncate(len(whole))
        return cls(path, header, rows)

    def _guarded(self) -> Journal:
        self._guard = self.path.open("rb")
        if flock is not None:
            try:
                flock(self._guard, LOCK_EX | LOCK_NB)
            except OSError:
                raise JournalError(f"{self.path} is being written by another run: wait for it, or stop it") from None
        return self

    def append(self, work: str, rows: Rows) -> None:
        """Write down what a piece of work has found; when this returns, it stays."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line({"work": work, "rows": rows}))
            file.flush()
            os.fsync(file.fileno())
        self.rows[work] = rows

    def of(self, kind: str) -> Rows:
        """All rows of one kind of work, in the order they came in."""
        return [row for work, rows in self.rows.items() if work.split()[0] == kind for row in rows]


def write(path: Path, content: str | bytes) -> None:
    """Write a whole file, or nothing: whoever reads it never finds half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        raise _damaged(path, number) from None
    if not isinstance(record, dict):
        raise _damaged(path, number)
    return record


def _damaged(path: Path, number: int) -> JournalError:
    return JournalError(
        f"{path} is damaged at line {number}: it was left as it is. Mend or remove that line, or pass another --out"
    )
