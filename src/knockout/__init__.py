"""Knockout: choose k of n things with a gradient.

``topk`` selects and blends in one call; ``select`` makes a plan that can be applied to any number of payloads.
"""

from knockout import boost, methods, metrics, native, nn, plot
from knockout.functional import select, topk
from knockout.selection import Selection

__all__ = ["Selection", "boost", "methods", "metrics", "native", "nn", "plot", "select", "topk"]
__version__ = "0.1.0"
