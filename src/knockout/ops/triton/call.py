"""One call of the tournament as the kernels take it, and what is saved for its backward pass."""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from knockout.dtypes import computing_dtype
from knockout.ops.boost_code import POWER
from knockout.ops.triton.backend import saved_length, state_length
from knockout.quota import Quota

NUMBERS = {torch.float32: tl.float32, torch.float64: tl.float64}


class Call(NamedTuple):
    """The arguments of an operator, as the kernels take them."""

    rows: int
    n: int
    k: int
    numerator: int
    counts: Tensor | None
    rounds: int
    dtype: torch.dtype
    kind: int
    alpha: int
    c: int  # the bits of a float64, as unit and scale, the scale before the first round
    unit: int
    scale: int
    c_tensor: Tensor | None
    unit_tensor: Tensor | None
    save: bool

    @property
    def played(self) -> int:
        """The number of rounds that are played: if there are none, one that has no pairs, for the order."""
        return max(self.rounds, 1)

    @property
    def full(self) -> int:
        """The entries of a full field."""
        return self.k << self.played

    @property
    def leaves(self) -> int:
        """The members that the slots of a row can have."""
        return self.k << self.rounds

    @property
    def saved_length(self) -> int:
        """The numbers of a row in ``saved``, int32."""
        return int(saved_length(self.k, self.rounds, self.dtype.itemsize)) if self.save else 0

    @property
    def state_stride(self) -> int:
        """From a row to the next one in ``state``: see rows.py."""
        return self.saved_length // 2 if self.save else state_length(self.rounds)

    @property
    def strides(self) -> dict[str, Any]:
        """From a row to the next one in the parts of ``Saved``, the state apart."""
        return {
            "number_stride": self.saved_length * 4 // self.dtype.itemsize, "integer_stride": self.saved_length,
        }  # fmt: skip

    @property
    def boost(self) -> dict[str, Any]:
        """The arguments of kernels that concern the boost."""
        return {
            "c_tensor": self.c_tensor, "unit_tensor": self.unit_tensor, "c_bits": self.c, "unit_bits": self.unit,
            "KIND": self.kind, "ALPHA": self.alpha, "NUMBER": NUMBERS[self.dtype],
            "C_TENSOR": self.c_tensor is not None, "UNIT_TENSOR": self.unit_tensor is not None,
        }  # fmt: skip

    @property
    def sizes(self) -> dict[str, Any]:
        """The arguments of kernels that concern the shape."""
        return {"n": self.n, "k": self.k, "state_stride": self.state_stride}

    @property
    def quota(self) -> dict[str, Any]:
        """The arguments of the kernels that find out how many slots a row plays for."""
        return {
            "numerator": self.numerator, "counts": self.counts, "FRACTION": self.numerator > 0,
            "COUNTS": self.counts is not None,
        }  # fmt: skip


def call_of(
    scores: Tensor, c_tensor: Tensor | None, unit_tensor: Tensor | None, k: int, numerator: int, kind: int, alpha: int,
    c: float, unit: float, save: bool, counts: Tensor | None,
) -> Call:  # fmt: skip
    """The call with these arguments of an operator."""
    n, dtype = scores.shape[-1], computing_dtype(scores.dtype)
    limits = torch.finfo(dtype)
    # Numbers in CPU tensors are known without waiting for the device.
    if c_tensor is not None and c_tensor.is_cpu:
        c, c_tensor = float(c_tensor), None
    if unit_tensor is not None and unit_tensor.is_cpu:
        unit, unit_tensor = float(unit_tensor), None
    c = min(math.log(c) if kind == POWER else c, limits.max)
    scale = 2.0 * max(unit, limits.tiny)
    unit = min(max(unit, limits.tiny), limits.max)
    rounds = Quota(k, numerator, counts).rounds(n)
    counts = counts if counts is None else counts.contiguous()
    return Call(
        math.prod(scores.shape[:-1]), n, k, numerator, counts, rounds, dtype, kind, alpha, _bits(c), _bits(unit),
        _bits(scale), c_tensor, unit_tensor, save,
    )  # fmt: skip


def _bits(x: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", x))[0])


class Saved(NamedTuple):
    """What the backward pass needs, as parts of one int32 tensor: see expand.py and play.py."""

    state: Tensor
    share: Tensor
    top: Tensor
    gap: Tensor
    place: Tensor
    candidate: Tensor
    position: Tensor

    @staticmethod
    def of(saved: Tensor, call: Call) -> Saved:
        """The parts, from the first row on. Each row has them all: vmap may repeat it. float64 is first, aligned."""
        numbers = (call.leaves * (call.dtype.itemsize // 4), call.dtype)
        flat, at, parts = saved.reshape(-1), 0, []
        for length, dtype in (
            (2 * state_length(call.rounds), torch.float64), *[numbers] * 3, *[(call.leaves, torch.int32)] * 3
        ):  # fmt: skip
            parts.append(flat[at:].view(dtype))
            at += length
        return Saved(*parts)
