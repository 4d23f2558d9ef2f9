"""The differentiable tournament: scores to members, weights and blended scores of the slots.

The first derivative is the backend's own operator. The second and higher ones are those of the reference, which has the
same results and is differentiated by autograd.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function, grad

from knockout.boost import Boost
from knockout.candidates import candidates
from knockout.ops import schema
from knockout.ops.autograd.function import apply, batch_first, is_in_graph
from knockout.ops.boost_code import BoostCode, decode, detach_tensors, encode
from knockout.ops.choice import BACKENDS
from knockout.ops.reference.tournament import tournament as reference
from knockout.quota import Quota
from knockout.torch_private import is_transforming


def tournament(
    scores: Tensor, mask: Tensor | None, quota: Quota, boost: Boost, by_position: bool, backend: str
) -> tuple[Tensor, ...]:
    """Play all rounds, by a backend that does not refuse the call: see ``ops.choice.choose``.

    Returns the fields of a ``Selected`` of reference/tournament.py, as a plain tuple, which is quicker to make.
    """
    counts = quota.counts
    if counts is not None:
        scores = scores.expand(*counts.shape, -1)
    if backend == "reference":
        # Plain PyTorch differentiates itself, to any order, and torch.compile sees through it.
        return reference(candidates(scores, mask), quota, boost, by_position)
    if mask is not None:
        scores, mask = torch.broadcast_tensors(scores, mask)
    # Under functorch we cannot know yet whether a gradient is wanted, so always save.
    save = is_transforming() or (torch.is_grad_enabled() and scores.requires_grad)
    # Fixed shapes, as long as any row could need: for tracing, and for tensor subclasses, which may be traced.
    fixed = torch.compiler.is_compiling() or type(scores) not in (Tensor, torch.nn.Parameter)
    boost, c_tensor, unit_tensor = detach_tensors(boost)
    numbers = (quota.k, quota.numerator, *encode(boost), by_position)
    if is_in_graph():
        played: tuple[Tensor, ...] = _in_graph(scores, mask, c_tensor, unit_tensor, *numbers, save, backend, counts)
        return played
    settings = Settings(backend, numbers, save, fixed)
    out: tuple[Tensor, ...] = apply(_Tournament, scores, mask, counts, c_tensor, unit_tensor, settings)
    return out[:6]


def backward(
    d_weight: Tensor | None, d_score: Tensor | None, scores: Tensor, mask: Tensor | None, counts: Tensor | None,
    c_tensor: Tensor | None, unit_tensor: Tensor | None, member: Tensor, saved: Tensor, settings: Settings,
) -> Tensor:  # fmt: skip
    """The gradient of the scores (*batch, n), from those of weights and blended scores, of which one may be None."""
    tensors = (d_weight, d_score, scores, mask, counts, c_tensor, unit_tensor, member, saved)
    out: Tensor = apply(_Backward, *tensors, settings)
    return out


class Settings(NamedTuple):
    """The arguments of the operators that are no tensors, but for those of the backward pass, which needs no more."""

    backend: str
    numbers: tuple[int, int, int, int, float, float, bool]  # of a Quota, a BoostCode, by_position
    save: bool
    fixed: bool


class _Tournament(Function):
    """Scores to the fields of ``Selected``, and what the backend saves for its backward pass."""

    internal_outputs = 1

    @staticmethod
    def forward(
        scores: Tensor,
        mask: Tensor | None,
        counts: Tensor | None,
        c_tensor: Tensor | None,
        unit_tensor: Tensor | None,
        settings: Settings,
    ) -> Any:
        backend, numbers, save, fixed = settings
        return BACKENDS[backend].tournament(scores, mask, c_tensor, unit_tensor, *numbers, save, fixed, counts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        scores, mask, counts, c_tensor, unit_tensor, ctx.settings = inputs
        member, _, _, leader, filled, valid, saved = output
        ctx.mark_non_differentiable(member, leader, filled, valid, saved)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(scores, mask, counts, c_tensor, unit_tensor, member, saved)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        _, d_weight, d_score, *_ = grads
        if d_weight is None and d_score is None:
            return (None,) * 6
        scores, mask, counts, c_tensor, unit_tensor, member, saved = ctx.saved_tensors
        d_scores = backward(d_weight, d_score, scores, mask, counts, c_tensor, unit_tensor, member, saved, ctx.settings)
        return d_scores, *(None,) * 5

    @staticmethod
    def vmap(info: Any, dims: Any, *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        # Not by our own `apply`: inside of a vmap rule no transform seems active, and outputs would be missing.
        return _Tournament.apply(*_mapped(info, dims, args)), (0,) * 7  # type: ignore[no-untyped-call]


class _Backward(Function):
    """Gradients of weight and score to the gradient of the scores."""

    @staticmethod
    def forward(
        d_weight: Tensor | None,
        d_score: Tensor | None,
        scores: Tensor,
        mask: Tensor | None,
        counts: Tensor | None,
        c_tensor: Tensor | None,
        unit_tensor: Tensor | None,
        member: Tensor,
        saved: Tensor,
        settings: Settings,
    ) -> Tensor:
        backend, numbers, _, _ = settings
        return BACKENDS[backend].tournament_backward(
            d_weight, d_score, scores, mask, c_tensor, unit_tensor, member, saved, *numbers, counts
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, _, ctx.settings = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        d_weight, d_score, scores, mask, counts, c_tensor, unit_tensor, member = ctx.saved_tensors
        k, numerator, *code, by_position = ctx.settings.numbers
        quota, boost = Quota(k, numerator, counts), decode(BoostCode(*code), c_tensor, unit_tensor)
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            d_weight, d_score, scores = (
                x if x is None or (again and x.requires_grad) else x.detach().requires_grad_()
                for x in (d_weight, d_score, scores)
            )
            played = reference(candidates(scores, mask), quota, boost, by_position)
            outputs, gradients = [], []
            if d_weight is not None:
                outputs.append(played.weight)
                gradients.append(_rearranged(d_weight, member, played.member, scores.shape[-1]))
            if d_score is not None:
                outputs.append(played.score)
                gradients.append(d_score)
            (first,) = grad(outputs, scores, gradients, create_graph=True)
            wanted = [x for x in (d_weight, d_score, scores) if x is not None]
            found = iter(grad(first, wanted, up, create_graph=again, allow_unused=True))
        return *(None if x is None else next(found) for x in (d_weight, d_score, scores)), *(None,) * 7

    @staticmethod
    def vmap(info: Any, dims: Any, *args: Any) -> tuple[Tensor, int]:
        return apply(_Backward, *_mapped(info, dims, args)), 0


def _play(
    scores: Tensor, mask: Tensor | None, c_tensor: Tensor | None, unit_tensor: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    *numbers, save, backend, counts = rest
    settings = Settings(backend, tuple(numbers), save, fixed=True)
    out: tuple[Tensor, ...] = apply(_Tournament, scores, mask, counts, c_tensor, unit_tensor, settings)
    return out[:6]


_in_graph = schema.define_in_graph(
    "tournament_in_graph",
    f"(Tensor scores, Tensor? mask, Tensor? c_tensor, Tensor? unit_tensor, {schema.QUOTA_AND_BOOST}, bool save, "
    "str backend, Tensor? counts) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _play,
)


def _rearranged(d_weight: Tensor, member: Tensor, to: Tensor, n: int) -> Tensor:
    """Gradients of the weights (*batch, k, m) of ``member``, in the order of the same members in ``to``."""
    place = member.long().flatten(-2)
    by_candidate = d_weight.new_zeros(*place.shape[:-1], n + 1).scatter(-1, place, d_weight.flatten(-2))
    padded = torch.where(torch.arange(n + 1, device=place.device) < n, by_candidate, 0.0)
    return padded.gather(-1, to.flatten(-2)).reshape(to.shape)


def _mapped(info: Any, dims: Any, args: Any) -> list[Any]:
    """The arguments of an operator with the mapped dimension first, as one more batch dimension."""
    return [
        _mapped_tensor(x, dim, info.batch_size) if isinstance(x, Tensor) else x
        for x, dim in zip(args, dims, strict=True)
    ]


def _mapped_tensor(x: Tensor, dim: int | None, size: int) -> Tensor:
    if x.dim() > (dim is not None) or not x.is_floating_point():
        return batch_first(x, dim, size)
    if dim is not None:  # the c or unit of a boost, the only tensors without dimensions of their own
        raise NotImplementedError(
            "the kernels take one c and one unit of a boost for all rows, not one by vmap; "
            "use knockout.backends.force('reference')"
        )
    return x
