"""The tournament of candidates that are spread over ranks, with its gradients.

Scores decide, so only scores meet. Each row of the batch has a home, one of the ranks, that plays its tournament as if
it were alone: the ranks send it their scores, but for those that need not travel, and it sends all of them the plan.
Gradients come back the same way.
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

from knockout.boost import Boost
from knockout.distributed.home import SOURCE, Home, Plan
from knockout.distributed.ranks import RankError, Ranks
from knockout.distributed.route import Route, find_route
from knockout.functional import Order
from knockout.quota import Quota


class Game(NamedTuple):
    """What is played: the same on all ranks."""

    ranks: Ranks
    sizes: list[int]  # candidates of each rank
    k: int | float
    quota: Quota
    boost: Boost
    order: Order
    hard: bool
    learns: bool  # whether any rank wants a gradient
    number: int  # of the call
    share: float  # of each rank's gradient of the plan: 1 for their sum, 1 / size for their mean


class Played(NamedTuple):
    """The plan of all rows as this rank sees it: (rows, k, m), and of what is left, (rows, k)."""

    weight: Tensor
    score: Tensor
    member: Tensor  # of this rank's candidates; its n for nobody, and for those of other ranks
    leader: Tensor  # among all candidates; -1 in an empty slot


def play(scores: Tensor, alive: Tensor, game: Game) -> Played:
    """Scores (rows, n) of this rank's candidates, and which of them take part."""
    if game.learns and not scores.requires_grad:
        scores = scores.detach().requires_grad_()  # it must have a backward pass, or the other ranks wait for it
    return Played(*_Play.apply(scores, alive, game))  # type: ignore[no-untyped-call]


class _Play(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, alive: Tensor, game: Game) -> Played:
        route = find_route(scores, alive, sum(game.sizes), game.quota, game.boost, game.ranks)
        came = route.to_homes(scores.flatten()[route.travels])
        home, plan, lengths = _play_at_home(came, route, game)
        plan = _shared(plan, lengths, route)
        listed = torch.arange(max([1, *plan.counts.flatten().tolist()]), device=came.device) < plan.counts.unsqueeze(-1)
        played = _seen_from_here(plan, listed, route, game)
        ctx.game, ctx.route, ctx.home, ctx.listed, ctx.lengths = game, route, home, listed, lengths
        ctx.dtype = scores.dtype
        ctx.mark_non_differentiable(played.member, played.leader)
        return played

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_weight: Tensor, d_score: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        route, ranks, share = ctx.route, ctx.game.ranks, ctx.game.share
        ranks.meet(ctx.game.number, "backward")
        d_plan = (
            ranks.collect(share * d_weight[ctx.listed], ctx.lengths, "gradients of the plan"),
            ranks.collect(share * d_score, route.homes, "gradients of the plan"),
        )
        d_came, d_bins = ctx.home.backward(*d_plan)
        d_sent = route.from_homes(d_came.to(ctx.dtype))
        if route.stayed is None:
            d_scores = d_sent.new_zeros(route.shape)
        else:
            d_bins = ranks.share(d_bins.to(ctx.dtype), route.homes, "gradients of means")
            d_scores = pad(d_bins, (0, 1)).gather(1, route.stayed.bin)  # 0 for who takes no part
        d_scores.view(-1)[route.travels] = d_sent
        return d_scores, None, None


def _play_at_home(came: Tensor, route: Route, game: Game) -> tuple[Home, Plan, list[int]]:
    """The plan of the rows that live here, and how many members each rank lists. Who fails in this tells the others."""
    made, failure = None, None
    try:
        home = Home(came, route, sum(game.sizes), game.quota)
        made = home, home.play(game.k, game.boost, game.order, game.hard, game.learns)
    except Exception as error:
        failure = error
    length = -1 if made is None else len(made[1].member)
    heard = game.ranks.gather(torch.tensor(length, device=came.device), "lengths").tolist()
    if failure is not None:
        raise failure
    if min(heard) < 0:
        raise RankError(f"knockout.distributed: the tournament failed on rank {heard.index(-1)}, which says why")
    assert made is not None
    return *made, heard


def _shared(plan: Plan, lengths: list[int], route: Route) -> Plan:
    """The plan of all rows."""
    # The widest numbers first, for every part to begin where its numbers may.
    member, weight = _together((plan.member, plan.weight), lengths, route.ranks)
    leader, count, score = _together((plan.leader, plan.counts, plan.score), route.homes, route.ranks)
    return Plan(member, weight, count, leader, score)


def _together(parts: Sequence[Tensor], counts: list[int], ranks: Ranks) -> list[Tensor]:
    """Rows (counts[rank], ...) of some tensors of all ranks, sent in one message."""
    widths = [each.shape[1:].numel() * each.itemsize for each in parts]
    raw = [each.flatten().view(torch.uint8).view(len(each), width) for each, width in zip(parts, widths, strict=True)]
    heard = ranks.share(torch.cat(raw, dim=1), counts, "plans").split(widths, dim=1)
    return [part.flatten().view(each.dtype).view(-1, *each.shape[1:]) for part, each in zip(heard, parts, strict=True)]


def _seen_from_here(plan: Plan, listed: Tensor, route: Route, game: Game) -> Played:
    """The plan of all rows in this rank's own numbers; ``listed`` are the places (rows, k, m) that have a member."""
    ranks, sent = game.ranks, route.sent[game.ranks.rank]
    n, first = game.sizes[ranks.rank], sum(game.sizes[: ranks.rank])
    begin = torch.tensor([0, *itertools.accumulate(sent)][: len(sent)], dtype=torch.int64, device=listed.device)
    place = pad(route.travels, (0, 1))  # one more for who has sent nobody

    def local(name: Tensor) -> Tensor:
        """This rank's candidates (rows, ...), by their names; n for others, and for nobody."""
        own = name.div(SOURCE, rounding_mode="floor") == ranks.rank
        number = begin.view(-1, *(1,) * (name.dim() - 1)) + name % SOURCE
        return torch.where(own, place[torch.where(own, number, len(place) - 1)] % max(1, n), n)

    member = local(torch.full(listed.shape, -1, device=listed.device).masked_scatter(listed, plan.member))
    none = torch.where(plan.score.isnan(), torch.nan, 0.0).to(plan.weight.dtype)  # NaN throughout a spoiled row
    weight = none.unsqueeze(-1).repeat(1, 1, listed.shape[-1]).masked_scatter(listed, plan.weight)
    leader = local(plan.leader)
    everywhere = ranks.total(torch.where(leader < n, first + leader, 0), "leaders")
    return Played(weight, plan.score, member, torch.where(plan.leader < 0, -1, everywhere))
