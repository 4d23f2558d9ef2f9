"""Knockout: choose k of n things with a gradient.

``topk`` selects and blends in one call; ``select`` makes a plan that can be applied to any number of payloads.
"""

import importlib
from typing import TYPE_CHECKING

from knockout import backends, boost, methods, metrics, nn, rows
from knockout.functional import select, topk
from knockout.reporting import report
from knockout.saving import allow_loading as _allow_loading
from knockout.selection import Selection

if TYPE_CHECKING:
    from knockout import distributed as distributed
    from knockout import hf as hf
    from knockout import native as native
    from knockout import plot as plot

__all__ = ["Selection", "backends", "boost", "methods", "metrics", "nn", "report", "rows", "select", "topk"]
__version__ = "0.1.0"

_allow_loading()

# Submodules that need other packages, or take long to import: imported when they are first named.
_ON_DEMAND = ("distributed", "hf", "plot")
_DEPRECATED = ("native",)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in (*_ON_DEMAND, *_DEPRECATED):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return importlib.import_module(f"knockout.{name}")
        except ImportError as error:  # an AttributeError, or hasattr, help and inspect would fail
            raise AttributeError(f"knockout.{name} cannot be imported: {error}") from error


def __dir__() -> list[str]:
    return sorted([*__all__, *_ON_DEMAND, "__version__"])
