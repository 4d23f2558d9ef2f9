"""Cases that have failed once: lines of JSON in kept.jsonl, each with its kind, why it is there, and the case."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fuzz.hostile import Hostile
from fuzz.kind import Kind
from fuzz.misuse import Misuse
from fuzz.public import Public

FILE = Path(__file__).parent / "kept.jsonl"
KINDS: Mapping[str, Kind[Any]] = {kind.name: kind for kind in (Hostile(), Public(), Misuse())}


class Kept(NamedTuple):
    """A line of the file."""

    kind: str
    why: str
    case: Any  # as JSON

    def run(self) -> str:
        """Run the case again."""
        kind = KINDS[self.kind]
        return kind.run(kind.read(self.case))


def read() -> list[Kept]:
    """All kept cases."""
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    return [Kept(**json.loads(line)) for line in lines]


def keep(kind: Kind[Any], case: Any, why: str) -> None:
    """Add a case, unless it is there already."""
    line = json.dumps(Kept(kind.name, why, kind.write(case))._asdict())
    if json.loads(line)["case"] not in [each.case for each in read()]:
        with FILE.open("a") as file:
            file.write(line + "\n")
