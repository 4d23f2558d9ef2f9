"""How many slots a row fills, and how many rounds that takes."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

DENOMINATOR = 2**30


class Quota(NamedTuple):
    """What ``k`` means: k slots for every row; or, in at most k slots, a fraction of its active candidates or a count.

    >>> import torch
    >>> quota = Quota.of_fraction(0.1, n=25)
    >>> quota.k, quota.slot_count(torch.arange(25) < 10)
    (3, tensor([1]))
    >>> Quota(3, counts=torch.tensor([1, 2])).filled(torch.ones(2, 25, dtype=torch.bool))
    tensor([[ True, False, False],
            [ True,  True, False]])
    """

    k: int  # slots of the result
    # The fraction times 2**30, or 0 for none. An integer, so that every backend counts the same.
    numerator: int = 0
    counts: Tensor | None = None  # (*batch) int64, from 1 to k: how many slots each row fills; None: all fill as many

    @staticmethod
    def of_fraction(fraction: float, n: int) -> Quota:
        """A fraction between 0 and 1 of the active candidates of each row, of which there are n at most."""
        numerator = max(1, int(fraction * DENOMINATOR))  # 1 is so little that every row gets one slot
        return Quota(_rounded_up(n, numerator), numerator)

    def slot_count(self, active: Tensor) -> Tensor:
        """How many slots each row fills, (..., 1), given its active candidates (..., n)."""
        count = active.sum(dim=-1, keepdim=True)
        if self.counts is not None:
            return torch.minimum(count, self.counts.unsqueeze(-1))
        return _rounded_up(count, self.numerator) if self.numerator else count.clamp(max=self.k)

    @property
    def varies(self) -> bool:
        """Whether rows with enough candidates may fill different numbers of slots."""
        return self.numerator > 0 or self.counts is not None

    def filled(self, active: Tensor) -> Tensor:
        """Which of the k slots each row fills, (..., k) bool."""
        return torch.arange(self.k, device=active.device) < self.slot_count(active)

    def rounds(self, n: int) -> int:
        """The least r with k * 2**r >= n; with a fraction or counts, enough for every row that there can be."""
        rounds = 0
        while self._too_few(2**rounds, n):
            rounds += 1
        return rounds

    def _too_few(self, members: int, n: int) -> bool:
        """Whether slots of so many members may be too small for a row of n candidates, or of fewer."""
        if self.counts is not None:
            return members < n  # of a row that fills one slot
        if self.numerator:
            return self.numerator * members < DENOMINATOR and members < n
        return self.k * members < n


Count = TypeVar("Count", int, Tensor)


def _rounded_up(count: Count, numerator: int) -> Count:
    return (count * numerator + DENOMINATOR - 1) // DENOMINATOR  # of numbers above 0, which ONNX divides alike
