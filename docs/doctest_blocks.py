"""An extension of griffe, which reads docstrings for the API reference: their examples become blocks of code."""

from __future__ import annotations

from typing import Any

import griffe


class DoctestBlocks(griffe.Extension):
    """Put doctests between fences. In Markdown a line that starts with >>> would be a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = with_fences(obj.docstring.value)


def with_fences(text: str) -> str:
    """A docstring with fences around each doctest, which ends at an empty line."""
    lines: list[str] = []
    inside = False
    for line in [*text.splitlines(), ""]:
        starts = line.lstrip().startswith(">>>")
        if starts and not inside:
            lines.append(f"{line[: len(line) - len(line.lstrip())]}```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append(f"{lines[-1][: len(lines[-1]) - len(lines[-1].lstrip())]}```")
            inside = False
        lines.append(line)
    return "\n".join(lines[:-1])
