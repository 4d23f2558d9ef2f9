"""The tournament over scores: Algorithm 2 of the paper, in plain PyTorch.

A round ranks the field, lets the i-th best meet the i-th worst, and goes on with the blended scores of the pairs.
Scores alone decide, so the field holds scores only. When k are left, the rounds are walked backwards: a slot splits
into the two that met there, round by round, and its weight with it, until its members are the candidates themselves.

Every size is known from n and k: no step waits for a number from the device. Where k is a share, each row has slots of
its own, k at most, and plays in the middle of a field that is as wide for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from knockout.boost import Boost, Pairs
from knockout.checks import Candidates
from knockout.plan import Bracket
from knockout.quota import Quota
from knockout.ranking import best_first


class Field(NamedTuple):
    """Those still in play, each (..., size). Whoever takes no part fills up the field: score 0, and not real."""

    score: Tensor
    leader: Tensor
    real: Tensor

    def take(self, places: Tensor) -> Field:
        """The field, with whoever is at ``places``, in that order."""
        return Field(*(each.gather(-1, places) for each in self))

    def ranking(self) -> Tensor:
        """Places from best to worst: by score, and the lower leader first among equals; those not real last."""
        by_leader = self.leader.argsort(dim=-1)
        return by_leader.gather(-1, best_first(self.score.gather(-1, by_leader), self.real.gather(-1, by_leader)))


class Fold(NamedTuple):
    """One round: the share of the better one of every pair, best pair first, and how the pairs rank in the next."""

    share: Tensor
    ranking: Tensor | None  # None after the last round, whose order is that of the slots


class Result(NamedTuple):
    """The plan, and what is left after the last round, a number per slot."""

    bracket: Bracket
    leader: Tensor  # -1 in an empty slot
    filled: Tensor  # bool


def rounds_of(n: int, k: int) -> int:
    """The least r with k * 2**r >= n."""
    return Quota(k).rounds(n)


# Who meets whom, for shares and experiments: the ranks 0, ..., size - 1 in another order, in which the i-th from the
# front meets the i-th from the back, and is the better one, (..., size). Without one, that is the order of the ranks
# itself: best against worst.
Pairing = Callable[[int], Tensor]


def tournament(
    candidates: Candidates, quota: Quota, boost: Boost, by_position: bool = False, pairing: Pairing | None = None
) -> Result:
    """Play all rounds; slots in the order of the last round, or by the position of their leaders."""
    n, k = candidates.score.shape[-1], quota.k
    rounds = quota.rounds(n)
    slot = torch.arange(k, device=candidates.score.device).expand(*candidates.score.shape[:-1], k)
    if quota.parts:
        own = quota.own(candidates.alive)
        pairing = _in_the_middle(own, k)
        slot = (slot + k - own) % k
    field = enter(candidates, quota)
    if pairing is not None and rounds:
        field = field.take(pairing(field.score.shape[-1]).expand(field.score.shape))
    folds, last = play(field, rounds, boost, pairing)

    if by_position:
        slot = torch.where(last.real, last.leader, n).argsort(dim=-1)
    last = last.take(slot)
    # All the weight to start with, tied to the scores: even without a round they get a gradient, of 0.
    place, weight = _unfold(folds, slot, 1.0 + 0.0 * last.score)
    member = field.leader.gather(-1, place)
    takes_part = field.real.gather(-1, place)  # and the others are nobody's members
    weight = torch.where(takes_part, weight, 0.0) * candidates.poison
    bracket = Bracket(
        n=n,
        member=torch.where(takes_part & (weight != 0), member, n).unflatten(-1, (k, -1)),
        weight=weight.unflatten(-1, (k, -1)),
        score=torch.where(last.real, last.score, 0.0) * candidates.poison,
    )
    return Result(bracket, torch.where(last.real, last.leader, -1), last.real)


def enter(candidates: Candidates, quota: Quota) -> Field:
    """All candidates, best first, filled up to k * 2**rounds with some who take no part."""
    n = candidates.score.shape[-1]
    missing = (0, quota.k * 2 ** quota.rounds(n) - n)
    score, alive = pad(candidates.score, missing), pad(candidates.alive, missing)
    seeds = best_first(score, alive)
    return Field(score.gather(-1, seeds), seeds, alive.gather(-1, seeds))


def play(field: Field, rounds: int, boost: Boost, pairing: Pairing | None = None) -> tuple[list[Fold], Field]:
    """From a ranked field of k * 2**rounds to the last k."""
    scale = boost.start(field.score)
    folds: list[Fold] = []
    for left in reversed(range(rounds)):
        half = field.score.shape[-1] // 2
        better, worse = field.score[..., :half], field.score[..., half:].flip(-1)
        # Whoever takes no part ranks last, so a worse one who takes none is a missing opponent.
        paired = field.real[..., half:].flip(-1)
        gap = torch.where(paired, better - worse, 0.0).clamp(max=torch.finfo(better.dtype).max)
        share, scale = boost.share(Pairs(better, worse, gap, paired), scale)
        # share * better + (1 - share) * worse, written so that neither it nor its gradient overflows or cancels.
        blend = better - (1.0 - share) * gap
        field = Field(blend, field.leader[..., :half], field.real[..., :half])
        ranking = field.ranking() if left else None
        if ranking is not None:
            ranking = ranking if pairing is None else ranking.gather(-1, pairing(half).expand(ranking.shape))
            field = field.take(ranking)
        folds.append(Fold(share, ranking))
    return folds, field


def _in_the_middle(own: Tensor, k: int) -> Pairing:
    """Of rows with slots of their own (..., 1), at most k: each plays in the middle, between those who take no part."""

    def pairing(size: int) -> Tensor:
        # Nobody of a row has a rank past its own size, so what comes round from the end are such as take no part.
        before = (k - own) * (size // k // 2)
        return (torch.arange(size, device=own.device) - before) % size

    return pairing


def _unfold(folds: list[Fold], place: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Walk the rounds backwards: every place of the field becomes the two that met there, the better one first."""
    for share, ranking in reversed(folds):
        if ranking is not None:
            place = ranking.gather(-1, place)
        better = share.gather(-1, place)
        weight = torch.stack([weight * better, weight * (1.0 - better)], dim=-1).flatten(-2)
        place = torch.stack([place, 2 * share.shape[-1] - 1 - place], dim=-1).flatten(-2)
    return place, weight
