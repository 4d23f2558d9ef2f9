"""Ties, and what a result does not depend on: other rows, memory layout, threads, the order of the candidates."""

from __future__ import annotations

import pytest
import torch

import knockout
from knockout.boost import Boost, Fixed, Power, Relative
from tests.cases import BOOSTS, randn, same_bits, separated


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
