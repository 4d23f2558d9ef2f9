"""Every test in this folder runs once for each backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from knockout.backends import NAMES, force, why_not


@pytest.fixture(params=NAMES, autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the backend that runs the whole test."""
    with force(request.param):
        if reason := why_not(request.param):
            pytest.skip(reason)
        yield request.param
