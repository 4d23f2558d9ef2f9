"""Every backend against the reference: indices, scores and weights to the last bit, all else up to rounding."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from knockout.backends import force
from knockout.boost import Adaptive, Base, Boost, Fixed, Power, Relative, as_boost
from knockout.dtypes import computing_dtype
from tests.cases import DTYPES, same_bits
from tests.contract.cases import CASES, ONE_ROW, OTHERS, SCORES, Case, drawn_cases, run

pytestmark = pytest.mark.parametrize("backend", OTHERS, indirect=True)

TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-13}


def close(one: Tensor, other: Tensor, tolerance: float, noise: float = 0.0) -> None:
    """Equal up to rounding: of the largest that was added up, of what cancelled out, of the smallest numbers."""
    limits = torch.finfo(one.dtype)
    largest = other.nan_to_num().abs().amax().item() if other.numel() else 0.0
    # What is computed in the same dtype may pass through numbers below the smallest normal one, which have few bits.
    noise += tolerance * largest + limits.tiny * (1 if limits.bits >= 32 else 64 * limits.eps)
    torch.testing.assert_close(one, other, rtol=tolerance, atol=noise, equal_nan=True)


def steepness(boost: Boost | float | None, scores: Tensor) -> float:
    """How far a logit moves with a score, at most: the last bit of a share is so much in its gradient."""
    known = scores[scores.isfinite()].double()
    boost = as_boost(boost, scores.device)
    spread = (known - known.mean()).abs().mean().item() if known.numel() else 0.0
    if isinstance(boost, Relative):
        return float(boost.c) / max(boost.unit, spread)
    if isinstance(boost, Adaptive):
        return float(boost.c) / max(float(boost.unit) / 100, spread / 30)  # in the last of many rounds
    if isinstance(boost, Fixed):
        return float(boost.c)
    assert isinstance(boost, (Base, Power))
    top = known.max().item() if known.numel() and isinstance(boost, Power) else 0.0
    return math.log(boost.b) * math.exp(min(math.log(boost.b) * top, 40.0))


def agree(case: Case) -> None:
    """Run a case with the backend of the test and with the reference, and compare."""
    own = run(case)
    with force("reference"):
        reference = run(case)
    for one, other in zip(own[:4], reference[:4], strict=True):
        same_bits(one, other)
    close(own.perplexity, reference.perplexity, TOLERANCE[case.dtype])
    close(own.values, reference.values, TOLERANCE[case.values_dtype])
    if not reference.scores.isnan().any():
        same_bits(own.support, reference.support)
        close(own.d_values, reference.d_values, TOLERANCE[case.values_dtype])
    computing = min(computing_dtype(case.dtype), computing_dtype(case.values_dtype), key=lambda x: x.itemsize)
    tolerance = max(TOLERANCE[case.dtype], TOLERANCE[computing])
    steep = steepness(case.boost, case.inputs().scores) if case.through[0] or case.through[2] else 1.0
    close(own.d_scores, reference.d_scores, tolerance, 16 * torch.finfo(computing).eps * steep)


@pytest.mark.parametrize("name", CASES)
def test_the_cases_of_the_contract(name: str) -> None:
    agree(CASES[name])


def test_the_cases_of_the_contract_are_what_their_names_say() -> None:
    assert CASES["invalid rows"].inputs().scores.isnan().any(-1).tolist() == [True, True, False]
    empty, active = CASES["empty slots"], CASES["empty slots"].inputs().mask
    assert active is not None
    assert sorted((active.sum(-1) >= empty.k).tolist()) == [False, False, True]


@given(case=drawn_cases(st.integers(1, 20) | st.integers(1, 300)))
@settings(max_examples=1000, deadline=None)
def test_drawn_cases(case: Case) -> None:
    agree(case)


@given(case=drawn_cases(st.integers(1000, 9000)))
@settings(max_examples=150, deadline=None)
def test_drawn_long_cases(case: Case) -> None:
    agree(case._replace(batches=ONE_ROW))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_spread_of_huge_scores(dtype: torch.dtype) -> None:
    agree(Case(3, 2, Adaptive(1.5, unit=10), dtype, scores="huge", through=(False, True, False), d=1))


LONG = [Relative(4), Relative(0.5), Relative(2, unit=0.01, alpha=1), Fixed(3e6, alpha=1.5), Power(20)]


@pytest.mark.parametrize("n", [20_000, 70_000])
@pytest.mark.parametrize("scores", SCORES)
def test_long_rows(scores: str, n: int) -> None:
    for i, (boost, k) in enumerate(zip(LONG, (1, 7, 40, 0.01, 300), strict=True)):
        dtype = DTYPES[(i + n // 50_000) % 4]
        agree(Case(n, k, boost, dtype, scores=scores, batches=ONE_ROW, kept=0.9 if i % 2 else None, seed=i))
