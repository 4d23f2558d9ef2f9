"""Markdown documents of headings, text, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Heading(NamedTuple):
    """The heading of a section."""

    text: str


class Text(NamedTuple):
    """A paragraph."""

    text: str


class Table(NamedTuple):
    """A table of strings. The first ``left`` columns are aligned left, the others, numbers, right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 0


class Figure(NamedTuple):
    """A figure in ``name``.png beside the document."""

    name: str
    caption: str


Block = Heading | Text | Table | Figure


def markdown(title: str, blocks: Sequence[Block]) -> str:
    """Render a document."""
    return "\n\n".join([f"# {title}", *map(_rendered, blocks)]) + "\n"


def _rendered(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {text}"
        case Text(text):
            return _escaped(text)
        case Table():
            return markdown_table(block)
        case Figure(name, caption):
            return f"![{_escaped(caption)}]({name}.png)\n\n*{_escaped(caption)}*"


def markdown_table(table: Table) -> str:
    """Render a table alone."""
    lines = [table.header, ["---" if i < table.left else "---:" for i in range(len(table.header))]]
    lines += [[_escaped(cell) for cell in row] for row in table.rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def provenance_table(header: Mapping[str, Any]) -> Table:
    """The settings and the environment of a run, from the header of its journal."""
    parts = [header["settings"], header["environment"]]
    return Table(["", ""], [[name, str(value)] for part in parts for name, value in part.items()], left=2)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
