"""A document of headings, text, tables and pictures; as one HTML file and as Markdown."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from knockout.eval.journal import write


class Heading(NamedTuple):
    """Of a section."""

    text: str


class Text(NamedTuple):
    """A paragraph."""

    text: str


class Table(NamedTuple):
    """Cells are text already; all columns but the ``left`` first are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 0


class Picture(NamedTuple):
    """A figure by its name."""

    name: str
    caption: str


Block = Heading | Text | Table | Picture


def markdown(title: str, blocks: Sequence[Block]) -> str:
    """A page beside its pictures."""
    parts = [f"# {title}"]
    for block in blocks:
        match block:
            case Heading(text):
                parts.append(f"## {text}")
            case Text(text):
                parts.append(_escaped(text))
            case Table(header, rows, left):
                lines = [header, ["---" if i < left else "---:" for i in range(len(header))]]
                lines += [[_escaped(cell) for cell in row] for row in rows]
                parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
            case Picture(name, caption):
                parts.append(f"![{_escaped(caption)}]({name}.png)\n\n*{_escaped(caption)}*")
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b2f; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
table { display: block; overflow-x: auto; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #dfe2e7; text-align: right; vertical-align: top; }
th { border-bottom: 2px solid #8a8f98; }
.left { text-align: left; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; } figcaption { color: #555b66; }
"""


def html_page(title: str, blocks: Sequence[Block], folder: Path) -> str:
    """One file with everything in it, the pictures from ``folder`` too."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for block in blocks:
        match block:
            case Heading(text):
                parts.append(f"<h2>{html.escape(text)}</h2>")
            case Text(text):
                parts.append(f"<p>{html.escape(text)}</p>")
            case Table(header, rows, left):
                parts.append("<table>")
                for tag, line in [("th", header), *(("td", row) for row in rows)]:
                    cells = (
                        f"<{tag}{' class=left' if i < left else ''}>{html.escape(cell)}</{tag}>"
                        for i, cell in enumerate(line)
                    )
                    parts.append(f"<tr>{''.join(cells)}</tr>")
                parts.append("</table>")
            case Picture(name, caption):
                data = base64.b64encode((folder / f"{name}.svg").read_bytes()).decode()
                parts.append(
                    f'<figure><img alt="{html.escape(caption)}" src="data:image/svg+xml;base64,{data}">'
                    f"<figcaption>{html.escape(caption)}</figcaption></figure>"
                )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def write_pages(title: str, blocks: Sequence[Block], folder: Path, name: str) -> Path:
    """``name.html`` and ``name.md`` beside the figures; the path of the first."""
    write(folder / f"{name}.md", markdown(title, blocks))
    write(folder / f"{name}.html", html_page(title, blocks, folder))
    return folder / f"{name}.html"
