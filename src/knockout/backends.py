"""Backends: what runs the operators, and whether it can be used here.

``cpu``, the C++ kernels, runs CPU tensors, and ``triton`` those on GPUs; ``reference``, plain PyTorch, runs everything
else, with the same results:

>>> import knockout
>>> knockout.backends.available()
['reference', 'cpu']
>>> knockout.backends.why_not("cpu")
''

To use one of them, whatever else is there:

>>> with knockout.backends.force("reference"):
...     knockout.backends.available()
['reference']
"""

from __future__ import annotations

import torch

from knockout.ops.choice import NAMES, choose, force, why_not

__all__ = ["NAMES", "available", "chosen_for", "force", "why_not"]


def available() -> list[str]:
    """The names of the backends that can be used here and now, the best one last."""
    return [name for name in NAMES if not why_not(name)]


def chosen_for(device: torch.device | str) -> str:
    """The name of the backend that an ordinary call with tensors on this device gets.

    >>> import knockout
    >>> knockout.backends.chosen_for("cpu")
    'cpu'
    """
    return choose(torch.empty(1, device=device), warn=False)
