"""Other ways to select, behind the same interface: ``(scores, k, ..., mask=None) -> Selection``."""

from knockout.methods.hard import hard
from knockout.methods.iterative import iterative

__all__ = ["hard", "iterative"]
