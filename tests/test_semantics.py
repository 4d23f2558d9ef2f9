"""The exact semantics that every backend keeps: ties, masks, spoiled rows, order, dtypes, independence."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import knockout
from knockout.boost import Boost, Fixed, Power, Relative
from tests.cases import BOOSTS, DTYPES, boosts, randn, same_bits, score, separated

INF, NAN = float("inf"), float("nan")


# --- ties -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
def test_all_equal_scores_share_evenly_and_the_lower_index_leads(boost: Boost) -> None:
    selection = knockout.select(torch.full((16,), 0.25), 4, boost)
    assert selection.indices.tolist() == [0, 1, 2, 3]
    assert torch.equal(selection.mass(), torch.full((16,), 0.25))
    assert selection.support().tolist() == [4] * 4


def test_among_equals_the_lower_index_is_better() -> None:
    scores = torch.tensor([1.0, 2.0, 2.0, 1.0, 2.0, 0.0])
    assert knockout.select(scores, 2, 1e6).indices.tolist() == [1, 2]
    assert knockout.select(scores, 4, 1e6).indices.tolist() == [1, 2, 4, 0]


def test_equal_blends_of_unequal_pairs_rank_by_their_leader() -> None:
    # Fixed(1, alpha=2) gives a pair a - g (1 - g) / 2 for its gap g < 1. #3 (2 + 1/32) meets #1, gap 1/2; #0 (2) meets
    # #2, gap 1/4. Both blends are 1.90625 exactly: #3 ranked above #0 in the first round, but now #0 is the better one.
    scores = torch.tensor([2.0, 1.53125, 1.75, 2.03125])
    assert knockout.select(scores, 2, Fixed(1, alpha=2)).scores.tolist() == [1.90625, 1.90625]
    assert knockout.select(scores, 2, Fixed(1, alpha=2)).indices.tolist() == [3, 0]
    assert knockout.select(scores, 1, Fixed(1, alpha=2)).indices.tolist() == [0]


# --- independence ---------------------------------------------------------------------------------


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
def test_permuting_candidates_permutes_the_result_to_the_last_bit(boost: Boost) -> None:
    scores, values = separated(50).float(), randn(50, 4, dtype=torch.float32)
    shuffle = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    one, other = knockout.topk(values, scores, 6, boost), knockout.topk(values[shuffle], scores[shuffle], 6, boost)
    same_bits(one.values, other.values)
    same_bits(one.scores, other.scores)
    assert torch.equal(one.indices, shuffle[other.indices])


def _gradients(values: torch.Tensor, scores: torch.Tensor, k: int, boost: Boost) -> list[torch.Tensor]:
    values, scores = values.detach().requires_grad_(), scores.detach().requires_grad_()
    out = knockout.topk(values, scores, k, boost)
    loss = (out.values * torch.linspace(-1, 1, out.values.shape[-1])).sum() + out.scores.square().sum()
    return [out.values.detach(), out.scores.detach(), *torch.autograd.grad(loss, (values, scores))]


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
@pytest.mark.parametrize("d", [1, 3, 17, 32])
def test_a_row_does_not_depend_on_its_batch_mates_nor_on_memory_layout(boost: Boost, d: int) -> None:
    scores, values = randn(5, 77, dtype=torch.float32), randn(5, 77, d, dtype=torch.float32)
    whole = _gradients(values, scores, 6, boost)
    for row in range(5):
        for together, alone in zip(whole, _gradients(values[row], scores[row], 6, boost), strict=True):
            same_bits(together[row], alone)
    strided_scores = torch.empty(77, 5, 2).copy_(scores.t().unsqueeze(-1))[..., 0].t()
    strided_values = torch.empty(d, 77, 5, 2).copy_(values.permute(2, 1, 0).unsqueeze(-1))[..., 0].permute(2, 1, 0)
    assert not strided_scores.is_contiguous()
    assert not strided_values.is_contiguous()
    for one, other in zip(whole, _gradients(strided_values, strided_scores, 6, boost), strict=True):
        same_bits(one, other)


@pytest.mark.parametrize(
    "boost", [Relative(4), Relative(0.5), Relative(1, alpha=1), Relative(2, unit=0.01, alpha=1), Power(20)], ids=str
)
def test_the_number_of_threads_changes_no_bit(boost: Boost) -> None:
    scores, values = randn(1, 150_001, dtype=torch.float32), randn(1, 150_001, 2, dtype=torch.float32)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(_gradients(values, scores, 3, boost))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            same_bits(one, two)


# --- masks ----------------------------------------------------------------------------------------


@given(st.data(), boosts, st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_masked_candidate_is_as_good_as_deleted_to_the_last_bit(
    data: st.DataObject, boost: Boost, by_score: bool
) -> None:
    scores = torch.tensor(data.draw(st.lists(score, min_size=2, max_size=40), label="scores"))
    n = len(scores)
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n).filter(any), label="mask"))
    k = data.draw(st.integers(1, int(mask.sum())), label="k")
    values = randn(n, 3, dtype=torch.float32)
    deleted = knockout.topk(values[mask], scores[mask], k, boost)

    garbage = torch.where(mask.unsqueeze(-1), values, NAN)
    if by_score:
        masked = knockout.topk(garbage, torch.where(mask, scores, -INF), k, boost)
    else:
        masked = knockout.topk(garbage, torch.where(mask, scores, NAN), k, boost, mask=mask)
    same_bits(masked.values, deleted.values)
    same_bits(masked.scores, deleted.scores)
    assert torch.equal(masked.indices, mask.nonzero().flatten()[deleted.indices])


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
@pytest.mark.parametrize("hard", [False, True])
def test_masked_candidates_get_a_gradient_of_exactly_zero(boost: Boost, hard: bool) -> None:
    mask = torch.rand(3, 30, generator=torch.Generator().manual_seed(0)) > 0.4
    scores = torch.where(mask, randn(3, 30), NAN).requires_grad_()
    values = torch.where(mask.unsqueeze(-1), randn(3, 30, 2), INF).requires_grad_()
    out = knockout.topk(values, scores, 5, boost, mask=mask, hard=hard)
    (out.values.square().sum() + out.scores.square().sum()).backward()
    assert scores.grad is not None
    assert values.grad is not None
    assert scores.grad.isfinite().all()
    assert values.grad.isfinite().all()
    assert (scores.grad[~mask] == 0).all()
    assert (values.grad[~mask] == 0).all()
    assert (scores.grad[mask] != 0).any()


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("order", ["score", "position"])
def test_empty_slots(order: knockout.functional.Order, hard: bool) -> None:
    scores = torch.tensor([[3.0, -INF, 1.0, 2.0], [-INF] * 4]).requires_grad_()
    values = torch.full((2, 4, 2), NAN)
    values[0, [0, 2, 3]] = torch.tensor([[1.0, 1.0], [3.0, 3.0], [2.0, 2.0]])
    values.requires_grad_()
    out = knockout.topk(values, scores, 4, order=order, hard=hard)
    leaders = [0, 3, 2, -1] if order == "score" else [0, 2, 3, -1]
    assert out.indices.tolist() == [leaders, [-1] * 4]
    assert out.mask.tolist() == [[True, True, True, False], [False] * 4]
    assert out.scores[0].tolist() == [scores[0, i].item() if i >= 0 else 0.0 for i in leaders]
    assert out.values[0, 3].tolist() == [0.0, 0.0]
    assert not out.values[1].any()
    assert not out.scores[1].any()
    (out.values.sum() + out.scores.sum()).backward()
    assert scores.grad is not None
    assert values.grad is not None
    assert scores.grad.isfinite().all()
    assert values.grad.isfinite().all()


def test_rows_may_have_different_numbers_of_candidates() -> None:
    scores, values = randn(4, 64), randn(4, 64, 3)
    lengths = torch.tensor([64, 33, 9, 2])
    mask = torch.arange(64) < lengths.unsqueeze(-1)
    out = knockout.topk(values, scores, 4, mask=mask)
    for row, length in enumerate(lengths.tolist()):
        alone = knockout.topk(values[row, :length], scores[row, :length], min(4, length))
        same_bits(out.values[row, : min(4, length)], alone.values)
        assert out.mask[row].sum() == min(4, length)


# --- spoiled rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("n", [2, 5, 40])
def test_a_nan_or_infinite_score_spoils_its_row_and_no_other(n: int, hard: bool, bad: float, boost: Boost) -> None:
    scores, values = randn(3, n), randn(3, n, 2)
    spoiled = scores.clone()
    spoiled[1, n // 2] = bad
    clean = knockout.topk(values, scores, 2, boost, hard=hard)
    spoiled.requires_grad_()
    selection = knockout.select(spoiled, 2, boost, hard=hard)
    blended = selection.apply(values)
    for out in (blended, selection.scores, selection.weights(), selection.mass(), selection.perplexity()):
        assert out[1].isnan().all()
        assert out[[0, 2]].isfinite().all()
    same_bits(blended[[0, 2]].detach(), clean.values[[0, 2]])
    assert ((selection.indices >= 0) & (selection.indices < n)).all()
    (gradient,) = torch.autograd.grad(blended.sum(), spoiled)
    assert gradient[[0, 2]].isfinite().all()


# --- order and hard -------------------------------------------------------------------------------


def test_order_by_position() -> None:
    scores, values = separated(3, 40), randn(3, 40, 2)
    by_score = knockout.topk(values, scores, 7)
    by_position = knockout.topk(values, scores, 7, order="position")
    positions, slots = by_score.indices.sort(dim=-1)
    assert torch.equal(by_position.indices, positions)
    same_bits(by_position.values, by_score.values.gather(1, slots.unsqueeze(-1).expand(-1, -1, 2)))
    same_bits(by_position.scores, by_score.scores.gather(1, slots))


def test_order_by_score_is_that_of_the_last_round() -> None:
    # No round: by score. One round: as folded, although the blends come out in another order.
    assert knockout.select(torch.tensor([1.0, 3.0, 2.0]), 3).indices.tolist() == [1, 2, 0]
    selection = knockout.select(torch.tensor([1.0, 0.98, 0.95, 0.0]), 2, Fixed(0.01))
    assert selection.indices.tolist() == [0, 1]
    assert selection.scores[0] < selection.scores[1]


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
def test_hard_returns_the_leaders_untouched_with_the_soft_gradient(boost: Boost) -> None:
    scores, values = randn(3, 20).requires_grad_(), randn(3, 20, 4).requires_grad_()
    with torch.no_grad():
        values[0, scores[0].argmax()] = torch.tensor([-0.0, 1e30, 5e-324, -1.0], dtype=torch.float64)
    soft, hard = knockout.topk(values, scores, 5, boost), knockout.topk(values, scores, 5, boost, hard=True)
    assert torch.equal(hard.indices, soft.indices)
    index = soft.indices.unsqueeze(-1).expand(-1, -1, 4)
    assert torch.equal(hard.values.view(torch.int64), values.gather(1, index).view(torch.int64))
    assert torch.equal(hard.scores, scores.gather(1, soft.indices))
    up = randn(3, 5, 4, seed=2)
    for one, other in zip(
        torch.autograd.grad([soft.values, soft.scores], (values, scores), [up, up[..., 0]]),
        torch.autograd.grad([hard.values, hard.scores], (values, scores), [up, up[..., 0]]),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_hard_weights_are_one_hot_with_the_soft_gradient() -> None:
    scores = randn(2, 20).requires_grad_()
    soft, hard = knockout.select(scores, 3, 1.0), knockout.select(scores, 3, 1.0, hard=True)
    assert torch.equal(hard.weights(), torch.nn.functional.one_hot(soft.indices, 20).double())
    assert torch.equal(hard.mass(), hard.weights().sum(-2))
    assert torch.equal(hard.support(), soft.support())  # of the blend behind it
    assert torch.equal(hard.perplexity(), soft.perplexity())
    up = randn(2, 3, 20, seed=3)
    (one,), (other,) = (torch.autograd.grad(x.weights(), scores, up) for x in (soft, hard))
    torch.testing.assert_close(one, other)


# --- dtypes and shapes ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hard", [False, True])
def test_half_types_are_computed_in_float32(dtype: torch.dtype, hard: bool) -> None:
    scores, values = randn(2, 50).to(dtype).requires_grad_(), randn(2, 50, 3).to(dtype).requires_grad_()
    out = knockout.topk(values, scores, 4, 1.0, hard=hard)
    assert out.values.dtype == out.scores.dtype == dtype
    computing = torch.promote_types(dtype, torch.float32)
    exact = knockout.topk(values.detach().to(computing), scores.detach().to(computing), 4, 1.0, hard=hard)
    same_bits(out.values.detach(), exact.values.to(dtype))
    same_bits(out.scores.detach(), exact.scores.to(dtype))
    assert torch.equal(out.indices, exact.indices)
    gradients = torch.autograd.grad(out.values.sum() + out.scores.sum(), (values, scores))
    assert [gradient.dtype for gradient in gradients] == [dtype, dtype]
    assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients)
    selection = knockout.select(scores, 4)
    assert {x.dtype for x in (selection.weights(), selection.mass(), selection.perplexity())} == {dtype}


@pytest.mark.parametrize("scores_dtype", DTYPES)
@pytest.mark.parametrize("values_dtype", DTYPES)
def test_each_result_has_the_dtype_of_its_own_input(scores_dtype: torch.dtype, values_dtype: torch.dtype) -> None:
    scores, values = separated(30).to(scores_dtype).requires_grad_(), randn(30, 2).to(values_dtype).requires_grad_()
    out = knockout.topk(values, scores, 3)
    assert out.values.dtype == values_dtype
    assert out.scores.dtype == scores_dtype
    gradients = torch.autograd.grad(out.values.float().square().sum(), (values, scores))
    assert [gradient.dtype for gradient in gradients] == [values_dtype, scores_dtype]


@pytest.mark.parametrize(
    ("values_batch", "scores_batch", "batch"),
    [
        ((), (), ()),
        ((2, 3), (2, 3), (2, 3)),
        ((), (4,), (4,)),
        ((4,), (), (4,)),
        ((2, 1), (3,), (2, 3)),
        ((3,), (2, 1), (2, 3)),
    ],
)
def test_batch_dimensions_broadcast(
    values_batch: tuple[int, ...], scores_batch: tuple[int, ...], batch: tuple[int, ...]
) -> None:
    values, scores = randn(*values_batch, 12, 3).requires_grad_(), separated(*scores_batch, 12).requires_grad_()
    out = knockout.topk(values, scores, 5, 1.0)
    full = knockout.topk(
        values.detach().expand(*batch, 12, 3).contiguous().requires_grad_(),
        scores.detach().expand(*batch, 12).contiguous().requires_grad_(),
        5,
        1.0,
    )
    assert out.values.shape == (*batch, 5, 3)
    assert out.scores.shape == out.indices.shape == out.mask.shape == (*scores_batch, 5)
    same_bits(out.values, full.values)
    up = randn(*batch, 5, 3, seed=4)
    expanded_values, expanded_scores = values.expand(*batch, 12, 3), scores.expand(*batch, 12)
    reference = knockout.select(expanded_scores, 5, 1.0).weights() @ expanded_values
    for one, other in zip(
        torch.autograd.grad(out.values, (values, scores), up),
        torch.autograd.grad(reference, (values, scores), up),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_a_mask_may_bring_batch_dimensions() -> None:
    scores, values = separated(12), randn(12, 2)
    mask = torch.rand(3, 12, generator=torch.Generator().manual_seed(0)) > 0.3
    out = knockout.topk(values, scores, 2, mask=mask)
    assert out.values.shape == (3, 2, 2)
    for row in range(3):
        same_bits(out.values[row], knockout.topk(values, scores, 2, mask=mask[row]).values)


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30, 1e36, 3e38, -3e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_finite_scores_give_finite_results_and_gradients(dtype: torch.dtype, scale: float, boost: Boost) -> None:
    unit = torch.tensor([1.0, -1.0, 0.5, 0.25, -0.75, 0.9, 0.1, 0.0, 1.0])
    values = (10 * randn(9, 2)).to(dtype).requires_grad_()
    for each in (unit * scale, torch.full((9,), scale)):
        scores = each.to(dtype).requires_grad_()
        for k in (1, 2):
            out = knockout.topk(values, scores, k, boost)
            assert out.values.isfinite().all()
            assert out.scores.isfinite().all()
            for gradient in torch.autograd.grad(out.values.sum(), (values, scores)):
                assert gradient.isfinite().all()


@pytest.mark.parametrize("boost", [Relative(1e39), Relative(4, unit=1e-46), Fixed(1e39), Relative(1e-46, unit=1e39)])
def test_a_boost_beyond_the_dtype_is_as_sharp_or_as_soft_as_it_gets(boost: Boost) -> None:
    for scores in (torch.zeros(4), torch.tensor([1.0, 2.0, 2.0, 3.0])):
        scores.requires_grad_()
        out = knockout.topk(randn(4, 3, dtype=torch.float32), scores, 1, boost)
        assert out.values.isfinite().all()
        assert not torch.autograd.grad(out.values.sum(), scores)[0].isnan().any()


def test_relative_means_the_same_at_every_scale() -> None:
    scores = separated(60)
    one = knockout.select(scores, 5, Relative(2, unit=1e-6)).weights()
    torch.testing.assert_close(one, knockout.select(scores * 1e6, 5, Relative(2, unit=1)).weights())


def test_inputs_are_left_as_they_were() -> None:
    scores, values = randn(3, 20), randn(3, 20, 2)
    before = scores.clone(), values.clone()
    knockout.topk(values, scores, 4, mask=torch.ones(3, 20, dtype=torch.bool))
    assert torch.equal(scores, before[0])
    assert torch.equal(values, before[1])


def test_a_mask_and_scores_of_minus_infinity_may_come_together() -> None:
    scores, values = separated(20).requires_grad_(), randn(20, 2)
    mask, struck = torch.arange(20) % 3 != 0, torch.arange(20) % 4 == 1  # some by one, some by the other, some by both
    both = knockout.topk(values, scores.masked_fill(struck, -INF), 3, mask=mask)
    expected = knockout.topk(values, scores, 3, mask=mask & ~struck)
    same_bits(both.values, expected.values)
    same_bits(both.scores, expected.scores)
    assert torch.equal(both.indices, expected.indices)


def test_an_empty_slot_of_a_hard_selection_shows_nothing() -> None:
    scores = torch.tensor([[1.0, -INF, 3.0], [-INF] * 3])
    for selection in (
        knockout.select(scores, 3, hard=True),
        knockout.methods.hard(scores, 3),
        knockout.methods.iterative(scores, 3),
    ):
        assert selection.mask.tolist() == [[True, True, False], [False] * 3]
        assert (selection.support() > 0).tolist() == selection.mask.tolist()
        assert (selection.weights().sum(-1) > 0).tolist() == selection.mask.tolist()
        assert (selection.perplexity() > 0).tolist() == selection.mask.tolist()
        assert not selection.mass()[1].any()


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("hard", [False, True])
def test_the_values_of_a_decided_loser_are_not_read(hard: bool, bad: float) -> None:
    scores = torch.tensor([9.0, 5.0, 4.9, 0.0], requires_grad=True)
    values = torch.tensor([[1.0], [2.0], [3.0], [bad]], requires_grad=True)
    out = knockout.topk(values, scores, 2, Fixed(4, alpha=1.5), hard=hard)
    assert out.values.isfinite().all()
    for gradient in torch.autograd.grad(out.values.square().sum(), (values, scores)):
        assert gradient.isfinite().all()
        assert gradient[3] == 0


def test_rounds_without_a_pair_do_not_narrow_the_scale() -> None:
    # Two of 64 take part: five rounds of byes, then one pair, measured by the unit as if the others were not there.
    scores = torch.zeros(64, dtype=torch.float64)
    scores[10] = 0.1
    mask = torch.zeros(64, dtype=torch.bool)
    mask[[10, 40]] = True
    weights = knockout.select(scores, 1, Relative(1, alpha=2), mask=mask).weights()
    assert weights[0, 10].item() == pytest.approx(0.55)


def test_the_mean_gap_of_the_largest_scores_does_not_overflow() -> None:
    unit = torch.tensor([1.0, 0.1, 0.9, 0.2, 0.8, 0.3, 0.95, 0.05])
    torch.testing.assert_close(
        knockout.select(unit * 3e38, 2, 1.0).weights(), knockout.select(unit * 1e3, 2, 1.0).weights()
    )
