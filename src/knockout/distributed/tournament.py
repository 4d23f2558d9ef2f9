"""The tournament of candidates that are distributed over ranks, as one differentiable function.

Only scores decide, so only scores are sent. Each row of scores has an owner rank. The other ranks send it the scores of
their candidates, except for pruned ones. It plays the tournament of the row as a single process would, and sends the
plan to all ranks. Gradients are sent back the same way.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from knockout.candidates import invalidate
from knockout.distributed.call import Call
from knockout.distributed.owner import ID_STRIDE, FlatPlan, RowOwner
from knockout.distributed.ranks import RankError, Ranks
from knockout.distributed.routing import Routing, find_routing


class LocalResult(NamedTuple):
    """The plan of all rows, with this rank's own candidates as members."""

    weight: Tensor  # (rows, k, m): of the members of all ranks; NaN throughout an invalid row
    score: Tensor  # (rows, k); NaN throughout an invalid row
    member: Tensor  # (rows, k, m): among this rank's n candidates; n for candidates of other ranks, and for padding
    leader: Tensor  # (rows, k): among the candidates of all ranks; -1 in an empty slot
    valid: Tensor  # (rows, 1) bool: False for an invalid row, with a NaN or +inf score on any rank


def tournament(scores: Tensor, active: Tensor, call: Call) -> LocalResult:
    """Play the tournament, given the scores (rows, n) of this rank's candidates, and which of them are active."""
    if call.needs_grad and not scores.requires_grad:
        # This rank, too, needs a backward pass: the other ranks wait for its messages.
        scores = scores.detach().requires_grad_()
    return LocalResult(*_Tournament.apply(scores, active, call))  # type: ignore[no-untyped-call]


class _Tournament(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, active: Tensor, call: Call) -> LocalResult:
        routing = find_routing(scores, active, call)
        received = routing.to_owners(scores.flatten()[routing.sent_index])
        owner, own_plan, lengths = _play_own_rows(received, routing, call)
        plan = _gather_plans(own_plan, lengths, routing)
        places = torch.arange(max([1, *plan.counts.flatten().tolist()]), device=received.device)
        is_member = places < plan.counts.unsqueeze(-1)  # (rows, k, m): the places of the flat list of members
        result = _localize(plan, is_member, routing, call)
        ctx.call, ctx.routing, ctx.owner, ctx.is_member, ctx.lengths = call, routing, owner, is_member, lengths
        ctx.dtype = scores.dtype
        ctx.mark_non_differentiable(result.member, result.leader, result.valid)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_weight: Tensor, d_score: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        routing, ranks, factor = ctx.routing, ctx.call.ranks, ctx.call.gradient_factor
        ranks.check_same_call(ctx.call.number, "backward")
        d_received, d_pruned = ctx.owner.backward(
            ranks.sum_own_part(factor * d_weight[ctx.is_member], ctx.lengths, "gradients of the plan"),
            ranks.sum_own_part(factor * d_score, routing.rows_per_owner, "gradients of the plan"),
        )
        d_sent = routing.from_owners(d_received.to(ctx.dtype))
        if routing.pruned is None:
            d_scores = d_sent.new_zeros(routing.shape)
        else:
            d_pruned = ranks.concatenate(d_pruned.to(ctx.dtype), routing.rows_per_owner, "gradients of pruned bins")
            d_scores = pad(d_pruned, (0, 1)).gather(1, routing.pruned.bin)  # 0 for inactive candidates
        d_scores.view(-1)[routing.sent_index] = d_sent
        return d_scores, None, None


def _play_own_rows(received: Tensor, routing: Routing, call: Call) -> tuple[RowOwner, FlatPlan, list[int]]:
    """Play the rows that this rank owns. Returns also the number of members in the plan of each rank.

    If that fails on a rank, all ranks raise an error.
    """
    played, failure = None, None
    try:
        owner = RowOwner(received, routing, call)
        played = owner, owner.play()
    except Exception as error:
        failure = error
    length = -1 if played is None else len(played[1].member)
    lengths = call.ranks.all_gather(torch.tensor(length, device=received.device), "plan lengths").tolist()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # or this frame and the error's traceback would keep each other, and the caller's group, alive
    if min(lengths) < 0:
        raise RankError(
            f"knockout.distributed: the tournament failed on rank {lengths.index(-1)}; see the error of that rank"
        )
    assert played is not None
    return *played, lengths


def _gather_plans(plan: FlatPlan, lengths: list[int], routing: Routing) -> FlatPlan:
    """The plan of all rows, from the plans of all owners."""
    member, weight = _concatenate_packed((plan.member, plan.weight), lengths, routing.ranks)
    by_row = (plan.counts, plan.leader, plan.score, plan.valid)
    return FlatPlan(member, weight, *_concatenate_packed(by_row, routing.rows_per_owner, routing.ranks))


def _concatenate_packed(tensors: Sequence[Tensor], counts: list[int], ranks: Ranks) -> list[Tensor]:
    """``Ranks.concatenate`` for several tensors (counts[rank], ...) in one message.

    Tensors with wider dtypes must come first, so that each starts at an address that is a multiple of its item size.
    """
    widths = [x.shape[1:].numel() * x.itemsize for x in tensors]
    raw = [x.flatten().view(torch.uint8).view(len(x), width) for x, width in zip(tensors, widths, strict=True)]
    parts = ranks.concatenate(torch.cat(raw, dim=1), counts, "plans").split(widths, dim=1)
    return [part.flatten().view(x.dtype).view(-1, *x.shape[1:]) for part, x in zip(parts, tensors, strict=True)]


def _localize(plan: FlatPlan, is_member: Tensor, routing: Routing, call: Call) -> LocalResult:
    """The plan of all rows, with candidate ids replaced by the indices of this rank's candidates."""
    ranks, sent = call.ranks, routing.sent_counts[call.ranks.rank]
    n, offset = call.sizes[ranks.rank], sum(call.sizes[: ranks.rank])
    starts = torch.tensor([0, *itertools.accumulate(sent)][: len(sent)], dtype=torch.int64, device=is_member.device)
    sent_index = pad(routing.sent_index, (0, 1))  # never empty, so that it can be indexed even if nothing was sent

    def local_index(candidate_id: Tensor) -> Tensor:
        """The index of this rank's candidates (rows, ...); n for candidates of other ranks, and for the id -1."""
        own = candidate_id.div(ID_STRIDE, rounding_mode="floor") == ranks.rank
        number = starts.view(-1, *(1,) * (candidate_id.dim() - 1)) + candidate_id % ID_STRIDE
        return torch.where(own, sent_index[torch.where(own, number, len(sent_index) - 1)] % max(1, n), n)

    member = local_index(
        torch.full(is_member.shape, -1, device=is_member.device).masked_scatter(is_member, plan.member)
    )
    padding = invalidate(plan.weight.new_zeros(is_member.shape), plan.valid.unsqueeze(-1))
    weight = padding.masked_scatter(is_member, plan.weight)
    leader = local_index(plan.leader)
    global_leader = ranks.all_sum(torch.where(leader < n, offset + leader, 0), "leaders")
    return LocalResult(weight, plan.score, member, torch.where(plan.leader < 0, -1, global_leader), plan.valid)
