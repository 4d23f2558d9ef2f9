"""Autocast, inference mode and no_grad: they change no bit of a result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import knockout
from tests.cases import randn, random_mask, same_bits, separated
from tests.contract.cases import CASES, gradients


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_changes_no_bit(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    values, scores, mask = case.topk_inputs()
    with torch.autocast("cpu", dtype=dtype):
        cast = case.topk(values, scores, mask)
    plain = case.topk(values, scores, mask)
    for one, other in zip(
        (*cast, *gradients(cast, values, scores)), (*plain, *gradients(plain, values, scores)), strict=True
    ):
        same_bits(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_changes_no_bit_of_what_a_selection_shows(dtype: torch.dtype) -> None:
    values, scores = randn(3, 50, 4, dtype=torch.float32).requires_grad_(), separated(3, 50).float().requires_grad_()
    mask = random_mask(3, 50, kept=0.8)
    makes: list[Callable[[], knockout.Selection]] = [
        lambda: knockout.select(scores, 5, mask=mask),
        lambda: knockout.methods.iterative(scores, 5, mask=mask),
        lambda: knockout.methods.hard(scores, 5, mask=mask),
    ]
    for make in makes:
        plain = make()
        with torch.autocast("cpu", dtype=dtype):
            cast = make()
            out, nccs = cast.apply(values), knockout.metrics.nccs(values, cast.apply(values))
        assert out.dtype == nccs.dtype == torch.float32
        same_bits(out, plain.apply(values))
        same_bits(cast.scores, plain.scores)
        same_bits(cast.weights(), plain.weights())


@pytest.mark.parametrize("name", CASES)
def test_inference_mode_and_no_grad(name: str) -> None:
    case = CASES[name]
    values, scores, mask = case.topk_inputs()
    expected = case.topk(values, scores, mask)
    for inference in (True, False):
        with torch.inference_mode(inference), torch.no_grad():
            out = case.topk(values, scores, mask)
            assert not out.values.requires_grad
            for one, other in zip(out, expected, strict=True):
                same_bits(one, other)


def test_scores_read_without_gradient_have_one_later() -> None:
    scores = separated(10).requires_grad_()
    for selection in (knockout.select(scores, 3), knockout.methods.iterative(scores, 3)):
        with torch.no_grad():
            assert not knockout.select(scores, 3).scores.requires_grad
            _ = selection.scores
        assert torch.autograd.grad(selection.scores.sum(), scores)[0].any()
