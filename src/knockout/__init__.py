"""Knockout: choose k of n things with a gradient.

``topk`` selects and blends in one call; ``select`` makes a plan that can be applied to any number of payloads.
"""

from typing import TYPE_CHECKING

from knockout import boost, methods, metrics, native, nn, plot
from knockout.functional import select, topk
from knockout.selection import Selection

if TYPE_CHECKING:
    from knockout import distributed

__all__ = ["Selection", "boost", "distributed", "methods", "metrics", "native", "nn", "plot", "select", "topk"]
__version__ = "0.1.0"

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # When it is asked for: torch's DTensors, which it knows, take as long to import as all the rest.
        if name == "distributed":
            import importlib

            return importlib.import_module("knockout.distributed")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
