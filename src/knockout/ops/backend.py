"""The contract of a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor
from torch.compiler import is_compiling

from knockout.boost import Boost
from knockout.ops.boost_code import KINDS
from knockout.torch_private import differentiation_levels, is_transforming


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
    # FUSED of schema.py, or None: tournament and blend in one, and their derivative.
    topk: Callable[..., tuple[Tensor, ...]] | None = None
    topk_backward: Callable[..., tuple[Tensor, Tensor]] | None = None

    @abstractmethod
    def why_not(self) -> str:
        """Why the backend cannot be used on this machine; empty if it can."""

    def takes_by_itself(self, scores: Tensor) -> bool:
        """Whether the backend may be chosen for such scores (..., n) without being forced, if it does not refuse."""
        return True

    @abstractmethod
    def refuses(self, scores: Tensor, boost: Boost | None) -> str:
        """Why the backend cannot take a call with these scores (..., n); empty if it can.

        The boost is None where there is no tournament, only a weighted gather.
        """


def refuses_boost(boost: Boost | None) -> str:
    """Why kernels cannot play with a boost, or not here; empty if they can, and if there is no tournament."""
    if boost is not None and type(boost) not in KINDS:
        return f"it takes the boosts of knockout.boost; got {boost!r}"
    if boost is not None and is_transforming() and not is_compiling() and differentiation_levels() > 1:
        return "torch.func differentiates more than once here, and second derivatives are the reference's"
    return ""
