"""Gradients: the true derivatives with the pairing held fixed, through values, scores, and what a selection shows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck

import knockout
from knockout.boost import Boost, Fixed, Power, Relative
from knockout.ops.autograd import gather
from tests.cases import BOOSTS, randn, separated

SHAPES = [(1, 1), (4, 4), (5, 3), (12, 1), (17, 4)]


def inputs(n: int) -> tuple[Tensor, Tensor]:
    d = 3 if n < 12 else 1  # fewer numbers to differentiate by in long rows
    return randn(2, n, d).requires_grad_(), separated(2, n, seed=n).requires_grad_()


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_gradcheck_through_values_and_scores(n: int, k: int, boost: Boost) -> None:
    def operator(values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        return knockout.topk(values, scores, k, boost)[:2]

    assert gradcheck(operator, inputs(n))


@pytest.mark.parametrize("boost", [Relative(1), Fixed(2, alpha=1)], ids=str)
def test_gradcheck_with_mask_position_and_broadcast_values(boost: Boost) -> None:
    mask = torch.rand(2, 17, generator=torch.Generator().manual_seed(1)) > 0.3
    values, scores = randn(17, 3).requires_grad_(), separated(2, 17).requires_grad_()

    def operator(values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        return knockout.topk(values, scores, 4, boost, mask=mask, order="position")[:2]

    assert gradcheck(operator, (values, scores))


@pytest.mark.parametrize("view", ["weights", "mass", "perplexity", "scores"])
def test_gradcheck_through_what_a_selection_shows(view: str, backend: str) -> None:
    # Two rounds; of Triton's interpreter one row, for each number that is shown is differentiated by itself.
    batch, n, k = (1, 7, 2) if backend == "triton" else (2, 10, 3)

    def show(scores: Tensor) -> Tensor:
        selection = knockout.select(scores, k, Relative(0.7, alpha=1))
        return selection.scores if view == "scores" else getattr(selection, view)()

    assert gradcheck(show, (separated(batch, n).requires_grad_(),))


def test_the_mean_gap_is_differentiated() -> None:
    # Two pairs far above the unit: every score moves the scale, and with it the share of the other pair.
    scores = torch.tensor([9.0, 6.0, 4.0, 0.0], dtype=torch.float64, requires_grad=True)
    share = knockout.select(scores, 2, Relative(1, unit=1e-3)).weights()[1, 1]
    (gradient,) = torch.autograd.grad(share, scores)
    assert (gradient != 0).all()
    assert gradient.sum().abs() < 1e-12  # shifting all scores changes nothing
    assert (gradient * scores).sum().abs() < 1e-12  # neither does scaling them


def test_a_decided_loser_gets_nothing_forward_or_backward() -> None:
    scores = torch.tensor([9.0, 5.0, 4.9, 0.0], requires_grad=True)
    values = torch.randn(4, 2, requires_grad=True)
    out = knockout.topk(values, scores, 2, Fixed(4, alpha=1.5))
    out.values.square().sum().backward()
    assert values.grad is not None
    assert scores.grad is not None
    assert values.grad[3].tolist() == [0.0, 0.0]
    assert (scores.grad[[0, 3]] == 0).all()
    assert (scores.grad[[1, 2]] != 0).all()


def test_gradients_stay_bounded_at_nearly_constant_scores() -> None:
    # Dividing by the bare mean gap would blow them up by 1 / gap.
    for spread in (1e-3, 1e-6, 0.0):
        scores = (randn(8, 256, dtype=torch.float32) * spread).requires_grad_()
        out = knockout.topk(randn(8, 256, 16, dtype=torch.float32), scores, 8)
        (gradient,) = torch.autograd.grad(out.values.square().sum(), scores)
        assert gradient.isfinite().all()
        assert gradient.norm() < 1e3


def test_without_a_round_scores_still_have_a_gradient_of_zero() -> None:
    scores = torch.randn(3, requires_grad=True)
    knockout.topk(torch.randn(3, 2), scores, 3).values.sum().backward()
    assert scores.grad is not None
    assert not scores.grad.any()


def test_learning_moves_weight_to_what_helps() -> None:
    # Three of 32 candidates carry the answer. All scores are equal at first: only gradients can tell them apart.
    torch.manual_seed(0)
    values = torch.nn.functional.pad(torch.randn(32, 4) * 0.1, (0, 1))
    values[[3, 11, 26], 4] = 1.0
    scores = torch.zeros(32, requires_grad=True)
    optimiser = torch.optim.Adam([scores], lr=0.05)
    for _ in range(150):
        loss = -knockout.topk(values, scores, 3, 1.0).values[..., 4].sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert sorted(torch.topk(scores, 3).indices.tolist()) == [3, 11, 26]


def test_gradients_that_are_not_required_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a gradient that is not required")

    values, scores = randn(10, 2).requires_grad_(), separated(10).requires_grad_()
    with monkeypatch.context() as patched:
        patched.setattr(gather, "match", fail)
        out = knockout.topk(values, scores.detach(), 2, 1.0).values
        assert torch.autograd.grad(out.sum(), values)[0].any()
    with monkeypatch.context() as patched:
        patched.setattr(gather, "spread", fail)
        out = knockout.topk(values.detach(), scores, 2, 1.0).values
        assert torch.autograd.grad(out.square().sum(), scores)[0].any()


def test_a_gradient_of_nan_reaches_its_own_members_only() -> None:
    scores, values = separated(2, 8), randn(2, 8, 2).requires_grad_()
    mask = torch.arange(8) < 6
    out = knockout.topk(values, scores, 2, mask=mask).values
    up = torch.ones_like(out)
    up[0, 0] = float("nan")
    (gradient,) = torch.autograd.grad(out, values, up)
    assert (gradient[:, 6:] == 0).all()
    assert gradient[1].isfinite().all()
    assert gradient[0].isnan().any()


@pytest.mark.parametrize(
    ("boost", "scores"),
    [
        (Relative(4), [1.0, 0.50003]),
        (Fixed(100), [0.18, 0.0]),
        (Power(20), [4.0, 3.99996]),
        (Fixed(1, alpha=2), [2.0, 1.0]),
    ],
    ids=str,
)
def test_a_share_that_rounds_to_one_is_decided_for_both_sides(boost: Boost, scores: list[float]) -> None:
    # The loser's part of the gradient is gone with its weight; the winner's must go too, or what is left is wrong.
    for offset in (0.0, 1e4):
        given = torch.tensor(scores, requires_grad=True)
        values = torch.tensor([[103.0], [107.0]]) + offset
        selection = knockout.select(given, 1, boost)
        assert selection.weights().tolist() == [[1.0, 0.0]]
        for out in (selection.apply(values), selection.weights() @ values):
            assert torch.autograd.grad(out.sum(), given, retain_graph=True)[0].tolist() == [0.0, 0.0]


def test_forward_mode_is_not_supported() -> None:
    scores, values = separated(9), randn(9, 2)
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(lambda s: knockout.topk(values, s, 2, 1.0).values, (scores,), (scores,))


def test_forward_mode_raises_instead_of_losing_tangents() -> None:
    scores, values = separated(8), randn(8, 2)
    with forward_ad.dual_level():
        for dual_values, dual_scores in (
            (values, forward_ad.make_dual(scores, torch.ones(8, dtype=torch.float64))),
            (forward_ad.make_dual(values, torch.ones(8, 2, dtype=torch.float64)), scores),
        ):
            with pytest.raises((RuntimeError, NotImplementedError), match=r"jvp|forward"):
                knockout.topk(dual_values, dual_scores, 3, boost=0.5)
