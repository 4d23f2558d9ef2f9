"""Warnings that point to the user's own line, not to one of the library's."""

from __future__ import annotations

import sys
import warnings

_SKIPPED = ("knockout", "torch")  # torch, because it calls the layers


def warn_user(text: str) -> None:
    """Warn at the innermost line that belongs neither to this library nor to PyTorch."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _SKIPPED:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)
