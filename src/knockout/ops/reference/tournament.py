"""The tournament over scores: Algorithm 2 of the paper, in plain PyTorch.

A round ranks the field, pairs the i-th best with the i-th worst, and goes on with the blended scores of the pairs.
Scores alone decide, so the field holds scores only. When k are left, the rounds are walked backwards: a slot splits
into the pair that met there, round by round, and its weight with it, until its members are the candidates themselves.

Every size is known from n and k: no step waits for a number from the device. Where k is a fraction, each row fills its
own number of slots, k at most, and plays in the middle of a field that is equally wide for all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from knockout.boost import Boost, Pairs
from knockout.candidates import Candidates, best_first, invalidate
from knockout.quota import Quota


class Selected(NamedTuple):
    """The result of a tournament: the members of every slot with their weights, the leader first, and more.

    No candidate is a member of two slots. A member that carries no weight is padding.
    """

    member: Tensor  # (*batch, k, m) int64 or int32; n is padding
    weight: Tensor  # (*batch, k, m); exactly 0 for padding, but NaN throughout an invalid row
    score: Tensor  # (*batch, k): blended; 0 in an empty slot; NaN throughout an invalid row
    leader: Tensor  # (*batch, k) int64; -1 in an empty slot
    filled: Tensor  # (*batch, k) bool
    valid: Tensor  # (*batch, 1) bool: no NaN or +inf among the scores


class Field(NamedTuple):
    """The entries still in play, each (..., size). Padding has a score of 0 and is not active."""

    score: Tensor
    leader: Tensor
    active: Tensor

    def take(self, places: Tensor) -> Field:
        """The entries at ``places``, in that order."""
        return Field(*(each.gather(-1, places) for each in self))

    def ranking(self) -> Tensor:
        """Places from best to worst: by score, and the lower leader first among equals; padding last."""
        by_leader = self.leader.argsort(dim=-1)
        return by_leader.gather(-1, best_first(self.score.gather(-1, by_leader), self.active.gather(-1, by_leader)))


class Round(NamedTuple):
    """What a round did: the share of the better entry of every pair, best pair first, and how the pairs rank next."""

    share: Tensor
    ranking: Tensor | None  # None after the last round, whose order is that of the slots


def rounds_of(n: int, k: int) -> int:
    """The least r with k * 2**r >= n."""
    return Quota(k).rounds(n)


# How entries are paired, for fractions and experiments: the ranks 0, ..., size - 1 in another order, (..., size), in
# which the i-th from the front meets the i-th from the back and is the better one. None: the order of the ranks itself.
Pairing = Callable[[int], Tensor]


def tournament(
    candidates: Candidates, quota: Quota, boost: Boost, by_position: bool = False, pairing: Pairing | None = None
) -> Selected:
    """Play all rounds; slots in the order of the last round, or by the position of their leaders."""
    n, k = candidates.score.shape[-1], quota.k
    rounds = quota.rounds(n)
    slot = torch.arange(k, device=candidates.score.device).expand(*candidates.score.shape[:-1], k)
    if quota.varies:
        slots = quota.slot_count(candidates.active)
        pairing = _centered(slots, k)
        slot = (slot + k - slots) % k
    field = enter(candidates, quota)
    scale = boost.start(field.score, field.active, played_rounds(candidates.active, quota))
    if pairing is not None and rounds:
        field = field.take(pairing(field.score.shape[-1]).expand(field.score.shape))
    played, last = play(field, scale, rounds, boost, pairing)

    if by_position:
        slot = torch.where(last.active, last.leader, n).argsort(dim=-1)
    last = last.take(slot)
    # Each slot starts with all the weight, tied to the scores: even without a round they get a gradient, of 0.
    place, weight = _expand(played, slot, 1.0 + 0.0 * last.score)
    member = field.leader.gather(-1, place)
    active = field.active.gather(-1, place)
    weight = invalidate(torch.where(active, weight, 0.0), candidates.valid)
    # The slots of an invalid row have their leaders alone, which come first.
    leads = torch.arange(place.shape[-1], device=place.device) % (place.shape[-1] // k) == 0
    is_member = active & (weight != 0) & (candidates.valid | leads)
    return Selected(
        member=torch.where(is_member, member, n).unflatten(-1, (k, -1)),
        weight=weight.unflatten(-1, (k, -1)),
        score=invalidate(torch.where(last.active, last.score, 0.0), candidates.valid),
        leader=torch.where(last.active, last.leader, -1),
        filled=last.active,
        valid=candidates.valid,
    )


def enter(candidates: Candidates, quota: Quota) -> Field:
    """All candidates, best first, padded to k * 2**rounds."""
    n = candidates.score.shape[-1]
    missing = (0, quota.k * 2 ** quota.rounds(n) - n)
    score, active = pad(candidates.score, missing), pad(candidates.active, missing)
    seeds = best_first(score, active)
    return Field(score.gather(-1, seeds), seeds, active.gather(-1, seeds))


def played_rounds(active: Tensor, quota: Quota) -> Tensor:
    """The number of rounds (..., 1) that a row with these active candidates (..., n) plays: those that have pairs."""
    count = active.sum(dim=-1, keepdim=True)
    slots: Tensor | int = quota.slot_count(active) if quota.varies else quota.k
    rounds = torch.zeros_like(count)
    for r in range(quota.rounds(active.shape[-1])):
        rounds = rounds + (count > slots * 2**r)
    return rounds


def play(
    field: Field, scale: Tensor, rounds: int, boost: Boost, pairing: Pairing | None = None
) -> tuple[list[Round], Field]:
    """Go from a ranked field of k * 2**rounds to the last k. ``scale`` is what the boost starts from."""
    played: list[Round] = []
    for left in reversed(range(rounds)):
        half = field.score.shape[-1] // 2
        better, worse = field.score[..., :half], field.score[..., half:].flip(-1)
        # Padding ranks last, so a worse entry that is padding is a missing opponent.
        paired = field.active[..., half:].flip(-1)
        gap = torch.where(paired, better - worse, 0.0).clamp(max=torch.finfo(better.dtype).max)
        share, scale = boost.share(Pairs(better, worse, gap, paired), scale)
        # share * better + (1 - share) * worse, written so that neither it nor its gradient overflows or cancels.
        blend = better - (1.0 - share) * gap
        field = Field(blend, field.leader[..., :half], field.active[..., :half])
        ranking = field.ranking() if left else None
        if ranking is not None:
            ranking = ranking if pairing is None else ranking.gather(-1, pairing(half).expand(ranking.shape))
            field = field.take(ranking)
        played.append(Round(share, ranking))
    return played, field


def _centered(slots: Tensor, k: int) -> Pairing:
    """For rows that fill only some (..., 1) of k slots: each plays in the middle of the field, between padding."""

    def pairing(size: int) -> Tensor:
        # Ranks that wrap around are padding: a row has no entries with ranks past its own size.
        before = (k - slots) * (size // k // 2)
        return (torch.arange(size, device=slots.device) - before) % size

    return pairing


def _expand(played: list[Round], place: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Walk the rounds backwards: every place of the field becomes the pair that met there, the better one first."""
    for share, ranking in reversed(played):
        if ranking is not None:
            place = ranking.gather(-1, place)
        better = share.gather(-1, place)
        weight = torch.stack([weight * better, weight * (1.0 - better)], dim=-1).flatten(-2)
        place = torch.stack([place, 2 * share.shape[-1] - 1 - place], dim=-1).flatten(-2)
    return place, weight
