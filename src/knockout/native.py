"""Deprecated: the old name of ``knockout.backends``."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager

from knockout import backends

__all__ = ["available", "force", "why_not"]


def available() -> bool:
    """Deprecated: use ``not knockout.backends.why_not("cpu")``."""
    _deprecated("why_not('cpu')")
    return not backends.why_not("cpu")


def why_not() -> str:
    """Deprecated: use ``knockout.backends.why_not("cpu")``."""
    _deprecated("why_not('cpu')")
    return backends.why_not("cpu")


def force(backend: str) -> AbstractContextManager[None]:
    """Deprecated: use ``knockout.backends.force``, where "native" is called "cpu"."""
    _deprecated("force")
    return backends.force(backend)


def _deprecated(name: str) -> None:
    warnings.warn(f"knockout.native is deprecated: use knockout.backends.{name}", DeprecationWarning, stacklevel=3)
