"""Calls of the operator, and what they launch: recorded on the device ``meta``, where tensors have no data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import knockout
from knockout import backends
from knockout.boost import DEFAULT, Boost, Fixed, Power, Relative
from knockout.dtypes import computing_dtype
from knockout.ops.boost_code import encode
from knockout.quota import Quota


class Call(NamedTuple):
    """``knockout.topk`` of values (rows, n, d), forward and backward."""

    n: int
    k: int
    rows: int = 16
    d: int = 32
    boost: Boost = DEFAULT
    dtype: torch.dtype = torch.float32
    fraction: float = 0.0  # k is this part of the candidates
    mask: bool = False
    by_position: bool = False
    hard: bool = False
    shared: bool = False  # one table of values for all rows
    tensors: bool = False  # c and unit are tensors on the device, as in a layer


class Launch(NamedTuple):
    """A kernel, over what it is launched, and its arguments by name."""

    kernel: Any
    grid: tuple[int, ...]
    elements: int
    arguments: Mapping[str, Any]


# The cells of which launches are counted, and which the model is made for.
CELLS = {
    f"{n}, {k}": Call(n, k) for n, k in ((64, 8), (1024, 64), (4096, 64), (16384, 2), (16384, 64), (16384, 2048))
}  # fmt: skip
# Each size that a kernel is specialized for occurs in one of these.
SIZES = {
    **{f"{n}, {n // 4}": Call(n, n // 4) for n in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)},
    **{f"{n}, 1": Call(n, 1) for n in (64, 256, 1024, 4096)},
    **{f"16384, {k}": Call(16384, k) for k in (2, 64, 2048)},
    **{f"{n}, 64": Call(n, 64, rows=2) for n in (8192, 65536, 2**20)},
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "mask": {"mask": True},
    "fraction": {"fraction": 0.25},
    "by position": {"by_position": True},
    "hard": {"hard": True},
    "c and unit in tensors": {"tensors": True},
    "shared values": {"shared": True},
    "d = 1": {"d": 1},
    "d = 768": {"d": 768},
    "float64": {"dtype": torch.float64},
    "float16": {"dtype": torch.float16},
    "bfloat16": {"dtype": torch.bfloat16},
}
_BOOSTS: dict[str, dict[str, Any]] = {
    f"{kind.__name__}, alpha {alpha:g}": {"boost": kind(4.0, alpha=alpha)}
    for kind in (Relative, Fixed, Power)
    for alpha in (1.0, 1.5, 2.0)
}
OPTIONS = {
    **{f"256, 8, {name}": Call(256, 8, **options) for name, options in (_OPTIONS | _BOOSTS).items()},
    **{f"4096, 64, {name}": Call(4096, 64, **options) for name, options in _OPTIONS.items()},
}


class CountLaunches(TorchDispatchMode):
    """Counts the operations of PyTorch that launch something; those that only make or view memory do not.

    Each counts as one, though some launch several kernels.
    """

    FREE = ("empty", "new_empty", "_unsafe_view", "_reshape_alias", "scalar_tensor", "lift_fresh")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches: list[tuple[str, int]] = []  # the names of operations, and the bytes of their results

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::")
        if not name.startswith(self.FREE) and not func.is_view:
            tensors = [each for each in (result if isinstance(result, tuple) else [result]) if isinstance(each, Tensor)]
            self.launches.append((name, sum(each.nbytes for each in tensors)))
        return result


_Settings = tuple[int, int, int, int, float, float, bool]  # k, numerator, the code of the boost, by_position


class Passes(NamedTuple):
    """What a call launches: kernels of ours in order, and the operations of PyTorch beside them."""

    forward: list[Launch]
    backward: list[Launch]
    torch_forward: list[tuple[str, int]]
    torch_backward: list[tuple[str, int]]


def recorded(call: Call) -> Passes:
    """What the forward and the backward pass of a call launch."""
    from knockout.ops.triton import gather, launch
    from knockout.ops.triton.tournament import tournament
    from knockout.ops.triton.tournament_backward import tournament_backward

    taken: list[Launch] = []
    values, scores, mask, c, unit, settings = _arguments(call)
    forward, backward = CountLaunches(), CountLaunches()
    with launch.intercepted(lambda *each: taken.append(Launch(*each))):
        with forward:
            member, weight, score, *_, valid, saved = tournament(scores, mask, c, unit, *settings, True, True)
            out = gather.blend(values, weight, member, valid, call.hard)
        first = len(taken)
        with backward:
            d_weight = gather.match(out, values, member, call.dtype == torch.float64)
            gather.spread(out, weight, member, values.shape)
            tournament_backward(d_weight, score, scores, mask, c, unit, member, saved, *settings)
    return Passes(taken[:first], taken[first:], forward.launches, backward.launches)


def launches_of_reference(call: Call) -> tuple[int, int]:
    """How many operations of PyTorch a call by the reference backend launches, forward and backward."""
    values, scores, mask, *_ = _arguments(call)
    values, scores = values.requires_grad_(), scores.requires_grad_()
    forward, backward = CountLaunches(), CountLaunches()
    with backends.force("reference"):
        with forward:
            out = knockout.topk(values, scores, call.k, call.boost, mask).values
        with backward:
            out.backward(torch.empty_like(out))
    return len(forward.launches), len(backward.launches)


def _arguments(call: Call) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, _Settings]:
    """Values, scores, mask, c and unit as tensors, and the settings that all operators of the tournament take."""
    with torch.device("meta"):
        scores = torch.empty(call.rows, call.n, dtype=call.dtype)
        values = torch.empty(1 if call.shared else call.rows, call.n, call.d, dtype=call.dtype)
        mask = torch.empty(call.rows, call.n, dtype=torch.bool) if call.mask else None
        number = torch.empty((), dtype=computing_dtype(call.dtype)) if call.tensors else None
    quota = Quota.of_fraction(call.fraction, call.n) if call.fraction else Quota(call.k, 0)
    settings = (quota.k, quota.numerator, *encode(call.boost), call.by_position)
    return values, scores, mask, number, number, settings
