"""What pools have to know about a kind of encoder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask


@dataclass(eq=False)
class Tokens:
    """The tokens that are left in the middle of a call."""

    x: Tensor  # (batch, n, dim)
    real: Tensor | None  # (batch, n) bool: False for padding and empty slots; None if there are none
    positions: Tensor  # (batch, n) the weighted mean position of each token in the input
    leaders: Tensor  # (batch, n) int64: which token of the input leads the slot; -1 for padding and in an empty slot

    @property
    def places(self) -> Tensor:
        """Where each token stands in the input, for position embeddings: at its leader. 0 for padding."""
        return self.leaders.clamp(min=0)

    def at_places(self, table: Tensor) -> Tensor:
        """The rows of a table (batch or 1, all tokens, d) at which the tokens stand, (batch, n, d)."""
        batch, n = self.leaders.shape
        return table.expand(batch, -1, -1).gather(1, self.places.unsqueeze(-1).expand(batch, n, table.shape[-1]))

    @property
    def distances(self) -> Tensor:
        """places[j] - places[i] (batch, n, n): how far token j is behind token i in the input."""
        return self.places.unsqueeze(-2) - self.places.unsqueeze(-1)


class Family:
    """A kind of encoder: where its layers are, what is always kept, and what a layer gets after a pool.

    A new kind is a subclass with ``kinds``, and with whatever of the others differs. ``knockout.hf.register`` adds it.
    The encoder must be a list of layers that are called one after the other, in which each gets the hidden states
    (batch, n, dim) first, and returns them alone or as the first of a tuple.
    """

    kinds: tuple[str, ...] = ()  # the ``model_type`` of their configs
    layers = "encoder.layer"  # the attribute of the model that is the list of layers

    def owns(self, model: Any) -> bool:
        """Whether this model holds the layers itself, and not in a model inside of it."""
        try:
            return isinstance(self.layers_of(model), nn.ModuleList)
        except AttributeError:
            return False

    def layers_of(self, model: Any) -> nn.ModuleList:
        found: nn.ModuleList = attrgetter(self.layers)(model)
        return found

    def count(self, model: Any) -> int:
        """How many layers are called."""
        return len(self.layers_of(model))

    def dim(self, config: Any) -> int:
        """The dimension of the hidden states."""
        return int(config.hidden_size)

    def kept(self, config: Any) -> int:  # noqa: ARG002
        """How many tokens at the front are always kept: class tokens, registers."""
        return 1

    def check(self, model: Any, pooled: Iterable[int], keep: int) -> None:
        """Raise a ValueError if this model cannot be pooled after these layers, with so many tokens always kept."""

    def kind_of(self, layer: Any) -> Any:  # noqa: ARG002
        """Layers of one kind get the same inputs, which are made once for all of them."""
        return None

    def inputs(self, model: Any, layer: Any, tokens: Tokens, given: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """What a layer gets after a pool in place of what the model passes to it, ``given``, by names of parameters.

        What is None takes the place only of what is passed.
        """
        # Without padding attention needs no mask, and is faster. Position ids are those of all tokens.
        return {"attention_mask": create_bidirectional_mask(model.config, tokens.x, tokens.real), "position_ids": None}


def bucketed_bias(buckets: Tensor, embedding: nn.Embedding) -> Tensor:
    """A bias of attention (batch, heads, n, n), learned for each bucket (batch, n, n) of distances."""
    bias: Tensor = embedding(buckets)
    return bias.permute(0, 3, 1, 2)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of attention, True where tokens see each other, as numbers that are added."""
    return torch.where(mask, 0.0, torch.finfo(dtype).min).to(dtype)
