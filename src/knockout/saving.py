"""What ``torch.load`` may make with ``weights_only=True``, its default: selections, what is in them, and results."""

from __future__ import annotations

import torch

from knockout.boost import Boost
from knockout.functional import TopKResult
from knockout.nn.pool import Pooled
from knockout.nn.pyramid import Pyramid
from knockout.plan import Plan
from knockout.selection import Selection
from knockout.selection_tensors import Origin


def allow_loading() -> None:
    """Allow it for all plans and boosts that the library has, once all modules that define one are imported."""
    results = [TopKResult, Pooled, Pyramid, Selection, Origin]
    torch.serialization.add_safe_globals([*results, *_subclasses(Plan), *_subclasses(Boost)])


def _subclasses(of: type) -> list[type]:
    direct: list[type] = of.__subclasses__()
    return direct + [each for parent in direct for each in _subclasses(parent)]
