"""What a tournament starts from, and the plan that it ends with."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

import knockout
from knockout.backends import NAMES
from knockout.boost import Relative
from knockout.candidates import candidates
from knockout.ops.autograd.gather import blend
from knockout.ops.reference import gather
from knockout.ops.reference.tournament import tournament
from knockout.plan import DensePlan
from knockout.quota import Quota
from knockout.torch_private import embedding_bag_weight_gradient
from tests.cases import INF, NAN, randn, same_bits


def test_scores_of_inactive_candidates_are_zero() -> None:
    scores = torch.tensor([[1.0, -INF, 3.0, NAN], [1.0, 2.0, INF, 4.0]])
    mask = torch.tensor([True, True, True, False])
    found = candidates(scores, mask)
    assert found.active.tolist() == [[True, False, True, False], [True, True, True, False]]
    assert found.valid.tolist() == [[True], [False]]
    assert found.score[0].tolist() == [1.0, 0.0, 3.0, 0.0]
    assert found.score[1].isnan().all()


def test_a_mask_with_more_rows_than_the_scores() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    found = candidates(torch.tensor([1.0, 2.0]), mask)
    assert found.score.tolist() == [[1.0, 2.0], [1.0, 0.0]]
    assert found.active.tolist() == mask.tolist()
    assert found.valid.shape == (2, 1)


def test_slots_are_in_the_order_of_the_last_round_unless_asked_otherwise() -> None:
    scores = candidates(torch.tensor([1.0, 0.0, 3.0, 2.0]), None)
    assert tournament(scores, Quota(2), Relative(4)).leader.tolist() == [2, 3]
    assert tournament(scores, Quota(4), Relative(4)).leader.tolist() == [2, 3, 0, 1]
    assert tournament(scores, Quota(4), Relative(4), by_position=True).leader.tolist() == [0, 1, 2, 3]


def test_numbers_that_are_no_members_are_padding() -> None:
    values, weight = randn(4, 3).requires_grad_(), randn(2, 3, seed=1).requires_grad_()
    results = []
    for member in ([[-1, 2, 4], [0, 9, -7]], [[4, 2, 4], [0, 4, 4]]):
        out = blend(values, weight, torch.tensor(member), backend="reference")
        results.append([out, *torch.autograd.grad(out.exp().sum(), (values, weight))])
    for one, other in zip(*results, strict=True):
        same_bits(one, other)
    assert results[0][2].count_nonzero() == 2


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(("n", "d"), [(0, 3), (4, 0), (1, 1)])
def test_blends_of_nothing(backend: str, hard: bool, n: int, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_range(grad: Tensor, table: Tensor, rows: Tensor, bag: Tensor) -> Tensor:
        assert table.shape[1] > 0  # PyTorch does not check them here
        assert ((rows >= 0) & (rows < table.shape[0])).all()
        return embedding_bag_weight_gradient(grad, table, rows, bag)

    monkeypatch.setattr(gather, "embedding_bag_weight_gradient", in_range)
    values, weight = torch.ones(2, n, d, requires_grad=True), torch.ones(2, 5, 1, requires_grad=True)
    member = torch.full((2, 5, 1), n)
    member[:, 0] = 0
    out = blend(values, weight, member, hard=hard, backend=backend)
    assert out.shape == (2, 5, d)
    assert out.sum() == 2 * d * (n > 0)
    d_values, d_weight = torch.autograd.grad(out.sum(), (values, weight))
    assert d_values.sum() == 2 * d * (n > 0)
    assert d_weight.sum() == 2 * d * (n > 0)


# --- plans that compute their weights in chunks of slots ------------------------------------------


@dataclass(eq=False)
class Given(DensePlan):
    """A plan whose weights are there, and which notes when it is asked for them."""

    weight: Tensor  # (batch, k, n)
    asked: list[tuple[int, int]] = field(default_factory=list)

    def slot_weights(self, start: int, stop: int) -> Tensor:
        self.asked.append((start, stop))
        return self.weight[:, start:stop]

    def scores(self) -> Tensor:
        raise NotImplementedError

    def _batch_size(self) -> int:
        return self.weight.shape[0]


def given() -> Given:
    """Five slots of two rows with six candidates each; a slot is empty, a row invalid."""
    weight = randn(2, 5, 6).relu()
    weight[0, 3] = 0
    weight[1] = NAN
    return Given(6, torch.tensor([[True], [False]]), 5, weight)


@pytest.mark.parametrize(("chunk", "step"), [(1, 1), (12, 1), (35, 2), (36, 3), (59, 4), (60, 5), (10_000, 5)])
def test_chunks_of_slots(chunk: int, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, values = given(), randn(2, 6, 3)
    weight = plan.weight
    monkeypatch.setattr(DensePlan, "CHUNK", chunk)
    same_bits(plan.weights(), weight)
    assert plan.asked == [(start, min(start + step, 5)) for start in range(0, 5, step)]
    torch.testing.assert_close(plan.apply(values), weight @ values, equal_nan=True)
    torch.testing.assert_close(plan.mass(), weight.sum(dim=1), equal_nan=True)
    assert plan.support().tolist() == [(weight[0] > 0).sum(dim=-1).tolist(), [0] * 5]
    shares = weight[0] / weight[0].sum(dim=-1, keepdim=True).clamp(min=1e-300)
    torch.testing.assert_close(plan.entropy()[0], torch.special.entr(shares).sum(dim=-1))
    assert plan.entropy()[0, 3] == 0
    assert plan.entropy()[1].isnan().all()


@pytest.mark.parametrize("step", [1, 3, 5])
def test_chunks_are_computed_again_in_the_backward_pass_if_there_are_several(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DensePlan, "CHUNK", 12 * step)
    chunks = -(-5 // step)
    weight, values = torch.rand(2, 5, 6).requires_grad_(), torch.rand(2, 6, 3).requires_grad_()
    plan = Given(6, torch.tensor([[True], [True]]), 5, weight)
    out = plan.apply(values)
    assert len(plan.asked) == chunks
    gradients = torch.autograd.grad(out.square().sum(), (weight, values))
    assert len(plan.asked) == (1 if chunks == 1 else 2 * chunks)
    expected = torch.autograd.grad((weight @ values).square().sum(), (weight, values))
    torch.testing.assert_close(gradients, expected)
    torch.testing.assert_close(torch.func.grad(lambda x: plan.apply(x).square().sum())(values), expected[1])


@pytest.mark.parametrize("step", [1, 3, 5])
def test_the_way_back_in_chunks_of_slots(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DensePlan, "CHUNK", 12 * step)
    weight, y = randn(2, 5, 6).requires_grad_(), randn(3, 1, 5, 3).requires_grad_()
    out = Given(6, torch.tensor([[True], [True]]), 5, weight).spread(y)
    torch.testing.assert_close(out, weight.mT @ y)
    gradients = torch.autograd.grad(out.exp().sum(), (weight, y))
    torch.testing.assert_close(gradients, torch.autograd.grad((weight.mT @ y).exp().sum(), (weight, y)))
    with torch.no_grad():
        out = Given(6, torch.tensor([[True], [True]]), 5, weight).spread(y.bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), weight.mT @ y, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("what", ["y", "weights"])
def test_the_way_back_through_chunks_notices_changes(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DensePlan, "CHUNK", 12)
    weight, y = randn(2, 5, 6).requires_grad_(), randn(2, 5, 3).requires_grad_()
    used = y * 1
    out = Given(6, torch.tensor([[True], [True]]), 5, weight if what == "y" else weight.detach()).spread(used)
    with torch.no_grad():
        used.fill_(NAN)
    if what == "y":
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
    else:  # y is not needed for its own gradient
        torch.testing.assert_close(torch.autograd.grad(out.sum(), y)[0], weight.sum(-1, keepdim=True).expand(y.shape))


def test_no_rows_at_all() -> None:
    plan = Given(6, torch.ones(0, 1, dtype=torch.bool), 5, torch.ones(0, 5, 6))
    assert plan.weights().shape == (0, 5, 6)
    assert plan.asked == [(0, 5)]


def test_an_invalid_row_has_no_support() -> None:
    scores = torch.tensor([[3.0, 2.0, 1.0, 0.0], [3.0, NAN, 1.0, 0.0]])
    for picked in (knockout.select(scores, 2, 0.1), knockout.methods.iterative(scores, 2)):
        assert picked.support()[0].min() >= 2
        assert picked.support()[1].tolist() == [0, 0]
