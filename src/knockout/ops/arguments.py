"""Checks of the operators' arguments, for the implementation in Python. An operator can be called with anything.

The C++ kernels check the same, with the same names. What a check would have to fetch from a device (whether members are
in range, the tensors of a boost) is checked on the CPU only; elsewhere members out of range are padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from knockout.dtypes import DTYPES, computing_dtype
from knockout.ops.boost_code import ADAPTIVE, POWER
from knockout.quota import DENOMINATOR, Quota

SavedLength = Callable[[int, int, int], int]  # from k, the number of rounds and the size of a number

_WEIGHTS = (torch.float32, torch.float64)
_MEMBERS = (torch.int32, torch.int64)


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise ValueError(f"knockout: {text}")


def _check_tensor(tensor: Tensor, name: str, dtypes: Sequence[torch.dtype], first: Tensor) -> None:
    _require(isinstance(tensor, Tensor), f"{name} must be a tensor; got {tensor!r}")
    names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    _require(tensor.dtype in dtypes, f"{name} must be {names}; got {tensor.dtype}")
    _require(tensor.layout == torch.strided, f"{name} must be a dense tensor; got layout {tensor.layout}")
    _require(tensor.device == first.device, f"{name} must be on {first.device}, as others; got {tensor.device}")


def _check_shape(tensor: Tensor, name: str, shape: Sequence[int]) -> None:
    _require(tensor.shape == torch.Size(shape), f"{name} must have shape {tuple(shape)}; got {tuple(tensor.shape)}")


def _check_rows(shape: Sequence[int], name: str, batch: Sequence[int]) -> None:
    fits = len(shape) == len(batch) + 2 and all(
        size in (1, of_batch) for size, of_batch in zip(shape[:-2], batch, strict=True)
    )
    _require(
        fits and min(shape[-2:]) >= 0,
        f"{name} must have shape (*rows, n, d), where *rows broadcasts to the batch dimensions {tuple(batch)} of "
        f"member, with as many dimensions; got {tuple(shape)}",
    )


def _check_members(member: Tensor, n: int | None, first: Tensor) -> None:
    _check_tensor(member, "member", _MEMBERS, first)
    _require(
        member.dim() >= 2 and min(member.shape[-2:]) >= 1,
        f"member must have shape (*batch, k, m) with k and m of at least 1; got {tuple(member.shape)}",
    )
    if n is not None and member.is_cpu and member.numel():
        least, largest = (int(x) for x in member.aminmax())
        _require(
            least >= 0 and largest <= n,
            f"member must be from 0 to n = {n}, where n is padding; got {least if least < 0 else largest}",
        )


def _check_weights(weight: Tensor, member: Tensor) -> None:
    _check_tensor(weight, "weight", _WEIGHTS, member)
    _check_shape(weight, "weight", member.shape)


def _check_scores(scores: Tensor, mask: Tensor | None, k: int, numerator: int, counts: Tensor | None) -> None:
    _check_tensor(scores, "scores", DTYPES, scores)
    _require(scores.dim() > 0, "scores must have shape (*batch, n); got a tensor without dimensions")
    if mask is not None:
        _check_tensor(mask, "mask", (torch.bool,), scores)
        _check_shape(mask, "mask", scores.shape)
    n = scores.shape[-1]
    _require(1 <= k <= n, f"k must be from 1 to n = {n}, the number of scores in a row; got {k}")
    _require(0 <= numerator < DENOMINATOR, f"numerator must be from 0 to 2^30 - 1; got {numerator}")
    if numerator:
        slots = Quota.of_fraction(numerator / DENOMINATOR, n).k
        _require(
            slots == k, f"k must be the fraction numerator / 2^30 of n = {n}, rounded up, which is {slots}; got {k}"
        )
    if counts is not None:
        _require(not numerator, f"counts must be None with a fraction; got a tensor, and numerator = {numerator}")
        _check_tensor(counts, "counts", (torch.int64,), scores)
        _check_shape(counts, "counts", scores.shape[:-1])
        if counts.is_cpu and counts.numel():
            least, most = (int(x) for x in counts.aminmax())
            _require(least >= 1 and most <= k, f"counts must be from 1 to k = {k}; got {least if least < 1 else most}")


def _check_boost(
    c_tensor: Tensor | None, unit_tensor: Tensor | None, kind: int, alpha: int, c: float, unit: float
) -> None:
    _require(kind in (0, 1, 2, 3), f"kind must be 0, 1, 2 or 3; got {kind}")
    _require(alpha in (0, 1, 2), f"alpha must be 0, 1 or 2; got {alpha}")
    _require(unit_tensor is None or kind == ADAPTIVE, f"unit_tensor must be None unless kind is 3; got kind {kind}")
    _check_number(c, c_tensor, "c", least=1.0 if kind == POWER else 0.0)
    _check_number(unit, unit_tensor, "unit", least=0.0)


def _check_number(number: float, tensor: Tensor | None, name: str, least: float) -> None:
    """A number of a boost, or the tensor that replaces it."""
    known = True
    if tensor is not None:
        name = f"{name}_tensor"
        _check_tensor(tensor, name, DTYPES, tensor)
        _check_shape(tensor, name, ())
        known = tensor.is_cpu
        number = tensor.item() if known else number
    _require(not known or least < number < math.inf, f"{name} must be finite and above {least}; got {number}")


def _check_tournament(
    scores: Tensor, mask: Tensor | None, c_tensor: Tensor | None, unit_tensor: Tensor | None, k: int, numerator: int,
    kind: int, alpha: int, c: float, unit: float, by_position: bool, save: bool, fixed: bool,
    counts: Tensor | None = None,
) -> None:  # fmt: skip
    _check_scores(scores, mask, k, numerator, counts)
    _check_boost(c_tensor, unit_tensor, kind, alpha, c, unit)


def _check_tournament_backward(
    d_weight: Tensor | None, d_score: Tensor | None, scores: Tensor, mask: Tensor | None, c_tensor: Tensor | None,
    unit_tensor: Tensor | None, member: Tensor, saved: Tensor, k: int, numerator: int, kind: int, alpha: int, c: float,
    unit: float, _: bool, counts: Tensor | None = None, saved_length: SavedLength | None = None,
) -> None:  # fmt: skip
    _check_scores(scores, mask, k, numerator, counts)
    _check_boost(c_tensor, unit_tensor, kind, alpha, c, unit)
    batch, number = scores.shape[:-1], (computing_dtype(scores.dtype),)
    _check_members(member, None, scores)
    _check_shape(member, "member", (*batch, k, member.shape[-1]))
    # The members are as many as there can be. If nothing is saved, the rounds are played again.
    rounds = Quota(k, numerator, counts).rounds(scores.shape[-1])
    _check_tensor(saved, "saved", (torch.int32,), scores)
    length = saved_length(k, rounds, number[0].itemsize) if saved_length else 0
    _check_shape(saved, "saved", (*batch, length))
    most = 2**rounds
    _require(member.shape[-1] == most, f"member must have {most} members a slot; got {member.shape[-1]}")
    if d_weight is not None:
        _check_tensor(d_weight, "d_weight", number, scores)
        _check_shape(d_weight, "d_weight", member.shape)
    if d_score is not None:
        _check_tensor(d_score, "d_score", number, scores)
        _check_shape(d_score, "d_score", (*batch, k))


def _check_blend(values: Tensor, weight: Tensor, member: Tensor, valid: Tensor | None, _: bool) -> None:
    _check_tensor(values, "values", DTYPES, values)
    n = values.shape[-2] if values.dim() >= 2 else None
    _check_members(member, n, values)
    _check_weights(weight, member)
    _check_rows(values.shape, "values", member.shape[:-2])
    if valid is not None:
        _check_tensor(valid, "valid", (torch.bool,), values)
        _check_shape(valid, "valid", (*member.shape[:-2], 1))


def _check_spread(grad: Tensor, weight: Tensor, member: Tensor, shape: Sequence[int]) -> None:
    _check_tensor(grad, "grad", DTYPES, grad)
    _check_members(member, shape[-2] if len(shape) >= 2 else None, grad)
    _check_weights(weight, member)
    _check_rows(shape, "shape", member.shape[:-2])
    _check_shape(grad, "grad", (*member.shape[:-1], shape[-1]))


def _check_match(grad: Tensor, values: Tensor, member: Tensor, _: bool) -> None:
    _check_tensor(values, "values", DTYPES, values)
    _check_tensor(grad, "grad", (values.dtype,), values)
    _check_members(member, values.shape[-2] if values.dim() >= 2 else None, values)
    _check_rows(values.shape, "values", member.shape[:-2])
    _check_shape(grad, "grad", (*member.shape[:-1], values.shape[-1]))


_CHECKS: dict[str, Callable[..., None]] = {
    "tournament": _check_tournament,
    "tournament_backward": _check_tournament_backward,
    "blend": _check_blend,
    "spread": _check_spread,
    "match": _check_match,
}


def checked(
    name: str, operator: Callable[..., Any], saved_length: SavedLength | None = None
) -> Callable[..., Any]:  # fmt: skip
    """An implementation of the operator with this name that checks its arguments first.

    ``saved_length`` says how many numbers of a row its ``tournament`` saves, if any.
    """
    check = _CHECKS[name]
    if name == "tournament_backward":
        check = partial(check, saved_length=saved_length)

    def call(*args: Any) -> Any:
        check(*args)
        return operator(*args)

    return call
