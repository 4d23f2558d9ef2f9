"""The results of a run in a file of JSON lines, one line per finished experiment, only ever appended to.

The first line holds the settings of the run and the environment it was measured in. A run that is killed loses only the
experiment it was working on. A file that is damaged, or that belongs to another run, is refused and left unchanged.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows: two runs that write the same file are not detected there
    flock = None  # type: ignore[assignment]

FILE_NAME = "results.jsonl"
FORMAT = "knockout results 1"

Rows = list[dict[str, Any]]


class JournalError(Exception):
    """A results file that cannot be used; the message says what to do about it."""


class Journal:
    """The rows of a run by experiment. ``Journal.open`` opens a file for writing, ``Journal.read`` only reads it."""

    def __init__(self, path: Path, header: dict[str, Any], rows: dict[str, Rows]) -> None:
        self.path, self.header, self.rows = path, header, rows
        self._file: BinaryIO | None = None  # only while open for writing
        self._end = 0  # the end of the last whole line: a killed run may have left an unfinished one after it

    @classmethod
    def open(cls, path: Path, header: dict[str, Any], resume: bool) -> Journal:
        """Create a file, or with ``resume`` continue an existing one. The header has "settings" and "environment"."""
        line = _encode({"format": FORMAT, **header})
        path.parent.mkdir(parents=True, exist_ok=True)
        created = _create(path, line)
        if not created and not resume:
            raise JournalError(
                f"{path} exists: pass --resume to continue it, another --out to start anew, or remove it"
            )
        file = path.open("r+b")
        if flock is not None:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except OSError:
                raise JournalError(f"{path} is being written by another run: wait for it, or stop it") from None
        # Read only after locking: another run may have appended until then.
        journal = cls.read(path)
        journal._file, journal._end = file, path.read_bytes().rfind(b"\n") + 1
        for name, wanted in json.loads(line)["settings"].items():
            found = journal.header["settings"].get(name)
            if found != wanted:
                raise JournalError(
                    f"{path} belongs to another run: it was started with {name} = {found!r}, this one has {wanted!r}; "
                    f"pass the same settings, or another --out"
                )
        return journal

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Read a file. An unfinished last line is ignored."""
        lines = path.read_bytes().decode("utf-8", errors="replace").split("\n")[:-1]
        header = _parse(lines[0], path, 1) if lines else {}
        if header.get("format") != FORMAT or not all(
            isinstance(header.get(part), dict) for part in ("settings", "environment")
        ):
            raise JournalError(f"{path} is not a results file of {FORMAT!r}: pass another --out, or remove it")
        rows: dict[str, Rows] = {}
        for number, line in enumerate(lines[1:], 2):
            record = _parse(line, path, number)
            name, found = record.get("work"), record.get("rows")
            if not isinstance(name, str) or name in rows or not isinstance(found, list):
                raise damaged(path, f"line {number}")
            if not found or not all(isinstance(row, dict) for row in found):
                raise damaged(path, f"line {number}")
            rows[name] = found
        return cls(path, header, rows)

    def append(self, name: str, rows: Rows) -> None:
        """Record the rows of an experiment; they are on disk when this returns."""
        assert self._file is not None, "opened for reading"
        self._file.seek(self._end)
        self._file.truncate()
        self._file.write(_encode({"work": name, "rows": rows}))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._end = self._file.tell()
        self.rows[name] = rows

    def of(self, kind: str) -> Rows:
        """All rows of one kind of experiment, the first word of its name, in the order of the file."""
        return [row for name, rows in self.rows.items() if name.split()[0] == kind for row in rows]


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file as a whole: a reader finds the old content or the new one, never a part."""
    temporary = _temporary(path)
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def damaged(path: Path, where: str) -> JournalError:
    """Make the error for a file with a line that cannot be used."""
    return JournalError(
        f"{path} is damaged at {where}: it was left unchanged. Repair or remove that line, or pass another --out"
    )


def _create(path: Path, line: bytes) -> bool:
    """Create a file with its first line in one step, unless it exists; return whether it was created."""
    temporary = _temporary(path)
    try:
        temporary.write_bytes(line)
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        try:
            with path.open("xb") as file:
                file.write(line)
        except FileExistsError:
            return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _encode(record: dict[str, Any]) -> bytes:
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
