"""Selection: one plan, any number of payloads, and what it shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_map

import knockout
from knockout.boost import Boost, Fixed
from tests.cases import BOOSTS, boosts, randn, same_bits, score, separated


@given(st.data(), boosts)
@settings(max_examples=100, deadline=None)
def test_weights_and_mass_add_up(data: st.DataObject, boost: Boost) -> None:
    scores = torch.tensor(data.draw(st.lists(score, min_size=1, max_size=50)), dtype=torch.float64)
    n = len(scores)
    k = data.draw(st.integers(1, n))
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    selection = knockout.select(scores, k, boost, mask=mask)
    weights, filled = selection.weights(), min(k, int(mask.sum()))
    assert weights.shape == (k, n)
    assert ((weights >= 0) & (weights <= 1)).all()
    torch.testing.assert_close(weights.sum(-1), selection.mask.double())
    assert selection.mask.sum() == filled
    torch.testing.assert_close(selection.mass(), weights.sum(-2))
    assert (selection.mass()[~mask] == 0).all()
    assert torch.equal(selection.support(), (weights != 0).sum(-1))
    assert ((weights != 0).sum(-2) <= 1).all()  # no candidate is in two slots
    torch.testing.assert_close(selection.scores, weights @ scores)
    assert (weights[selection.mask].gather(-1, selection.indices[selection.mask].unsqueeze(-1)) > 0).all()


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
def test_topk_is_select_followed_by_apply(boost: Boost) -> None:
    scores, values = randn(2, 3, 40), randn(2, 3, 40, 5)
    out, selection = knockout.topk(values, scores, 6, boost), knockout.select(scores, 6, boost)
    same_bits(out.values, selection.apply(values))
    same_bits(out.values, selection @ values)
    same_bits(out.scores, selection.scores)
    torch.testing.assert_close(out.values, selection.weights() @ values)
    assert isinstance(out, tuple)
    assert [*out._fields] == ["values", "scores", "indices", "mask"]


def test_one_plan_serves_many_payloads_of_any_width_and_dtype() -> None:
    selection = knockout.select(separated(2, 30), 4)
    positions = torch.arange(30.0).unsqueeze(-1)
    for payload in (randn(2, 30, 8), randn(2, 30, 1).bfloat16(), positions, randn(5, 1, 30, 2).float()):
        out = selection.apply(payload)
        assert out.dtype == payload.dtype
        assert out.shape == (*torch.broadcast_shapes(payload.shape[:-2], (2,)), 4, payload.shape[-1])
        tolerance = 1e-2 if payload.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(out.double(), selection.weights() @ payload.double(), rtol=tolerance, atol=tolerance)


def test_perplexity_of_a_masked_selection_is_that_of_a_deleted_one_to_the_last_bit() -> None:
    for seed in range(20):
        scores = randn(33, seed=seed, dtype=torch.float32)
        mask = torch.rand(33, generator=torch.Generator().manual_seed(seed)) > 0.3
        masked, deleted = knockout.select(scores, 4, 0.5, mask=mask), knockout.select(scores[mask], 4, 0.5)
        same_bits(masked.perplexity(), deleted.perplexity())


def test_peaked_perplexity_of_far_apart_scores() -> None:
    scores = torch.tensor([11.0, 1.0, 0.9, 0.0], requires_grad=True)
    perplexity = knockout.methods.iterative(scores, 2).perplexity()
    assert perplexity[0].item() == pytest.approx(1.0)
    assert torch.autograd.grad(perplexity.sum(), scores)[0].isfinite().all()


def test_gradients_of_several_payloads_add_up() -> None:
    scores = separated(30).requires_grad_()
    keys, values = randn(30, 3), randn(30, 5, seed=1)
    selection = knockout.select(scores, 4, 1.0)
    (both,) = torch.autograd.grad(selection.apply(keys).sum() + selection.apply(values).square().sum(), scores)
    one = torch.autograd.grad(knockout.topk(keys, scores, 4, 1.0).values.sum(), scores)[0]
    other = torch.autograd.grad(knockout.topk(values, scores, 4, 1.0).values.square().sum(), scores)[0]
    torch.testing.assert_close(both, one + other)


def test_perplexity_counts_candidates() -> None:
    even = knockout.select(torch.zeros(16), 2)
    torch.testing.assert_close(even.perplexity(), torch.tensor([8.0, 8.0]))
    decided = knockout.select(torch.tensor([9.0, 8.0, 0.0, 0.0]), 2)
    assert decided.perplexity().tolist() == [1.0, 1.0]
    pair = knockout.select(torch.tensor([1.0, 0.0], dtype=torch.float64), 1, Fixed(0.5, alpha=2))
    assert pair.perplexity().item() == pytest.approx(math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))
    empty = knockout.select(torch.tensor([1.0, -torch.inf]), 2)
    assert empty.perplexity().tolist() == [1.0, 0.0]
    assert empty.support().tolist() == [1, 0]


def test_a_soft_slot_has_many_members_and_a_sharp_one_few() -> None:
    scores = torch.rand(4, 1024, generator=torch.Generator().manual_seed(0))
    support = [knockout.select(scores, 8, c).support().float().mean().item() for c in (0.1, 1, 4, 16, 1e4)]
    assert support == sorted(support, reverse=True)
    assert support[0] == 128
    assert support[2] < 6  # the default: a handful of rows per slot, whatever n is
    assert support[-1] == 1


def test_repr_and_sizes() -> None:
    selection = knockout.select(torch.randn(2, 3, 10), 4)
    assert (selection.k, selection.n) == (4, 10)
    assert repr(selection) == "Selection(k=4, n=10, batch=(2, 3), dtype=torch.float32)"


def test_perplexity_has_a_finite_gradient_at_empty_slots_and_decided_pairs() -> None:
    scores = torch.tensor(
        [[9.0, 1.0, 0.9, 0.0], [1.0, -torch.inf, 0.5, -torch.inf], [-torch.inf] * 4], requires_grad=True
    )
    for k in (2, 3):
        for selection in (
            knockout.select(scores, k, Fixed(1, alpha=1.5)),
            knockout.methods.iterative(scores, k, peaked=False),
        ):
            (gradient,) = torch.autograd.grad(selection.perplexity().sum(), scores)
            assert gradient.isfinite().all()
            assert gradient[0].any()
            assert not gradient[2].any()


def test_perplexity_of_rows_that_do_not_sum_to_one() -> None:
    selection = knockout.methods.iterative(separated(10), 4)  # peaked
    weights = selection.weights()
    assert (weights.sum(-1) > 1.1).all()
    shares = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(selection.perplexity(), torch.exp(torch.special.entr(shares).sum(-1)))


def test_support_counts_the_smallest_weight() -> None:
    selection = knockout.select(torch.tensor([16.0, 0.0]), 1, Fixed(1))
    assert 0 < selection.weights()[0, 1] < 1e-6
    assert selection.support().tolist() == [2]


def test_a_selection_can_be_saved(tmp_path: Path) -> None:
    values, scores = randn(2, 40, 4), separated(2, 40)
    expected = knockout.topk(values, scores, 4).values
    torch.save(knockout.select(scores, 4), tmp_path / "selection.pt")
    same_bits(torch.load(tmp_path / "selection.pt", weights_only=False).apply(values), expected)


# --- tensors that a function was mapped over, as FSDP does for mixed precision --------------------

METHODS: dict[str, Callable[[Tensor], knockout.Selection]] = {
    "soft": lambda scores: knockout.select(scores, 7, 0.5),
    "hard": lambda scores: knockout.select(scores, 7, 0.5, hard=True),
    "lapsum": lambda scores: knockout.methods.lapsum(scores, 7),
    "softsort": lambda scores: knockout.methods.softsort(scores, 7),
}


def converted(selection: knockout.Selection, *dtypes: torch.dtype) -> knockout.Selection:
    """The selection with its floating-point tensors converted to one dtype after the other."""

    def convert(tensor: Tensor) -> Tensor:
        return reduce(Tensor.to, dtypes, tensor) if tensor.is_floating_point() else tensor

    out: knockout.Selection = tree_map(convert, selection)
    return out


def shown(selection: knockout.Selection, values: Tensor) -> list[Tensor]:
    return [
        selection.apply(values),
        selection.apply(values[0].detach().numpy()),
        selection.scores,
        selection.weights(),
        selection.mass(),
        selection.perplexity(),
        selection.support(),
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", METHODS)
def test_converted_weights_act_as_the_numbers_that_they_are(name: str, dtype: torch.dtype) -> None:
    results = []
    for dtypes in ([dtype], [dtype, torch.float32]):
        values = randn(2, 60, 5, dtype=torch.float32).requires_grad_()
        scores = randn(2, 60, dtype=torch.float32).requires_grad_()
        *found, support = shown(converted(METHODS[name](scores), *dtypes), values)
        gradients = torch.autograd.grad([each.sin().sum() for each in found], (values, scores))
        results.append([*found, support, *gradients])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    if dtype != torch.float64:
        for one, other in zip(*results, strict=True):
            same_bits(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_converted_weights_under_transforms(dtype: torch.dtype) -> None:
    values, scores = randn(2, 60, 5, dtype=torch.float32), randn(2, 60, dtype=torch.float32)
    selection = converted(knockout.select(scores, 7, 0.5), dtype)
    expected = selection.weights() @ values
    assert torch.equal(selection.weights(), knockout.select(scores, 7, 0.5).weights().to(dtype).float())

    def apply(selection: knockout.Selection, values: Tensor) -> Tensor:
        return selection.apply(values)

    torch.testing.assert_close(apply(selection, values), expected)
    torch.testing.assert_close(torch.vmap(apply)(selection, values), expected)
    torch.testing.assert_close(torch.compile(apply, backend="aot_eager", fullgraph=True)(selection, values), expected)


@pytest.mark.parametrize(
    ("convert", "words"),
    [
        (Tensor.float, r"`member` of a selection must be torch\.int32 or torch\.int64; got torch\.float32"),
        (Tensor.bfloat16, r"`member` of a selection must be torch\.int32 or torch\.int64; got torch\.float32"),
        (Tensor.bool, r"`member` of a selection must be torch\.int32 or torch\.int64; got torch\.bool"),
        (Tensor.long, r"`weight` of a selection must be torch\.float32 or torch\.float64; got torch\.int64"),
        (lambda x: x.int() if x.dtype == torch.bool else x, r"`valid` of a selection must be torch\.bool; got torch"),
    ],
)  # fmt: skip
def test_members_that_were_converted(convert: Callable[[Tensor], Tensor], words: str) -> None:
    values = randn(60, 5)
    selection = tree_map(convert, knockout.select(separated(60), 7, 0.5))
    for use in (
        lambda: selection.apply(values),
        lambda: selection.apply(values.numpy()),
        selection.weights,
        selection.mass,
        selection.support,
        selection.perplexity,
    ):
        with pytest.raises(TypeError, match=words):
            use()


def test_a_selection_moved_to_another_device() -> None:
    values, selection = randn(60, 5), knockout.select(separated(60).requires_grad_(), 7, 0.5)
    moved = tree_map(lambda x: x.to("meta"), selection)
    assert {each.device.type for each in (moved.apply(values.to("meta")), moved.weights(), moved.scores)} == {"meta"}
    with pytest.raises(ValueError, match="values must be on the device of scores, meta; got cpu"):
        moved.apply(values)
    for halfway in (Tensor.is_floating_point, lambda x: not x.is_floating_point()):
        moved = tree_map(lambda x, halfway=halfway: x.to("meta") if halfway(x) else x, selection)
        with pytest.raises(ValueError, match="the tensors of a selection must be on one device; got `weight` on"):
            moved.apply(values.to(moved.indices.device))


def test_parts_of_a_selection_that_do_not_belong_together() -> None:
    picked = knockout.select(separated(3, 9), 4, boost=0.5)
    with pytest.raises(TypeError, match="tensor `weight` of a selection must be"):
        _ = tree_map(lambda x: x.int(), picked).scores
    with pytest.raises(ValueError, match="must have shapes that belong together"):
        tree_map(lambda x: x[..., :1], picked).apply(randn(3, 9, 2))
