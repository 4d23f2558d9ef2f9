"""Invalid rows, with a NaN or +inf score: the same on every backend, whatever the other rows are."""

from __future__ import annotations

import pytest
import torch

import knockout
from tests.cases import randn, separated


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_the_gradient_of_the_values_is_nan_for_the_leaders_alone(bad: float) -> None:
    values, scores = randn(2, 20, 3).requires_grad_(), separated(2, 20)
    scores[1, 4] = bad
    out = knockout.topk(values, scores, 4, boost=1.0)
    (gradient,) = torch.autograd.grad(out.values.sum(), values)
    rows = gradient[1].isnan().all(dim=-1).nonzero().flatten().tolist()
    assert rows == sorted(out.indices[1].tolist())
    assert not gradient[0].isnan().any()


def test_support_is_0_whatever_the_other_rows_are() -> None:
    scores = separated(3, 20)
    scores[1, 4] = torch.nan
    both = knockout.select(scores, 2, boost=0.5).support()
    assert both[1].tolist() == knockout.select(scores[1], 2, boost=0.5).support().tolist() == [0, 0]
    assert (both[[0, 2]] > 1).all()
    assert not knockout.methods.softsort(scores, 2).support()[1].any()
