"""The five operators, declared: ``torch.ops.knockout.*`` exist on every machine, whatever can run them fast there.

Where a device has no kernel, an operator runs the reference. In the shapes, m is the number of members of the longest
slot:

``tournament``           scores (*batch, n), mask (*batch, n) bool -> member (*batch, k, m) int32 or int64, weight
                         (*batch, k, m), score (*batch, k), leader (*batch, k) int64, filled (*batch, k) bool, valid
                         (*batch, 1) bool, saved: see ``Selected`` in reference/tournament.py. ``save``: whether there
                         will be a backward pass. ``fixed``: shapes must not depend on data. The boost is a
                         ``BoostCode``; ``c_tensor`` replaces its c, and ``unit_tensor`` its unit. k, ``numerator``
                         and ``counts`` (*batch) int64 are a ``Quota``.
``tournament_backward``  gradients of weight and score -> the gradient of scores (*batch, n)
``blend``                values (*rows, n, d), weight and member (*batch, k, m), valid (*batch, 1) -> (*batch, k, d)
``spread``               grad (*batch, k, d), weight, member -> (*rows, n, d) = shape
``match``                grad (*batch, k, d), values (*rows, n, d), member -> (*batch, k, m), in float32 or float64

*rows has as many dimensions as *batch and broadcasts to it. What the last three compute: autograd/gather.py.

Two more have kernels for CPU tensors only:

``topk``                 values (*batch, n, d), scores and mask (*batch, n) -> what ``tournament`` and ``blend`` give:
                         out (*batch, k, d), and the results of ``tournament``. m is 0 without ``members`` and ``save``.
``topk_backward``        gradients of out and score -> those of values and scores; empty (0,) if they are not wanted
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from knockout.dtypes import computing_dtype
from knockout.quota import Quota

QUOTA_AND_BOOST = "SymInt k, int numerator, int kind, int alpha, float c, float unit, bool by_position"
SCHEMAS = {
    "tournament": (
        f"(Tensor scores, Tensor? mask, Tensor? c_tensor, Tensor? unit_tensor, {QUOTA_AND_BOOST}, bool save, "
        "bool fixed, Tensor? counts=None) -> "
        "(Tensor member, Tensor weight, Tensor score, Tensor leader, Tensor filled, Tensor valid, Tensor saved)"
    ),
    "tournament_backward": (
        "(Tensor? d_weight, Tensor? d_score, Tensor scores, Tensor? mask, Tensor? c_tensor, Tensor? unit_tensor, "
        f"Tensor member, Tensor saved, {QUOTA_AND_BOOST}, Tensor? counts=None) -> Tensor"
    ),
    "blend": "(Tensor values, Tensor weight, Tensor member, Tensor? valid, bool hard) -> Tensor",
    "spread": "(Tensor grad, Tensor weight, Tensor member, SymInt[] shape) -> Tensor",
    "match": "(Tensor grad, Tensor values, Tensor member, bool float64) -> Tensor",
}
FUSED = {
    "topk": (
        "(Tensor values, Tensor scores, Tensor? mask, Tensor? c_tensor, Tensor? unit_tensor, "
        f"{QUOTA_AND_BOOST}, bool members, bool save, Tensor? counts=None) -> "
        "(Tensor out, Tensor member, Tensor weight, Tensor score, Tensor leader, Tensor filled, Tensor valid, "
        "Tensor saved)"
    ),
    "topk_backward": (
        "(Tensor grad, Tensor? d_score, Tensor values, Tensor scores, Tensor? mask, Tensor? c_tensor, "
        f"Tensor? unit_tensor, Tensor member, Tensor weight, Tensor saved, {QUOTA_AND_BOOST}, bool values_wanted, "
        "bool scores_wanted, Tensor? counts=None) -> (Tensor, Tensor)"
    ),
}

# The length of `saved` in fixed mode, from n and k, which may be symbolic, and the size of a number: for each device
# that has a backend of its own, put here by that backend. On other devices the reference runs, and saves nothing.
SAVED_LENGTH: dict[str, Callable[[Any, Any, int], Any]] = {}

_library = torch.library.Library("knockout", "DEF")
for _name, _schema in (SCHEMAS | FUSED).items():
    _library.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))


def _tournament(
    scores: Tensor, mask: Tensor | None, c_tensor: Tensor | None, unit_tensor: Tensor | None, k: int, numerator: int,
    kind: int, alpha: int, c: float, unit: float, by_position: bool, save: bool, fixed: bool,
    counts: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    _check_tournament(scores, k)
    n, number = scores.shape[-1], computing_dtype(scores.dtype)
    members: Any = 2 ** Quota(k, numerator, counts).rounds(n)
    saved_length = SAVED_LENGTH.get(scores.device.type)
    if saved_length is None:
        return tournament_results(scores, k, torch.int64, members, 0)
    # The kernels make both as long as the longest row needs, or, in fixed mode, as any row could need.
    if not fixed:
        length = torch.library.get_ctx().new_dynamic_size() if save else 0
        return tournament_results(scores, k, torch.int32, torch.library.get_ctx().new_dynamic_size(), length)
    least = k if counts is None else 1  # slots of a row: the fewer there are, the more candidates are eliminated
    length = saved_length(n, least, number.itemsize) + k - least if save else 0
    return tournament_results(scores, k, torch.int32, members, length)


def _check_tournament(scores: Tensor, k: int) -> None:
    if scores.dim() == 0:
        raise ValueError("knockout: scores must have shape (*batch, n); got a tensor without dimensions")
    if k < 1:
        raise ValueError(f"knockout: k must be at least 1; got {k}")


def tournament_results(
    scores: Tensor, k: int, member_dtype: torch.dtype, members: Any, length: Any
) -> tuple[Tensor, ...]:  # fmt: skip
    """Empty results of ``tournament``, with so many members of a slot and so many saved numbers of a row."""
    batch, number = scores.shape[:-1], computing_dtype(scores.dtype)
    return (
        scores.new_empty((*batch, k, members), dtype=member_dtype),
        scores.new_empty((*batch, k, members), dtype=number),
        scores.new_empty((*batch, k), dtype=number),
        scores.new_empty((*batch, k), dtype=torch.int64),
        scores.new_empty((*batch, k), dtype=torch.bool),
        scores.new_empty((*batch, 1), dtype=torch.bool),
        scores.new_empty((*batch, length), dtype=torch.int32),
    )


def _tournament_backward(d_weight: Tensor | None, d_score: Tensor | None, scores: Tensor, *_: Any) -> Tensor:
    return scores.new_empty(scores.shape)


def _blend(values: Tensor, weight: Tensor, member: Tensor, valid: Tensor | None, hard: bool) -> Tensor:
    return values.new_empty((*member.shape[:-1], values.shape[-1]))


def _spread(grad: Tensor, weight: Tensor, member: Tensor, shape: Sequence[int]) -> Tensor:
    return grad.new_empty(shape)


def _match(grad: Tensor, values: Tensor, member: Tensor, float64: bool) -> Tensor:
    return grad.new_empty(member.shape, dtype=torch.float64 if float64 else torch.float32)


def _topk(
    values: Tensor, scores: Tensor, mask: Tensor | None, c_tensor: Tensor | None, unit_tensor: Tensor | None, k: int,
    numerator: int, kind: int, alpha: int, c: float, unit: float, by_position: bool, members: bool, save: bool,
    counts: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    numbers = (k, numerator, kind, alpha, c, unit, by_position)
    if members or save:
        selected = _tournament(scores, mask, c_tensor, unit_tensor, *numbers, save, False, counts)
    else:
        _check_tournament(scores, k)
        selected = tournament_results(scores, k, torch.int32, 0, 0)
    return values.new_empty((*scores.shape[:-1], k, values.shape[-1])), *selected


def _topk_backward(
    grad: Tensor, d_score: Tensor | None, values: Tensor, scores: Tensor, mask: Tensor | None, c_tensor: Tensor | None,
    unit_tensor: Tensor | None, member: Tensor, weight: Tensor, saved: Tensor, k: int, numerator: int, kind: int,
    alpha: int, c: float, unit: float, by_position: bool, values_wanted: bool, scores_wanted: bool, *_: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return (
        values.new_empty(values.shape if values_wanted else (0,)),
        scores.new_empty(scores.shape if scores_wanted else (0,)),
    )


SHAPES: dict[str, Callable[..., Any]] = {
    "tournament": _tournament,
    "tournament_backward": _tournament_backward,
    "blend": _blend,
    "spread": _spread,
    "match": _match,
    "topk": _topk,
    "topk_backward": _topk_backward,
}


def on_one_device(name: str, shapes: Callable[..., Any]) -> Callable[..., Any]:
    """The shapes of results, if all tensors are on one device; the tensors of a boost may also be on the CPU.

    With one tensor on the device ``meta`` PyTorch calls this instead of a kernel: the results would be new memory on
    the device of the others, with nothing written to it.
    """
    arguments = [argument.name for argument in getattr(torch.ops.knockout, name).default._schema.arguments]

    def call(*args: Any) -> Any:
        tensors = {each: x for each, x in zip(arguments, args, strict=False) if isinstance(x, Tensor)}
        device = next(iter(tensors.values())).device
        for each, x in tensors.items():
            if x.device != device and not (each in ("c_tensor", "unit_tensor") and x.is_cpu):
                raise ValueError(f"knockout: {each} must be on {device}, as other arguments; got {x.device}")
        return shapes(*args)

    return call


for _name, _fake in SHAPES.items():
    torch.library.register_fake(f"knockout::{_name}", on_one_device(_name, _fake), lib=_library)


def define_in_graph(name: str, schema: str, function: Callable[..., Any]) -> Any:
    """An operator that only calls ``function``, a differentiable function of tensors and numbers. Returns the operator.

    ``torch.compile`` puts a call of it into its graph without tracing what is in it; AOTAutograd, which comes next,
    sees the operators in it, and their derivatives, as in an eager call. (Of a ``torch.autograd.Function``, Dynamo
    traces forward, setup_context and backward, and fills gradients that are not there with zeros.)
    """
    _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, function, "CompositeImplicitAutograd")
    return getattr(torch.ops.knockout, name).default


def implement(name: str, function: Callable[..., Any], key: str) -> None:
    """Register a Python implementation of an operator for a dispatch key."""
    _library.impl(name, function, key)
