"""Tensors without numbers: no step waits for a number from the device, or makes a tensor on another one.

Meta tensors have shapes and a device, but no numbers: reading a number, or mixing devices, raises. The reference runs
them, as it runs every device that no other backend has kernels for.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import knockout
from knockout.boost import Boost, Relative
from knockout.functional import Order
from tests.cases import BOOSTS, Watch


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Values, scores and a mask."""
    return (
        torch.empty(3, 50, 4, device="meta", requires_grad=True),
        torch.empty(3, 50, device="meta", requires_grad=True),
        torch.empty(3, 50, device="meta", dtype=torch.bool),
    )


# The order of the slots and straight-through do not depend on the boost.
@pytest.mark.parametrize(
    ("boost", "order", "hard"),
    [
        *((boost, "score", False) for boost in BOOSTS),
        *((BOOSTS[0], order, hard) for order, hard in (("score", True), ("position", False), ("position", True))),
    ],
    ids=str,
)
def test_no_step_waits_for_the_device(boost: Boost, order: Order, hard: bool) -> None:
    values, scores, mask = inputs()
    selection = knockout.select(scores, 5, boost, mask=mask, order=order, hard=hard)
    out = selection.apply(values)
    shown = (selection.scores, selection.weights(), selection.mass(), selection.perplexity())
    total = torch.stack([x.sum() for x in (out, *shown)]).sum()
    gradients = torch.autograd.grad(total, (values, scores), create_graph=True)
    torch.autograd.grad(gradients[0].square().sum() + gradients[1].square().sum(), (values, scores))
    assert {x.device.type for x in (out, *shown, *gradients, selection.indices, selection.mask)} == {"meta"}


def test_no_other_method_waits_for_the_device() -> None:
    values, scores, mask = inputs()
    for method in (knockout.methods.hard(scores, 5, mask), knockout.methods.iterative(scores, 5, mask=mask)):
        assert knockout.metrics.nccs(values, method.apply(values)).device.type == "meta"


def test_no_step_waits_for_the_device_with_a_fraction() -> None:
    values, scores, mask = inputs()
    for picked in (
        knockout.select(scores, 0.3, mask=mask),
        knockout.select(scores, 0.3, mask=mask, order="position", hard=True),
        knockout.methods.hard(scores, 0.3, mask),
        knockout.methods.iterative(scores, 0.3, mask=mask),
    ):
        assert picked.apply(values).shape == (3, 15, 4)
        assert picked.indices.is_meta
        torch.autograd.grad(picked.apply(values).sum(), values)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_no_step_waits_for_the_device_with_a_tensor_as_the_c_of_a_boost(device: str) -> None:
    _, scores, _ = inputs()
    out = knockout.select(scores, 5, Relative(torch.tensor(1.0, device=device))).scores
    assert out.is_meta
    torch.autograd.grad(out.sum(), scores)


def test_meta_tensors_do_catch_a_wait() -> None:
    scores = torch.empty(3, device="meta")
    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        scores.sum().item()
    with pytest.raises(RuntimeError, match="device"):
        _ = scores + torch.arange(3)


@pytest.mark.parametrize("order", ["score", "position"])
@pytest.mark.parametrize("hard", [False, True])
def test_no_tensor_is_made_on_another_device(order: Any, hard: bool) -> None:
    values, scores, mask = inputs()
    seen: list[Tensor] = []
    with Watch(seen):
        selections = [
            knockout.select(scores, 5, mask=mask, order=order, hard=hard),
            knockout.methods.hard(scores, 5, mask),
            knockout.methods.iterative(scores, 5, mask=mask),
        ]
        for selection in selections:
            shown = (selection.apply(values), selection.weights(), selection.mass(), selection.perplexity())
            torch.autograd.grad(torch.stack([x.sum() for x in shown]).sum(), (values, scores), allow_unused=True)
    assert {x.device.type for x in seen if x.dim()} == {"meta"}
