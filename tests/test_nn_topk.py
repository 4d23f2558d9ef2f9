"""The layer ``TopK``."""

# mypy: disable-error-code="arg-type, operator, union-attr"

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import knockout
from knockout.boost import Adaptive, Fixed, Power, Relative
from knockout.nn import TopK, evaluate_hard
from tests.cases import randn, separated
from tests.nn_cases import DIM, pool, tokens


@pytest.mark.parametrize("boost", [2.0, Relative(3, unit=0.1), Adaptive(2, unit=3), Fixed(2), Power(20)])
@pytest.mark.parametrize("hard", [False, True])
def test_topk_is_the_function(boost: Any, hard: bool) -> None:
    values, scores = tokens(3, 20), randn(3, 20, dtype=torch.float32)
    layer = TopK(6, boost, "position", hard)
    expected = knockout.topk(values, scores, 6, boost, None, "position", hard)
    for one, other in zip(layer(values, scores), expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("hard", "hard_eval", "in_training", "in_evaluation"),
    [(False, None, False, False), (False, True, False, True), (True, None, True, True), (True, False, True, False)],
)
def test_soft_or_hard_in_evaluation(hard: bool, hard_eval: bool | None, in_training: bool, in_evaluation: bool) -> None:
    values, scores = tokens(20), randn(20, dtype=torch.float32)
    layer = TopK(6, 0.5, hard=hard, hard_eval=hard_eval)
    soft, sharp = (knockout.topk(values, scores, 6, 0.5, hard=each).values for each in (False, True))
    assert not torch.equal(soft, sharp)
    assert torch.equal(layer.train()(values, scores).values, sharp if in_training else soft)
    assert torch.equal(layer.eval()(values, scores).values, sharp if in_evaluation else soft)


def test_evaluate_hard_measures_the_gap_and_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Identity(), pool(k=4, boost=0.5)).eval()
    x = tokens(2, 16)
    soft = model(x).x
    with evaluate_hard(model):
        hard = model(x)
        assert torch.equal(hard.x, x.gather(1, hard.leaders.unsqueeze(-1).expand(-1, -1, DIM)))
    assert torch.equal(model(x).x, soft)
    assert not torch.equal(hard.x, soft)


def test_k_is_the_most() -> None:
    out = TopK(8)(tokens(5), randn(5, dtype=torch.float32))
    assert out.values.shape == (5, DIM)


