"""A model of transformers with pools between its layers: the same class of model, with another ``forward``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from knockout.hf.call import Call, PooledLayers, current, parameters_after_x
from knockout.hf.families import Family


@dataclass
class PooledOutput(BaseModelOutputWithPoolingAndCrossAttentions):
    """The output of a pooled model: that of the architecture for the remaining tokens, and which these are.

    ``hidden_states``, with ``output_hidden_states=True``, are those that each layer returned, before pooling; the last
    is ``last_hidden_state`` where it is so without pools. Models with a head return their own output, without the
    fields below.
    """

    attention_mask: Tensor | None = None  # (batch, length) int64 as a tokenizer's: 0 for an empty slot
    positions: Tensor | None = None  # (batch, length) the weighted mean position of each token in the input
    leaders: Tensor | None = None  # (batch, length) int64: which token of the input leads the slot; -1 if it is empty


class PooledModel(nn.Module):
    """The model that holds the layers. Its class is that of the architecture, with this one before it."""

    pools: nn.ModuleDict  # by the number of the layer that each follows
    layer_parameters: tuple[str, ...]
    _family: Family
    _keep: int
    _unpool: bool
    _architecture: type[nn.Module]

    def __new__(cls, *args: Any, **options: Any) -> Any:
        if args or options:  # type(model)(config), and its from_pretrained: a model without pools
            return cls._architecture(*args, **options)
        return super().__new__(cls)  # replicas of DataParallel, and copies

    def __reduce__(self) -> Any:
        # A class that is made when it is needed is not found by its name.
        return _blank, (self._architecture,), self.__dict__


def insert_pools(model: Any, family: Family, pools: nn.ModuleDict, keep: int, unpool: bool) -> None:
    """Put pools between the layers of a model, which stays an instance of its class. Names of weights stay, too."""
    layers = family.layers_of(model)
    model.layer_parameters = parameters_after_x(next(iter(layers)))
    layers.__class__ = PooledLayers
    model.pools = pools
    model._family, model._keep, model._unpool = family, keep, unpool
    kind: Any = type(model)
    model.__class__ = pooled_class(getattr(kind, "_architecture", kind))


@cache
def pooled_class(plain: Any) -> Any:
    """An architecture with pools. It has the same name, by which transformers looks things up."""
    parameters = inspect.signature(plain.forward).parameters
    place = list(parameters).index("attention_mask") - 1 if "attention_mask" in parameters else None

    @wraps(plain.forward)
    def forward(self: Any, *args: Any, **options: Any) -> Any:
        return _forward(self, plain.forward, _mask(place, args, options), args, options)

    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__}
    return type(plain.__name__, (PooledModel, plain), {"forward": forward, "_architecture": plain, **names})


def _blank(plain: Any) -> nn.Module:
    """A pooled model without anything in it, for copies and pickles."""
    kind = pooled_class(plain)
    model: nn.Module = kind.__new__(kind)
    return model


def _forward(
    model: Any, plain: Callable[..., Any], mask: Tensor | None, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    call = Call(model, model._family, model._keep, model._unpool, mask)
    outer = current.set(call)
    try:
        output = plain(model, *args, **options)
    finally:
        current.reset(outer)
    fields: Any = call.fields()
    if (seen := _seen.get() if not torch.compiler.is_compiling() else None) is not None:
        seen.update(fields)
    return output if isinstance(output, tuple) else PooledOutput(**output, **fields)


def _mask(place: int | None, args: tuple[Any, ...], options: dict[str, Any]) -> Tensor | None:
    """The mask (batch, n) that a model was called with."""
    mask = options.get("attention_mask")
    if mask is None and place is not None and len(args) > place:
        mask = args[place]
    if "cu_seq_lens_q" in options:
        raise ValueError(
            "a pooled model takes sequences beside each other, padded; got cu_seq_lens_q, one behind the other"
        )
    if mask is not None and (not isinstance(mask, Tensor) or mask.dim() != 2):
        got = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"attention_mask must have shape (batch, n) for a pooled model, 0 for padding; got {got}")
    return mask


_seen: ContextVar[dict[str, Tensor] | None] = ContextVar("knockout.hf fields", default=None)


@contextmanager
def see_fields() -> Iterator[dict[str, Tensor]]:
    """The fields of the ``PooledOutput`` of a model that is called within the block, by code that loses them."""
    fields: dict[str, Tensor] = {}
    outer = _seen.set(fields)
    try:
        yield fields
    finally:
        _seen.reset(outer)
