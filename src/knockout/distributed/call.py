"""What all ranks know about a call, once they have agreed on it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from knockout.boost import Boost
from knockout.distributed.ranks import Ranks
from knockout.functional import Order
from knockout.quota import Quota

SlotPlacement = Literal["replicated", "sharded"]
Reduction = Literal["mean", "sum"]


class Settings(NamedTuple):
    """The arguments of ``topk`` and ``select`` that are the same on all ranks, checked."""

    k: int | float  # or max_k, if each row has a count
    boost: Boost
    order: Order
    hard: bool
    slots: SlotPlacement
    reduction: Reduction


class Call(NamedTuple):
    """A call that all ranks have agreed on."""

    ranks: Ranks
    number: int  # of the call in its process group
    settings: Settings
    sizes: list[int]  # the number of candidates of each rank
    quota: Quota  # with counts (rows,) if each row has one
    needs_grad: bool  # whether any rank needs the gradient of its scores

    @property
    def n(self) -> int:
        """The number of candidates of all ranks."""
        return sum(self.sizes)

    @property
    def sharded(self) -> bool:
        """Whether each rank gets a part of the slots, instead of all."""
        return self.settings.slots == "sharded"

    @property
    def gradient_factor(self) -> float:
        """The factor of each rank's gradient: 1 for the sum of the ranks' losses, 1 / size for their mean."""
        return 1.0 / self.ranks.size if self.settings.reduction == "mean" and not self.sharded else 1.0

    def own_slots(self, tensor: Tensor) -> Tensor:
        """The part of a tensor (*batch, k) for the slots that this rank gets."""
        return tensor[..., self.ranks.own_slice(self.ranks.chunk_sizes(tensor.shape[-1]))] if self.sharded else tensor
