from __future__ import annotations

import pytest
import torch

import knockout
from knockout import metrics
from tests.cases import Watch, randn, separated


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


def test_nccs_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CHUNK", 1024)
    seen: list[torch.Tensor] = []

    with Watch(seen):
        metrics.nccs(torch.randn(4, 64, 2), torch.randn(4, 64, 2))
    assert max(x.numel() for x in seen) <= 1024 < 4 * 64 * 64


def test_topk_mass_with_a_mask_and_with_nobody() -> None:
    scores = separated(3, 40)
    mask = torch.arange(40) % 3 != 0
    selection = knockout.select(scores, 5, mask=mask)
    top = torch.topk(scores.masked_fill(~mask, -torch.inf), 5).indices
    torch.testing.assert_close(metrics.topk_mass(selection, scores, mask), selection.mass().gather(-1, top).sum(-1) / 5)
    inactive = torch.full((4,), -torch.inf)
    assert metrics.topk_mass(knockout.select(inactive, 2), inactive).item() == 0.0


def test_nccs_of_rows_of_any_size_dtype_and_batch() -> None:
    for size in (1e30, 1e-30):
        rows = (torch.eye(3) + 0.1) * size
        assert metrics.nccs(rows, rows).item() == pytest.approx(1.0)
    assert metrics.nccs(randn(2, 3, 4).float(), randn(2, 3, 4)).dtype == torch.float64
    assert metrics.nccs(randn(3, 4), randn(2, 3, 4)).shape == (2,)


def test_topk_mass_is_a_share_and_knows_that_equals_are_equal() -> None:
    scores = randn(20) * 4
    assert 0 < metrics.topk_mass(knockout.methods.iterative(scores, 3), scores) <= 1  # rows that do not sum to one
    tied = torch.zeros(64)
    for k in (1, 2, 3, 8):
        assert metrics.topk_mass(knockout.select(tied, k, hard=True), tied).item() == 1.0
