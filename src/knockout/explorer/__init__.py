"""The explorer: a web page to play with a tournament, in one file, without a server; by ``knockout.plot.explore``.

``page.html`` names its style and its scripts; ``page`` puts them, and the state to start with, into one text. The
arithmetic is in ``numbers.js``, ``boosts.js``, ``tournament.js`` and ``methods.js``, which know nothing of the page.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from knockout.explorer.state import MOST_ON_PAGE, State, state_of

__all__ = ["ARITHMETIC", "MOST_ON_PAGE", "State", "page", "source", "state_of"]

ARITHMETIC = ("numbers.js", "boosts.js", "tournament.js", "methods.js")

# Nothing is loaded from anywhere, and the page itself can prove it.
POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
)


def source(name: str) -> str:
    """The text of one of the files beside this one."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def page(start: State | None = None) -> str:
    """The whole page as one HTML text, which shows ``start`` unless its address tells another state."""
    html = source("page.html")
    html = re.sub(r"<link .*?href=\"(.+?)\">", lambda tag: f"<style>\n{source(tag[1])}</style>", html)
    html = re.sub(r"<script src=\"(.+?)\"></script>", lambda tag: f"<script>\n{source(tag[1])}</script>", html)
    # A name such as "</script>" must not end the script, so no < is left in it.
    state = json.dumps(start, allow_nan=False).replace("<", "\\u003c")
    return html.replace("<!-- policy -->", POLICY).replace("null<!-- start -->", state)
