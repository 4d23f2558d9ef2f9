"""How many slots a row gets, and how many rounds that takes."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

WHOLE = 2**30


class Quota(NamedTuple):
    """k slots for every row; or, of the k slots of the result, a share of the candidates that take part in the row.

    >>> import torch
    >>> quota = Quota.of_share(0.1, n=25)
    >>> quota.k, quota.own(torch.arange(25) < 10)
    (3, tensor([1]))
    """

    k: int
    parts: int = 0  # of 2**30: whole numbers, so that counts are the same wherever they are computed; 0 for no share

    @staticmethod
    def of_share(share: float, n: int) -> Quota:
        """A share between 0 and 1 of the candidates of each row, n at most."""
        parts = max(1, int(share * WHOLE))  # 1 is so little that everybody gets one slot
        return Quota(_rounded_up(n, parts), parts)

    def own(self, alive: Tensor) -> Tensor:
        """How many slots each row fills, (..., 1), with these candidates (..., n) taking part."""
        count = alive.sum(dim=-1, keepdim=True)
        return _rounded_up(count, self.parts) if self.parts else count.clamp(max=self.k)

    def filled(self, alive: Tensor) -> Tensor:
        """The same as a mask of slots (..., k)."""
        return torch.arange(self.k, device=alive.device) < self.own(alive)

    def rounds(self, n: int) -> int:
        """The least r with k * 2**r >= n; for a share one that is enough for every row, however many take part."""
        rounds = 0
        while self._too_few(2**rounds, n):
            rounds += 1
        return rounds

    def _too_few(self, places: int, n: int) -> bool:
        """Whether so many places a slot may be too few for n candidates, or for less where k is a share."""
        return self.parts * places < WHOLE and places < n if self.parts else self.k * places < n


Count = TypeVar("Count", int, Tensor)


def _rounded_up(count: Count, parts: int) -> Count:
    return -(-count * parts // WHOLE)
