from __future__ import annotations

import pytest
import torch

import knockout
from knockout import metrics
from tests.cases import randn, separated


def test_nccs_by_hand() -> None:
    true = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    # Row 1 finds (1, 0) with cosine 1; row 2 finds (1, 1) with cosine 1/sqrt 2.
    approx = torch.tensor([[1.0, 1.0], [5.0, 0.0]])
    assert metrics.nccs(true, approx).item() == pytest.approx((1 + 2**-0.5) / 2)
    # It looks from the true rows: two copies of one of them miss the other.
    assert metrics.nccs(true, torch.tensor([[1.0, 0.0], [1.0, 0.0]])).item() == pytest.approx(0.5)
    assert metrics.nccs(true, -true).item() == pytest.approx(0.0)


def test_nccs_batches_chunks_and_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    true, approx = randn(2, 3, 17, 5), randn(2, 3, 17, 5, seed=1)
    whole = metrics.nccs(true, approx)
    loop = torch.nn.functional.cosine_similarity(true.unsqueeze(-2), approx.unsqueeze(-3), dim=-1).amax(-1).mean(-1)
    torch.testing.assert_close(whole, loop)
    monkeypatch.setattr(metrics, "CHUNK", 200)
    torch.testing.assert_close(metrics.nccs(true, approx), loop)
    assert metrics.nccs(true.bfloat16(), approx.bfloat16()).dtype == torch.float32
    assert metrics.nccs(torch.zeros(2, 3), torch.ones(2, 3)).item() == 0.0


def test_topk_mass() -> None:
    scores = separated(3, 40)
    assert metrics.topk_mass(knockout.methods.hard(scores, 5), scores).tolist() == [1.0] * 3
    soft, softer = (metrics.topk_mass(knockout.select(scores, 5, c), scores) for c in (2.0, 0.1))
    assert ((softer > 0) & (softer < soft) & (soft < 1)).all()
    top = torch.topk(scores, 5).indices
    torch.testing.assert_close(soft, knockout.select(scores, 5, 2.0).mass().gather(-1, top).sum(-1) / 5)
    few = torch.tensor([3.0, 1.0, -torch.inf, -torch.inf])
    assert metrics.topk_mass(knockout.select(few, 3), few).item() == pytest.approx(1.0)
