"""One change of one file."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple


class Mutant(NamedTuple):
    """The bytes from ``start`` to ``end`` of a file, replaced."""

    path: str  # from the root of the checkout
    source: bytes  # the whole original file
    start: int
    end: int
    replacement: bytes
    kind: str  # such as "< to <="

    @property
    def mutated(self) -> bytes:
        """The whole mutated file."""
        return self.source[: self.start] + self.replacement + self.source[self.end :]

    @property
    def line(self) -> int:
        """The number of the first changed line."""
        return self.source.count(b"\n", 0, self.start) + 1

    @property
    def before(self) -> str:
        """The lines that are changed, as one line without indentation."""
        return self._lines(self.source[self.start : self.end])

    @property
    def after(self) -> str:
        """The changed lines as they are after the change, as one line without indentation."""
        return self._lines(self.replacement)

    @property
    def key(self) -> str:
        """The same for the same change of the same file, and no other."""
        return f"{self.path} {sha256(self.mutated).hexdigest()[:16]}"

    def _lines(self, middle: bytes) -> str:
        first = self.source.rfind(b"\n", 0, self.start) + 1
        last = self.source.find(b"\n", self.end)
        whole = self.source[first : self.start] + middle + self.source[self.end : last if last >= 0 else None]
        return " ".join(whole.decode().split())
