"""The documentation site: its pages, what is made for it, and the notebook. ``make docs`` builds it, strictly."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import knockout
from docs.doctest_blocks import with_fences
from docs.hooks import SUBMODULES, pages
from docs.notebook_page import to_markdown

ROOT = Path(__file__).parent.parent
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_begins_with_the_code_that_a_reader_came_for(name: str) -> None:
    before = (ROOT / "docs" / name).read_text().partition("\n```")[0]
    assert "\n## " not in before
    assert len(before.split()) < 120


def test_the_reference_has_every_public_name() -> None:
    made = dict(pages())
    whole = "".join(made.values()) + (ROOT / "docs" / "api" / "index.md").read_text()
    listed = set(re.findall(r"^::: (\S+)", whole, re.MULTILINE))
    for name in set(dir(knockout)) - {"__version__"}:
        thing = getattr(knockout, name)
        if name in SUBMODULES:
            assert {f"knockout.{name}.{each}" for each in thing.__all__} <= listed
        else:
            assert f"knockout.{name}" in listed


def test_the_site_has_no_page_that_is_fetched_from_elsewhere() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "strict: true" in settings
    assert "font: false" in settings
    assert "http" not in settings


def test_doctests_become_blocks_of_code() -> None:
    text = "One.\n\n    >>> 1 + 1\n    2\n\nTwo, not >>> here.\n\n>>> [3]\n[3]"
    fenced = "One.\n\n    ```pycon\n    >>> 1 + 1\n    2\n    ```\n\nTwo, not >>> here.\n\n```pycon\n>>> [3]\n[3]\n```"
    assert with_fences(text) == fenced
    assert with_fences("No example.") == "No example."


def cell(kind: str, source: str, *outputs: Any) -> dict[str, Any]:
    return {"cell_type": kind, "source": [source], "outputs": list(outputs)}


def test_a_notebook_becomes_a_page(tmp_path: Path) -> None:
    path = tmp_path / "some.ipynb"
    cells = [
        cell("markdown", "# Title"),
        cell("code", "print(1)", {"output_type": "stream", "name": "stdout", "text": ["1\n"]}),
        cell("code", "x", {"output_type": "execute_result", "data": {"text/html": ["<b>x</b>"], "text/plain": ["x"]}}),
        cell("code", "y", {"output_type": "execute_result", "data": {"text/plain": ["y"]}}),
        cell("code", "plot()", {"output_type": "display_data", "data": {"image/png": "aGk=\n", "text/plain": ["?"]}}),
        cell("code", "warn()", {"output_type": "stream", "name": "stderr", "text": ["careful"]}),
    ]
    path.write_text(json.dumps({"cells": cells}))
    page = to_markdown(path)
    assert page.startswith("# Title\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n```python\nx\n```\n\n<div")
    assert '<div class="notebook-output"><b>x</b></div>' in page
    assert "```text\ny\n```" in page
    assert 'src="data:image/png;base64,aGk="' in page
    assert "careful" not in page
    error = {"output_type": "error", "ename": "ValueError", "evalue": "no"}
    path.write_text(json.dumps({"cells": [cell("code", "raise", error)]}))
    with pytest.raises(ValueError, match="saved with an error: ValueError: no"):
        to_markdown(path)


def test_the_tour_runs_from_top_to_bottom() -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(ROOT / "docs" / "tour.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()  # its cells have assertions
    text = (ROOT / "docs" / "tour.ipynb").read_text()
    assert text.count('"image/png"') == 2  # as it was saved, with its pictures
    assert str(Path.home()) not in text
    assert '"stderr"' not in text


FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("path", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem)
def test_issue_forms(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys()
    identifiers = [field["id"] for field in form["body"]]
    assert len(set(identifiers)) == len(identifiers)
    if path.stem != "idea":
        assert any("knockout info" in field["attributes"]["label"] for field in form["body"])
