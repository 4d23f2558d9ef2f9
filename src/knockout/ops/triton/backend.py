"""The backend ``triton``: kernels for GPUs, which Triton compiles at the first call of each kind.

Triton comes with every CUDA, ROCm and XPU build of PyTorch. In its interpreter the kernels run on CPU tensors too,
slowly, if the backend is forced: set TRITON_INTERPRET=1 before the first call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from knockout.boost import Boost
from knockout.ops import schema
from knockout.ops.arguments import checked
from knockout.ops.backend import Backend, refuses_boost
from knockout.quota import Quota
from knockout.torch_private import assume_constant_result

DEVICES = ("cuda", "xpu")  # PyTorch says cuda for AMD's GPUs, too
MOST = 2**29  # candidates; the kernels count in 32 bits, and a field may have twice as many entries

_missing = "" if find_spec("triton") else "Triton is not installed: it comes with PyTorch's builds for GPUs."


@assume_constant_result
def interpreted() -> bool:
    """Whether Triton interprets kernels instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


class Triton(Backend):
    """Triton kernels, used for tensors on GPUs."""

    name = "triton"

    def why_not(self) -> str:
        if _missing or interpreted() or torch.cuda.is_available() or torch.xpu.is_available():
            return _missing
        return (
            "PyTorch sees no GPU here. (To try the kernels on the CPU, slowly: set TRITON_INTERPRET=1 before the first "
            "call.)"
        )

    def takes_by_itself(self, scores: Tensor) -> bool:
        return scores.device.type in DEVICES and not interpreted()

    def refuses(self, scores: Tensor, boost: Boost | None) -> str:
        if _missing:
            return _missing
        if scores.device.type not in DEVICES and not (scores.is_cpu and interpreted()):
            return f"it takes tensors on a GPU, or on the CPU with TRITON_INTERPRET=1; got scores on {scores.device}"
        if scores.shape[-1] >= MOST:
            return f"it takes less than 2**29 candidates; got n = {scores.shape[-1]}"
        return refuses_boost(boost)


def state_length(rounds: int) -> int:
    """The numbers in the state of a row, float64: see rows.py."""
    return 4 + 2 * max(rounds, 1)


def saved_length(k: Any, rounds: int, itemsize: int) -> Any:
    """The numbers that ``tournament`` saves of a row, which call.py divides into parts; k may be symbolic."""
    words = itemsize // 4
    padding = k % 2 if words == 2 and rounds == 0 else 0  # an even number, so that float64 is aligned
    return 2 * state_length(rounds) + k * 2**rounds * (3 * words + 3) + padding


def _tournament_shapes(
    scores: Tensor, mask: Tensor | None, c_tensor: Tensor | None, unit_tensor: Tensor | None, k: int, numerator: int,
    kind: int, alpha: int, c: float, unit: float, by_position: bool, save: bool, fixed: bool,
    counts: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    rounds = Quota(k, numerator, counts).rounds(scores.shape[-1])
    length = saved_length(k, rounds, 8 if scores.dtype == torch.float64 else 4) if save else 0
    return schema.tournament_results(scores, k, torch.int32, 2**rounds, length)


def _implementation(name: str) -> Callable[..., Any]:
    """The operator with this name. Its kernels are imported at the first call: that takes a second."""
    module = name if name.startswith("tournament") else "gather"

    def call(*args: Any) -> Any:
        return getattr(import_module(f"knockout.ops.triton.{module}"), name)(*args)

    return checked(name, call, saved_length)


# Operators of their own, with the schemas of the others: in the interpreter they take the same CPU tensors.
_library = torch.library.Library("knockout_triton", "DEF")
for _name, _schema in schema.SCHEMAS.items():
    _library.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(_name, _implementation(_name), "CompositeExplicitAutograd")
    _shapes = _tournament_shapes if _name == "tournament" else schema.SHAPES[_name]
    torch.library.register_fake(f"knockout_triton::{_name}", schema.on_one_device(_name, _shapes), lib=_library)
    setattr(Triton, _name, getattr(torch.ops.knockout_triton, _name).default)
