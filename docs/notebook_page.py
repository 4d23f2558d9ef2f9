"""A notebook with its results as a page in Markdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def to_markdown(path: Path) -> str:
    """The cells of a notebook in turn: text as it is, code as a block, and below it what it printed and showed."""
    notebook: dict[str, Any] = json.loads(path.read_text())
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif source:
            parts.append(f"```python\n{source}\n```")
            parts += [_shown(output) for output in cell["outputs"]]
    return "\n\n".join(part for part in parts if part) + "\n"


def _shown(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return _block("".join(output["text"])) if output["name"] == "stdout" else ""
    if output["output_type"] == "error":
        raise ValueError(f"the notebook was saved with an error: {output['ename']}: {output['evalue']}")
    data = {kind: "".join(content) for kind, content in output["data"].items() if isinstance(content, (str, list))}
    if "text/html" in data:
        return f'<div class="notebook-output">{data["text/html"]}</div>'
    if "image/png" in data:
        return f'<img alt="A figure made by the code above." src="data:image/png;base64,{data["image/png"].strip()}">'
    return _block(data.get("text/plain", ""))


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""
