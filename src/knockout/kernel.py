"""The tournament by the native kernel, with its gradients."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, grad

from knockout import native
from knockout.boost import Base, Boost, Fixed, Power, Relative
from knockout.checks import candidates
from knockout.plan import Bracket
from knockout.quota import Quota
from knockout.tournament import Result
from knockout.tournament import tournament as reference

Settings = tuple[Quota, Boost, bool, bool, bool]  # quota, boost, by_position, save, fixed
ALPHAS = (1.0, 1.5, 2.0)
KINDS = {Relative: 0, Fixed: 1, Base: 1, Power: 2}  # Base is Fixed of its logarithm


def takes(scores: Tensor, boost: Boost) -> bool:
    """Whether the kernel is to handle these scores with this boost."""
    return type(boost) in KINDS and native.takes(scores, scores.shape[-1]) and not _nested()


def tournament(scores: Tensor, mask: Tensor | None, quota: Quota, boost: Boost, by_position: bool) -> Result:
    """As the reference, from scores and mask as they came."""
    if mask is not None:
        scores, mask = torch.broadcast_tensors(scores, mask)
    # Whether the rounds must be kept for the backward pass; a transform does not tell in time.
    save = torch._C._are_functorch_transforms_active() or (torch.is_grad_enabled() and scores.requires_grad)
    # Whether shapes must be known beforehand, at the price of room for the most members that a slot could have.
    fixed = torch.compiler.is_compiling() or type(scores) not in (Tensor, torch.nn.Parameter)
    boost, c = _apart(boost)
    out = native.apply(_Tournament, scores, mask, c, (quota, boost, by_position, save, fixed))
    member, weight, score, leader, filled, _ = out
    return Result(Bracket(scores.shape[-1], member, weight, score), leader, filled)


class _Tournament(Function):
    """Scores to members, weights, blended scores, leaders, filled, and the kernel's record of the rounds."""

    @staticmethod
    def forward(scores: Tensor, mask: Tensor | None, c: Tensor | None, settings: Settings) -> tuple[Tensor, ...]:
        quota, boost, by_position, save, fixed = settings
        numbers = *quota, *_numbers(boost)
        out: tuple[Tensor, ...] = native.tournament(scores, mask, c, *numbers, by_position, save, fixed)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        scores, mask, c, ctx.settings = inputs
        member, _, _, leader, filled, ledger = output
        ctx.mark_non_differentiable(member, leader, filled, ledger)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(scores, mask, c, member, ledger)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        _, d_weight, d_score, *_ = grads
        if d_weight is None and d_score is None:
            return None, None, None, None
        return native.apply(_Backward, d_weight, d_score, *ctx.saved_tensors, ctx.settings), None, None, None

    @staticmethod
    def vmap(info: Any, dims: Any, *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return native.apply(_Tournament, *_lifted(info, dims, args)), (0,) * 6


class _Backward(Function):
    """The gradient of the scores. Its own derivatives are those of the reference, which has the same results."""

    @staticmethod
    def forward(
        d_weight: Tensor | None,
        d_score: Tensor | None,
        scores: Tensor,
        mask: Tensor | None,
        c: Tensor | None,
        member: Tensor,
        ledger: Tensor,
        settings: Settings,
    ) -> Tensor:
        quota, boost, _, _, _ = settings
        numbers = quota.k, *_numbers(boost)
        out: Tensor = native.tournament_backward(d_weight, d_score, scores, mask, c, member, ledger, *numbers)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        d_weight, d_score, scores, mask, c, member, _, ctx.settings = inputs
        ctx.save_for_backward(d_weight, d_score, scores, mask, c, member)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        d_weight, d_score, scores, mask, c, member = ctx.saved_tensors
        quota, boost, by_position, _, _ = ctx.settings
        boost = boost if c is None else replace(boost, c=c)
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            d_weight, d_score, scores = (
                x if x is None or (again and x.requires_grad) else x.detach().requires_grad_()
                for x in (d_weight, d_score, scores)
            )
            plan = reference(candidates(scores, mask), quota, boost, by_position).bracket
            outputs, gradients = [], []
            if d_weight is not None:
                outputs.append(plan.weight)
                gradients.append(_rearranged(d_weight, member, plan))
            if d_score is not None:
                outputs.append(plan.score)
                gradients.append(d_score)
            (first,) = grad(outputs, scores, gradients, create_graph=True)
            wanted = [x for x in (d_weight, d_score, scores) if x is not None]
            found = iter(grad(first, wanted, up, create_graph=again, allow_unused=True))
        return *(None if x is None else next(found) for x in (d_weight, d_score, scores)), *(None,) * 5

    @staticmethod
    def vmap(info: Any, dims: Any, *args: Any) -> tuple[Tensor, int]:
        return native.apply(_Backward, *_lifted(info, dims, args)), 0


def _apart(boost: Boost) -> tuple[Boost, Tensor | None]:
    """A boost whose c is a number, and what the tensor that it stands for holds now, if it was one."""
    if isinstance(boost, (Relative, Fixed)) and isinstance(boost.c, Tensor):
        return replace(boost, c=1.0), boost.c.detach().clone()
    return boost, None


def _numbers(boost: Boost) -> tuple[int, int, float, float]:
    """A boost as the kernel takes it: kind, alpha, sharpness, unit."""
    kind, alpha = KINDS[type(boost)], ALPHAS.index(boost.alpha)
    if isinstance(boost, Relative):
        return kind, alpha, float(boost.c), boost.unit
    return kind, alpha, float(boost.c) if isinstance(boost, Fixed) else math.log(boost.b), 1.0  # type: ignore[attr-defined]


def _rearranged(d_weight: Tensor, member: Tensor, plan: Bracket) -> Tensor:
    """Gradients of the kernel's weights, (*batch, k, m), in the places that the reference has for the same members."""
    n = plan.n
    place = member.long().flatten(-2)
    each = d_weight.new_zeros(*place.shape[:-1], n + 1).scatter(-1, place, d_weight.flatten(-2))
    each = torch.where(torch.arange(n + 1, device=each.device) < n, each, 0.0)
    return each.gather(-1, plan.member.flatten(-2)).reshape(plan.member.shape)


def _lifted(info: Any, dims: Any, args: Any) -> list[Any]:
    return [
        _lifted_each(x, dim, info.batch_size) if isinstance(x, Tensor) else x for x, dim in zip(args, dims, strict=True)
    ]


def _lifted_each(x: Tensor, dim: int | None, size: int) -> Tensor:
    if x.dim() > (dim is not None):
        return native.lift(x, dim, size)
    if dim is not None:  # the c of a boost, the only one that has no dimensions of its own
        raise NotImplementedError(
            "the kernels take one c of a boost for all rows, not one by vmap; use knockout.native.force('reference')"
        )
    return x


def _nested() -> bool:
    """Whether torch.func differentiates more than once: a gradient of a gradient is the reference's."""
    if not torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling():
        return False
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return sum(level.key() != torch._C._functorch.TransformType.Vmap for level in levels) > 1
