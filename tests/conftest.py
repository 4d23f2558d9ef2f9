"""Fixtures that several test modules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interpreter import use_interpreter
from tests.process_group import MAX_RANKS, Workers

use_interpreter()


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    """Worker processes that form a process group, started once for all tests: that takes seconds."""
    with Workers(MAX_RANKS) as started:
        yield started
