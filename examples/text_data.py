"""Text that comes with every Python: its language reference and the docstrings of its standard library."""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics

LEFT_OUT = ("__pycache__", "__phello__", "idlelib", "lib2to3", "site-packages", "test")


def reference() -> dict[str, str]:
    """Read the topics of the language reference, by name."""
    return {f"topic {name}": _plain(text) for name, text in sorted(topics.topics.items())}


def library() -> dict[str, str]:
    """Read the docstrings of each module or package of the standard library, by name."""
    found = {}
    seen: set[str] = set()
    for path in sorted(Path(sysconfig.get_path("stdlib")).iterdir()):
        if path.name in LEFT_OUT:
            continue
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path] * (path.suffix == ".py")
        # Text that occurs twice, as in posixpath and ntpath, must not be in two documents.
        new = [text for text in dict.fromkeys(text for file in files for text in _docstrings(file)) if text not in seen]
        seen.update(new)
        if new:
            found[path.stem] = _plain("\n\n".join(new))
    return found


def _plain(text: str) -> str:
    """Remove lines of asterisks, dashes and the like."""
    return re.sub(r"^\W+$", "", text, flags=re.MULTILINE)


def _docstrings(path: Path) -> Iterator[str]:
    """Find the docstrings of a module, its classes and functions, without the shortest ones."""
    try:
        module = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(module):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node) or ""
            if len(text) >= 200:
                yield text
