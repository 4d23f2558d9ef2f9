"""Survivors that were looked at and accepted: mutants that do the same as the original, each with a reason.

equivalent.toml has a table for each reason::

    [[equivalent]]
    file = "src/knockout/quota.py"
    reason = "why no test can tell them from the original"
    mutants = [["the line before", "the line after"], ...]    # or:
    lines = "a regular expression for the line before"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mutants.mutant import Mutant


class Equivalents:
    """The entries of a file."""

    def __init__(self, path: Path | None) -> None:
        self.entries: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self.entries = tomllib.loads(path.read_text())["equivalent"]

    def reason(self, mutant: Mutant) -> str:
        """Why a mutant is equivalent, or nothing if no entry says so."""
        return next((entry["reason"] for entry in self.entries if _matches(entry, mutant)), "")

    def stale(self, mutants: Iterable[Mutant]) -> list[str]:
        """Entries, or parts of them, that describe no mutant of the code as it is."""
        known, found = list(mutants), []
        for entry in self.entries:
            parts = [{**entry, "mutants": [pair]} for pair in entry.get("mutants", [])]
            for part in [*parts, *([{**entry, "mutants": []}] if "lines" in entry else [])]:
                if not any(_matches(part, mutant) for mutant in known):
                    text = " -> ".join(part["mutants"][0]) if part["mutants"] else part["lines"]
                    found.append(f"{entry['file']}: {text}")
        return found


def _matches(entry: dict[str, Any], mutant: Mutant) -> bool:
    if mutant.path != entry["file"]:
        return False
    if [mutant.before, mutant.after] in entry.get("mutants", []):
        return True
    return "lines" in entry and re.search(entry["lines"], mutant.before) is not None