@pytest.mark.parametrize("mode", [{}, {"hard": True}, {"hard_eval": True}, {"gate": True}], ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_a_k_for_each_row(mode: dict[str, bool], training: bool) -> None:
    values, scores, k = tokens(4, 7), randn(4, 7, dtype=torch.float32), torch.tensor([2, 0, 5, 9])
    layer = TopK(9, 2.0, **mode).train(training)
    out = layer(values, scores, k=k)
    assert out.mask.sum(-1).tolist() == [2, 0, 5, 7]  # a layer takes all where k is above n
    for row, count in enumerate(k.tolist()):
        if count:
            alone = TopK(count, 2.0, **mode).train(training)(values[row], scores[row])
            for one, other in zip(out, alone, strict=True):
                assert torch.equal(one[row, : len(other)], other)
    assert torch.equal(layer.select(scores, k=k).indices, out.indices)


def test_a_unit_is_measured_whatever_the_counts_are() -> None:
    values, scores = tokens(4, 20), randn(4, 20, dtype=torch.float32)
    units = []
    for k in (None, torch.tensor([1, 0, 3, 6])):
        layer = TopK(6)
        layer(values, scores, k=k)
        units.append(layer.unit.item())
    assert units[0] == units[1] > 0


def test_boost_can_be_set_and_is_saved() -> None:
    layer, other = TopK(4, 2.0), TopK(4, 3.0)
    layer.boost = 0.25
    assert float(layer.sharpness) == 0.25
    assert repr(layer) == "TopK(k=4, boost=Relative(c=0.25, unit=1.0, alpha=1.5))"
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    scores = randn(16, dtype=torch.float32)
    assert torch.equal(other.select(scores).weights(), knockout.select(scores, 4, 0.25).weights())
    with pytest.raises(TypeError, match=r"boost must remain Relative, or be passed when .* made; got Fixed"):
        layer.boost = Fixed(3)


def test_hard_choices_in_evaluation_are_the_true_top_k() -> None:
    scores, values = torch.rand(2, 4096, generator=torch.Generator().manual_seed(0)), randn(2, 4096, 3)
    mask = torch.rand(2, 4096, generator=torch.Generator().manual_seed(1)) < 0.9
    for layer in (TopK(2, hard_eval=True), TopK(2, hard=True)):
        layer.select(scores, mask)  # calibrates
        out = layer.eval()(values, scores, mask)
        expected = scores.masked_fill(~mask, -torch.inf).topk(2)
        assert torch.equal(out.indices, expected.indices)
        assert torch.equal(out.scores, expected.values)
        assert torch.equal(out.values, values.gather(1, expected.indices.unsqueeze(-1).expand(-1, -1, 3)))
    soft = knockout.select(scores, 2, mask=mask).indices
    assert not torch.equal(soft, expected.indices)  # a soft tournament has other leaders


@pytest.mark.parametrize("scale", [1.0, 2.0**20])
def test_gates_mean_the_same_at_every_scale(scale: float) -> None:
    scores, values = scale * randn(3, 40, dtype=torch.float32), randn(3, 40, 5, dtype=torch.float32)
    layer, plain = TopK(4, gate=True), TopK(4)
    out, ungated = layer(values, scores), plain(values, scores)
    gates = 2 * torch.sigmoid((ungated.scores - scores.mean(dim=-1, keepdim=True)) / layer.unit)
    torch.testing.assert_close(out.values, ungated.values * gates.unsqueeze(-1))
    assert ((gates > 1) & (gates < 2)).float().mean() > 0.9
    torch.testing.assert_close(plain.select(scores).gates(), gates)
    hard = layer.eval()
    hard.hard_eval = True
    best, index = scores.topk(4)
    gates = 2 * torch.sigmoid((best - scores.mean(dim=-1, keepdim=True)) / layer.unit)
    chosen = values.gather(1, index.unsqueeze(-1).expand(-1, -1, 5))
    torch.testing.assert_close(hard(values, scores).values, chosen * gates.unsqueeze(-1))
    assert "gate=True" in repr(layer)


def test_gates_leave_out_what_is_masked_and_are_one_for_equal_scores() -> None:
    scores, mask = randn(2, 12), torch.arange(12) < 7
    one = knockout.select(scores, 3, mask=mask).gates()
    torch.testing.assert_close(one, knockout.select(scores[:, :7], 3).gates())
    assert knockout.select(torch.full((9,), 5.0), 2).gates().tolist() == [1.0, 1.0]
    scores[0, 3] = float("nan")
    assert knockout.select(scores, 3).gates().isnan().any(dim=-1).tolist() == [True, False]
    with pytest.raises(ValueError, match="gates need the scores"):
        knockout.methods.hard(scores, 3).gates()


def test_gates_have_a_gradient() -> None:
    scores = separated(2, 12).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: knockout.select(x, 3, 1.0).gates(), (scores,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_hard_choices_in_evaluation_are_exact_beside_huge_scores(dtype: torch.dtype) -> None:
    scores = randn(50, 27).to(dtype)
    scores[:, 3], scores[:25, 5] = torch.finfo(dtype).min, torch.finfo(dtype).max / 2
    expected = scores.double().sort(dim=-1, descending=True, stable=True).indices[:, :6]
    for scale in (1.0, 1e-20):
        changed = torch.where(scores.abs() > 1e10, scores, scale * scores)
        assert torch.equal(TopK(6, hard_eval=True).eval().select(changed).indices, expected)


def test_hard_evaluation_builds_no_graph_and_warns_of_nothing() -> None:
    made, x = pool(k=3), tokens(4, 20).requires_grad_()
    with warnings.catch_warnings(), evaluate_hard(made.eval()):
        warnings.simplefilter("error")
        for _ in range(4):
            out = made(x)
    assert not out.scores.requires_grad
    assert out.x.requires_grad  # the values still have one


def test_gates_are_exact() -> None:
    for number in (1e8, 3.3e6, 1e20, -7.7):
        assert knockout.select(torch.full((7,), number), 3).gates().tolist() == [1.0] * 3
    scores, mask = randn(20, 53, dtype=torch.float32), torch.rand(53, generator=torch.Generator().manual_seed(0)) < 0.6
    one, other = knockout.select(scores, 8, mask=mask).gates(), knockout.select(scores[:, mask], 8).gates()
    assert torch.equal(one, other)
    order = torch.randperm(53, generator=torch.Generator().manual_seed(1))
    assert torch.equal(knockout.select(scores, 8).gates(), knockout.select(scores[:, order], 8).gates())
    assert knockout.select(torch.tensor([5.0, 4.0]), 2, mask=torch.tensor([True, False])).gates().tolist() == [1.0, 1.0]
    layer = TopK(2, hard_eval=True, gate=True)
    layer(scores.unsqueeze(-1), scores)
    layer.eval()
    torch.testing.assert_close(layer(torch.ones(20, 53, 1), scores).values.squeeze(-1), layer.select(scores).gates())


@pytest.mark.parametrize("unit", [0.0, -1.0, float("nan"), True, "x", torch.tensor(0.0), torch.ones(2)])
def test_bad_units_of_gates(unit: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="unit must be"):
        knockout.select(randn(9), 2).gates(unit)


def test_bad_models_and_masks() -> None:
    with evaluate_hard(nn.Linear(2, 2)):  # nothing to do
        pass
    with pytest.raises(TypeError, match=r"model must be an nn\.Module; got int"), evaluate_hard(3):
        pass
    with pytest.raises(ValueError, match="mask must come with scores"):
        TopK(2).calibrate(mask=torch.ones(3, dtype=torch.bool))
