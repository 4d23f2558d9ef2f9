"""The differentiable tournament and gather in one: one operator forward, one backward.

Only for backends that have these as operators of their own, and for plain tensors outside of transforms: see ``fuses``.
The gradients are those of tournament.py and gather.py, to the last bit. Where they are differentiated again, they are
computed by these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.compiler import is_compiling

from knockout.boost import Boost
from knockout.ops.autograd import gather, tournament
from knockout.ops.boost_code import detach_tensors, encode
from knockout.ops.choice import BACKENDS
from knockout.quota import Quota
from knockout.torch_private import is_in_forward_mode, is_transforming

_PLAIN = (Tensor, torch.nn.Parameter)


def fuses(backend: str, values: Tensor, scores: Tensor, mask: Tensor | None, counts: Tensor | None = None) -> bool:
    """Whether ``topk`` can be called: with values of their own for each row of scores, and no transform active."""
    return (
        BACKENDS[backend].topk is not None
        and values.shape[:-1] == scores.shape
        and (mask is None or mask.shape == scores.shape)
        and (counts is None or counts.shape == scores.shape[:-1])
        and type(values) in _PLAIN
        and type(scores) in _PLAIN
        and not (is_compiling() or is_transforming() or is_in_forward_mode())
    )


def topk(
    values: Tensor, scores: Tensor, mask: Tensor | None, quota: Quota, boost: Boost, by_position: bool, members: bool,
    backend: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Blended values (*batch, k, d), and the fields of a ``Selected`` of reference/tournament.py.

    Members and weights are given only if they are asked for, or needed for a gradient.
    """
    boost, c_tensor, unit_tensor = detach_tensors(boost)
    counts, numbers = quota.counts, (quota.k, quota.numerator, *encode(boost), by_position)
    if torch.is_grad_enabled() and (scores.requires_grad or values.requires_grad):
        out: tuple[Tensor, ...] = _TopK.apply(  # type: ignore[no-untyped-call]
            values, scores, mask, counts, c_tensor, unit_tensor, _Settings(backend, numbers, scores.requires_grad)
        )
        return out
    return _operator(backend)(values, scores, mask, c_tensor, unit_tensor, *numbers, members, False, counts)[:-1]


def _operator(backend: str) -> Callable[..., tuple[Tensor, ...]]:
    operator = BACKENDS[backend].topk
    assert operator is not None
    return operator


class _Settings(NamedTuple):
    backend: str
    numbers: tuple[int, int, int, int, float, float, bool]  # of a Quota, a BoostCode, by_position
    save: bool  # whether scores need a gradient


class _TopK(Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        scores: Tensor,
        mask: Tensor | None,
        counts: Tensor | None,
        c_tensor: Tensor | None,
        unit_tensor: Tensor | None,
        settings: _Settings,
    ) -> tuple[Tensor, ...]:
        backend, numbers, save = settings
        *out, saved = _operator(backend)(values, scores, mask, c_tensor, unit_tensor, *numbers, True, save, counts)
        _, member, weight, score, leader, filled, valid = out
        ctx.settings = settings
        ctx.shape = values.shape
        ctx.mark_non_differentiable(member, leader, filled, valid, *(() if save else (weight, score)))
        ctx.set_materialize_grads(False)
        # Values are needed for the gradient of the scores alone: otherwise they may be freed, or changed in place.
        ctx.save_for_backward(
            values if save else None, scores, mask, counts, c_tensor, unit_tensor, member, weight, saved
        )
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        _, d_weight, d_score, *_ = grads
        values, scores, mask, counts, c_tensor, unit_tensor, member, weight, saved = ctx.saved_tensors
        backend, numbers, _ = ctx.settings
        values_wanted, scores_wanted, *_ = ctx.needs_input_grad
        d_values: Tensor | None = None
        d_scores: Tensor | None = None
        if grad is not None and d_weight is None and scores_wanted and not torch.is_grad_enabled():
            operator = BACKENDS[backend].topk_backward
            assert operator is not None
            d_values, d_scores = operator(
                grad, d_score, values, scores, mask, c_tensor, unit_tensor, member, weight, saved, *numbers,
                values_wanted, True, counts,
            )  # fmt: skip
            return d_values if values_wanted else None, d_scores, *(None,) * 5
        if grad is not None and values_wanted:
            d_values = gather.spread(grad, weight, member, ctx.shape, backend=backend)
        if scores_wanted:
            if grad is not None:
                from_values = gather.match(grad, values, member, weight.dtype, backend)
                d_weight = from_values if d_weight is None else d_weight + from_values
            if d_weight is not None or d_score is not None:
                settings = tournament.Settings(backend, numbers, True, False)
                d_scores = tournament.backward(
                    d_weight, d_score, scores, mask, counts, c_tensor, unit_tensor, member, saved, settings
                )
        return d_values, d_scores, *(None,) * 5
