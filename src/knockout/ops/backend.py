"""The contract of a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from knockout.boost import Boost


class Backend(ABC):
    """One implementation of the five operators of schema.py, with exactly their arguments and results.

    What ``tournament`` returns last, ``saved``, is for its own ``tournament_backward`` and opaque to everything else. A
    backend that saves anything says how much in ``schema.SAVED_LENGTH``.
    """

    name: ClassVar[str]

    tournament: Callable[..., tuple[Tensor, ...]]
    tournament_backward: Callable[..., Tensor]
    blend: Callable[..., Tensor]
    spread: Callable[..., Tensor]
    match: Callable[..., Tensor]

    @abstractmethod
    def why_not(self) -> str:
        """Why the backend cannot be used on this machine; empty if it can."""

    @abstractmethod
    def refuses(self, scores: Tensor, boost: Boost | None) -> str:
        """Why the backend cannot take a call with these scores (..., n); empty if it can.

        The boost is None where there is no tournament, only a weighted gather.
        """
