"""Knockout: choose k of n things with a gradient.

``topk`` selects and blends in one call; ``select`` makes a plan that can be applied to any number of payloads.
"""

import importlib
from typing import TYPE_CHECKING

from knockout import backends, boost, methods, metrics, nn
from knockout.functional import select, topk
from knockout.selection import Selection

if TYPE_CHECKING:
    from knockout import distributed, hf, plot, rows
    from knockout import native as native

__all__ = [
    "Selection",
    "backends",
    "boost",
    "distributed",
    "hf",
    "methods",
    "metrics",
    "nn",
    "plot",
    "rows",
    "select",
    "topk",
]
__version__ = "0.1.0"

# Imported when they are first named: they need other packages, or take long to import.
_LAZY = {"distributed", "hf", "native", "plot", "rows"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _LAZY:
            return importlib.import_module(f"knockout.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
