"""What the site has beside the Markdown in this folder: the API reference, the explorer, the tour, the changelog."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from docs.notebook_page import to_markdown
from knockout import explorer

ROOT = Path(__file__).parent.parent
SUBMODULES = ("boost", "nn", "hf", "methods", "distributed", "rows", "metrics", "plot", "backends")
FIRST = ("TokenPool", "TopK", "PyramidEncoder", "pool", "from_pretrained", "topk", "Adaptive", "Relative")  # of a page


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    for name, content in pages():
        files.append(File.generated(config, name, content=content))
    return files


def pages() -> Iterator[tuple[str, str]]:
    """Their names and what is in them."""
    yield "changelog.md", (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    yield "tour.md", to_markdown(ROOT / "docs" / "tour.ipynb")
    yield "explorer.html", explorer.page()
    yield "api/selection.md", reference("knockout.Selection", ["knockout.Selection"])
    for name in SUBMODULES:
        module = importlib.import_module(f"knockout.{name}")
        names = sorted(module.__all__, key=lambda each: FIRST.index(each) if each in FIRST else len(FIRST))
        yield f"api/{name}.md", reference(f"knockout.{name}", [f"knockout.{name}.{each}" for each in names])


def reference(title: str, names: list[str]) -> str:
    """A page of the API reference: every public name with its docstring."""
    return "\n\n".join([f"# {title}", *(f"::: {name}" for name in names)]) + "\n"
