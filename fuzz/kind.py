"""What a kind of cases is."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar, Generic, TypeVar

Case = TypeVar("Case")
Item = TypeVar("Item")

MEMORY_MISSING = re.compile(r"memory|allocate|overflow", re.IGNORECASE)  # in the text of an error


class ViolationError(AssertionError):
    """What a case did is not what it may do."""


class Draw(Random):
    """Random choices that depend on a name alone."""

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random() < probability

    def pick(self, *usual: Sequence[Item]) -> Item:
        """One of the items of one of the sequences: each sequence is equally likely."""
        return self.choice(self.choice(usual))


class Kind(ABC, Generic[Case]):
    """A kind of cases. A case is a function of the seed and its number alone, so that it can be run again."""

    name: ClassVar[str]
    block: ClassVar[int] = 50  # cases that a worker runs in one go

    @abstractmethod
    def draw(self, seed: int, number: int) -> Case:
        """The case with this number."""

    @abstractmethod
    def run(self, case: Case) -> str:
        """Run a case; returns what it was and did, for the counts. Raises whatever is wrong."""

    @abstractmethod
    def write(self, case: Case) -> Any:
        """The case as JSON, independent of how cases are drawn."""

    @abstractmethod
    def read(self, written: Any) -> Case:
        """The case that was written."""

    def describe(self, case: Case) -> str:
        """One line about a case."""
        return str(case)

    def drawing(self, *place: object) -> Draw:
        """Random choices for a place, such as (seed, number)."""
        return Draw(":".join(map(str, (self.name, *place))))
