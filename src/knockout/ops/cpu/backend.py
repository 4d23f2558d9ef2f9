"""The backend ``cpu``: C++ kernels for CPU tensors, in csrc/."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from knockout.boost import Boost
from knockout.ops import schema
from knockout.ops.backend import Backend, refuses_boost
from knockout.ops.cpu.missing import why_missing

MOST = 2**30  # candidates; the kernels count in 32 bits

try:
    _C: Any = import_module("knockout.ops.cpu._C")
    _missing = ""
except ImportError as error:
    _missing = why_missing(error)


class CPU(Backend):
    """C++ kernels, used for CPU tensors wherever they were compiled."""

    name = "cpu"

    # PyTorch dispatches to the kernels that the extension has registered for CPU tensors.
    tournament = torch.ops.knockout.tournament.default
    tournament_backward = torch.ops.knockout.tournament_backward.default
    blend = torch.ops.knockout.blend.default
    spread = torch.ops.knockout.spread.default
    match = torch.ops.knockout.match.default
    if not _missing:
        topk = torch.ops.knockout.topk.default
        topk_backward = torch.ops.knockout.topk_backward.default

    def why_not(self) -> str:
        return _missing

    def refuses(self, scores: Tensor, boost: Boost | None) -> str:
        if _missing:
            return _missing
        if not scores.is_cpu:
            return f"it takes CPU tensors; got scores on {scores.device}"
        if scores.shape[-1] >= MOST:
            return f"it takes less than 2**30 candidates; got n = {scores.shape[-1]}"
        return refuses_boost(boost)


def _saved_length(n: Any, k: Any, itemsize: int) -> Any:
    base, per_slot, per_candidate = _C.saved_length(itemsize)
    return base + per_slot * k + per_candidate * n


if not _missing:
    schema.SAVED_LENGTH["cpu"] = _saved_length


def _refuses_all(name: str) -> Callable[..., Any]:
    """What an operator with kernels for CPU tensors alone does with others: an error that names the first of them."""
    arguments = [argument.name for argument in getattr(torch.ops.knockout, name).default._schema.arguments]

    def call(*args: Any) -> Any:
        for each, x in zip(arguments, args, strict=False):
            if isinstance(x, Tensor) and (not x.is_cpu or x.layout != torch.strided):
                raise ValueError(f"knockout: {each} must be a dense CPU tensor; got {x.layout} on {x.device}")
        raise RuntimeError(f"knockout: {name} must be called where there are kernels for {arguments[0]}. {_missing}")

    return call


for _name in schema.FUSED:
    schema.implement(_name, _refuses_all(_name), "CompositeExplicitAutograd")
