"""A copy of the checkout, in which the tests of one mutant after the other run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mutants.mutant import Mutant


class Tree:
    """A folder with copies of some paths of the checkout."""

    def __init__(self, root: Path, folder: Path, copied: Sequence[str]) -> None:
        self.root, self.folder, self._changes = root.resolve(), folder.resolve(), 0
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for name in copied:
            source, target = self.root / name, self.folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            elif source.exists():
                shutil.copy2(source, target)

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """The tree with a mutant in it, until the block ends."""
        path = self.folder / mutant.path
        before = path.stat()
        path.write_bytes(mutant.mutated)
        # A time that no other version of the file has: Python compares times, in seconds, to find stale bytecode.
        self._changes += 1
        os.utime(path, (before.st_atime, before.st_mtime + 2 * self._changes))
        try:
            yield
        finally:
            path.write_bytes(mutant.source)
            os.utime(path, (before.st_atime, before.st_mtime))
