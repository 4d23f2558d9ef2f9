"""The other methods: the iterative baseline against its transcription, and hard top-k."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import knockout
from knockout.plan import DensePlan
from tests import oracle
from tests.cases import DTYPES, Watch, randn, same_bits, score, separated

INF, NAN = float("inf"), float("nan")


@given(st.data(), st.booleans(), st.sampled_from([0.3, 1.0, 2.0]))
@settings(max_examples=150, deadline=None)
def test_iterative_agrees_with_the_transcription(data: st.DataObject, peaked: bool, alpha: float) -> None:
    scores = data.draw(st.lists(score, min_size=1, max_size=25), label="scores")
    n = len(scores)
    k = data.draw(st.integers(1, n), label="k")
    mask = data.draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n), label="mask")
    values = randn(n, 3)
    expected = oracle.iterative(values.tolist(), scores, k, peaked, alpha, mask)
    selection = knockout.methods.iterative(
        torch.tensor(scores, dtype=torch.float64), k, peaked, alpha, None if mask is None else torch.tensor(mask)
    )
    assert selection.indices.tolist() == expected.indices
    assert selection.mask.tolist() == [index >= 0 for index in expected.indices]
    torch.testing.assert_close(selection.weights(), torch.tensor(expected.weights, dtype=torch.float64))
    torch.testing.assert_close(selection.apply(values), torch.tensor(expected.values, dtype=torch.float64))
    torch.testing.assert_close(selection.scores, torch.tensor(expected.scores, dtype=torch.float64))


def test_peaked_rows_do_not_sum_to_one_and_plain_rows_do() -> None:
    # v = 1, 0: u = 1, e = 1 and exp(-1). Peaked, as printed: both over exp(-1), the denominator without the best one.
    scores = torch.tensor([1.0, 0.0], dtype=torch.float64)
    e = torch.tensor([1.0, -1.0], dtype=torch.float64).exp()
    torch.testing.assert_close(knockout.methods.iterative(scores, 1).weights()[0], torch.stack([e[0], e[0] / e[0]]))
    plain = knockout.methods.iterative(scores, 1, peaked=False).weights()[0]
    torch.testing.assert_close(plain, torch.stack([1 / (1 + e[1]), e[1] / (1 + e[1])]))
    assert knockout.methods.iterative(scores, 2).weights()[1].tolist() == [0.0, 1.0]  # no other is left


@pytest.mark.parametrize("peaked", [True, False])
def test_iterative_gradients(peaked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    values, scores = randn(2, 9, 3).requires_grad_(), separated(2, 9).requires_grad_()

    def operator(values: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        selection = knockout.methods.iterative(scores, 4, peaked)
        return selection.apply(values), selection.scores

    assert gradcheck(operator, (values, scores))
    assert gradgradcheck(operator, (values, scores))
    monkeypatch.setattr(DensePlan, "CHUNK", 18)  # a step at a time
    assert gradcheck(operator, (values, scores))


@pytest.mark.parametrize("peaked", [True, False])
def test_chunks_change_nothing_but_memory(peaked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    values, scores = randn(3, 40, 4).requires_grad_(), randn(3, 40).requires_grad_()
    results = []
    for chunk in (2**22, 3 * 40 * 5, 1):
        monkeypatch.setattr(DensePlan, "CHUNK", chunk)
        selection = knockout.methods.iterative(scores, 12, peaked)
        shown = (
            selection.apply(values),
            selection.scores,
            selection.weights(),
            selection.mass(),
            selection.perplexity(),
        )
        gradients = torch.autograd.grad(torch.stack([x.square().sum() for x in shown]).sum(), (values, scores))
        results.append((*shown, *gradients, selection.support()))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            torch.testing.assert_close(one, two)


def test_iterative_memory_is_bounded() -> None:
    # The whole weight matrix would be 2 x 512 x 8192; forward and backward must do with chunks of it.
    seen: list[torch.Tensor] = []
    values, scores = torch.randn(2, 8192, 2, requires_grad=True), torch.randn(2, 8192, requires_grad=True)
    with Watch(seen):
        out = knockout.methods.iterative(scores, 512).apply(values)
        out.sum().backward()
    assert max(x.numel() for x in seen) <= DensePlan.CHUNK < 2 * 512 * 8192


@pytest.mark.parametrize("method", [knockout.methods.hard, knockout.methods.iterative])
def test_masks_invalid_rows_and_empty_slots(method: type) -> None:
    scores, values = separated(4, 12).float(), randn(4, 12, 3, dtype=torch.float32)
    mask = torch.rand(4, 12, generator=torch.Generator().manual_seed(0)) > 0.4
    masked = method(torch.where(mask, scores, NAN), 3, mask=mask)
    by_score = method(torch.where(mask, scores, -INF), 3)
    garbage = torch.where(mask.unsqueeze(-1), values, NAN)
    for row in range(4):
        deleted = method(scores[row, mask[row]], 3)
        torch.testing.assert_close(masked.apply(garbage)[row], deleted.apply(values[row, mask[row]]))
        torch.testing.assert_close(by_score.weights()[row], masked.weights()[row])
        assert torch.equal(masked.indices[row], mask[row].nonzero().flatten()[deleted.indices])
    for bad in (NAN, INF):
        invalid = scores.clone()
        invalid[2, 5] = bad
        for out in (method(invalid, 3).apply(values), method(invalid, 3).scores, method(invalid, 3).weights()):
            assert out[2].isnan().all()
            assert out[[0, 1, 3]].isfinite().all()
    few = method(torch.tensor([[1.0, -INF, 2.0], [-INF] * 3]), 3)
    assert few.indices.tolist() == [[2, 0, -1], [-1] * 3]
    assert few.mask.tolist() == [[True, True, False], [False] * 3]
    assert few.scores[1].tolist() == [0.0] * 3
    assert not few.apply(torch.ones(2, 3, 2))[1].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("peaked", [True, False])
def test_iterative_is_finite_for_any_finite_scores(peaked: bool, scale: float, dtype: torch.dtype) -> None:
    scale = min(scale, torch.finfo(dtype).max / 8)
    scores = (torch.tensor([1.0, -1.0, 0.5, 0.5, 3.0]) * scale).to(dtype).requires_grad_()
    selection = knockout.methods.iterative(scores, 5, peaked)
    out = selection.weights()
    assert out.dtype == dtype
    if dtype not in (torch.float16,) or not peaked:  # the printed weights outgrow float16
        assert out.isfinite().all()
    (gradient,) = torch.autograd.grad(out.float().clamp(max=1).sum(), scores)
    assert not gradient.isnan().any()


def test_hard_is_torch_topk() -> None:
    scores, values = randn(3, 50), randn(3, 50, 4).requires_grad_()
    selection = knockout.methods.hard(scores.requires_grad_(), 6)
    top = torch.topk(scores, 6)
    index = top.indices.unsqueeze(-1).expand(-1, -1, 4)
    assert torch.equal(selection.indices, top.indices)
    same_bits(selection.scores, top.values)
    same_bits(selection.apply(values), values.gather(1, index))
    assert torch.equal(selection.mass().nonzero(), torch.zeros(3, 50).scatter(1, top.indices, 1.0).nonzero())
    assert not selection.scores.requires_grad
    up = randn(3, 6, 4, seed=1)
    (one,) = torch.autograd.grad(selection.apply(values), values, up)
    (other,) = torch.autograd.grad(values.gather(1, index), values, up)
    same_bits(one, other)


def test_no_chunk_of_weights_is_kept_for_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DensePlan, "CHUNK", 8 * 256)
    values, scores = torch.randn(256, 2, requires_grad=True), torch.randn(256, requires_grad=True)
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        selection = knockout.methods.iterative(scores, 64)
        shown = selection.apply(values), selection.mass(), selection.perplexity()
    assert sum(kept) < 64 * 256
    torch.autograd.grad(torch.stack([x.sum() for x in shown]).sum(), (values, scores))


def test_memory_of_perplexity_and_support_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DensePlan, "CHUNK", 4096)
    seen: list[torch.Tensor] = []

    scores = torch.randn(4, 256, requires_grad=True)
    for view in ("perplexity", "support", "mass"):
        with Watch(seen):
            shown = getattr(knockout.methods.iterative(scores, 32), view)()
            if shown.requires_grad:
                shown.sum().backward()
    assert max(x.numel() for x in seen) <= DensePlan.CHUNK < 4 * 32 * 256


@pytest.mark.parametrize("method", [knockout.methods.hard, knockout.methods.iterative])
@pytest.mark.parametrize("values_dtype", DTYPES)
@pytest.mark.parametrize("scores_dtype", DTYPES)
def test_the_other_methods_keep_each_dtype(method: Any, scores_dtype: torch.dtype, values_dtype: torch.dtype) -> None:
    scores, values = separated(2, 30).to(scores_dtype), randn(2, 30, 3).to(values_dtype)
    selection = method(scores, 4)
    assert selection.apply(values).dtype == values_dtype
    assert selection.scores.dtype == selection.weights().dtype == selection.mass().dtype == scores_dtype


@pytest.mark.parametrize("peaked", [True, False])
def test_iterative_is_finite_for_large_scores_and_any_alpha(peaked: bool) -> None:
    for alpha in (1e-30, 100.0, 1e30):
        scores = (torch.tensor([1.0, -1.0, 0.5, 0.5, 3.0]) * 1e30).requires_grad_()
        weights = knockout.methods.iterative(scores, 5, peaked, alpha).weights()
        assert weights.isfinite().all()
        (gradient,) = torch.autograd.grad(weights.clamp(max=1).sum(), scores)
        assert not gradient.isnan().any()


@pytest.mark.parametrize("peaked", [True, False])
def test_iterative_is_finite_where_a_distance_passes_the_largest_number(peaked: bool) -> None:
    scores = torch.tensor([3e38, -3e38, 0.0], requires_grad=True)
    weights = knockout.methods.iterative(scores, 3, peaked).weights()
    assert weights.isfinite().all()
    (gradient,) = torch.autograd.grad(weights.clamp(max=1).sum(), scores)
    assert gradient.isfinite().all()


def test_iterative_takes_the_lower_index_among_equals() -> None:
    scores = torch.tensor([0.0, 1.0]).repeat(150)
    expected = [*range(1, 300, 2), *range(0, 300, 2)]
    assert knockout.methods.iterative(scores, 300).indices.tolist() == expected
    assert knockout.select(scores, 300).indices.tolist() == expected


def test_torch_func_works_beyond_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = separated(20)
    expected = torch.func.grad(lambda x: knockout.methods.iterative(x, 8).scores.square().sum())(scores)
    monkeypatch.setattr(DensePlan, "CHUNK", 40)
    found = torch.func.grad(lambda x: knockout.methods.iterative(x, 8).scores.square().sum())(scores)
    torch.testing.assert_close(found, expected)


def test_hard_keeps_the_sign_of_zero() -> None:
    values, scores = torch.tensor([[-0.0, 1.0], [1.0, 2.0]]), torch.tensor([2.0, 1.0])
    out = knockout.methods.hard(scores, 1).apply(values)
    assert torch.equal(out.view(torch.int32), values[:1].view(torch.int32))
