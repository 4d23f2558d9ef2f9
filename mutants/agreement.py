"""The CPU kernels against stored results of the reference, which is not run again for every mutant.

A file for pytest: the first run, in a tree without a mutant, stores the results.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from knockout.backends import force
from knockout.ops import choice
from tests.cases import DTYPES, threads
from tests.contract import test_agreement
from tests.contract.cases import CASES, ONE_ROW, SCORES, Case, Results, drawn_cases, run

STORED = Path("reference.pt")


def _cases() -> list[Case]:
    """Small ones first: most mutants do not get far."""
    drawn: list[Case] = []

    def draw(sizes: st.SearchStrategy[int], count: int) -> None:
        @settings(max_examples=count, database=None, derandomize=True, deadline=None)
        @given(case=drawn_cases(sizes))
        def note(case: Case) -> None:
            drawn.append(case)

        note()

    draw(st.integers(1, 20) | st.integers(1, 300), 250)
    draw(st.integers(1000, 9000), 50)
    small, long = [case for case in drawn if case.n < 1000], [case for case in drawn if case.n >= 1000]
    rows = [
        Case(n, k, boost, DTYPES[i % 4], scores=scores, batches=ONE_ROW, kept=0.9 if i % 2 else None, seed=i)
        for n in (3000, 20_000)
        for i, (scores, (boost, k)) in enumerate(
            (scores, pair) for scores in SCORES for pair in zip(test_agreement.LONG, (1, 7, 40, 0.01, 300), strict=True)
        )
        if n == 3000 or i % 4 == 0
    ]
    named = [case for name, case in CASES.items() if name != "c is a tensor"]
    return [*named, *small, *(case._replace(batches=ONE_ROW) for case in long), *rows]


def _stored() -> list[tuple[Case, Results]]:
    if not STORED.exists():
        with force("reference"):
            torch.save([(case, run(case)) for case in _cases()], STORED)
    found: list[tuple[Case, Results]] = torch.load(STORED, weights_only=False)
    return found


@pytest.fixture(autouse=True)
def _cpu() -> Iterator[None]:
    with force("cpu"):
        yield


@pytest.mark.parametrize("count", [1, 3])
def test_the_kernels_agree_with_the_reference(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one thread, and long rows with three."""
    for case, stored in _stored():
        if count > 1 and case.n < 3000:
            continue  # such rows are not split

        def look_up(case: Case, stored: Results = stored) -> Results:
            return stored if choice._forced == "reference" else run(case)

        monkeypatch.setattr(test_agreement, "run", look_up)
        with threads(count):
            test_agreement.agree(case)
