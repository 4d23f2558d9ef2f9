"""Every test in this folder runs once for each backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from knockout.backends import NAMES, force, why_not

# Triton's kernels run in its interpreter here, a hundred times slower than others. Of these modules, each test is tried
# with them once, for its first parameters; the cases of the contract, all; the rest are slow tests. Drawn cases are in
# tests/test_triton_kernels.py.
_TRIED = ("agreement", "compile", "dtypes_and_shapes", "export", "gradients", "invalid_rows", "opcheck", "vmap")
_ALL = ("test_the_cases_of_the_contract",)
_NONE = (
    "test_gradcheck_with_mask_position_and_broadcast_values",
    "test_learning_moves_weight_to_what_helps",
    "test_long_rows",
)


@pytest.fixture(params=NAMES, autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the backend that runs the whole test."""
    with force(request.param):
        if reason := why_not(request.param):
            pytest.skip(reason)
        yield request.param


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that are slow with a backend as such."""
    seen = set()
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        test = (item.module.__name__, item.originalname)
        if item.callspec.params.get("backend") == "triton" and item.originalname not in _ALL:
            tried = item.module.__name__.removeprefix("tests.contract.test_") in _TRIED
            if not tried or test in seen or item.originalname in _NONE or hasattr(item.obj, "hypothesis"):
                item.add_marker(pytest.mark.slow)
            seen.add(test)
