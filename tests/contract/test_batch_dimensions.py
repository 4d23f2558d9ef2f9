"""Batch dimensions that fit in two ways, and values with more than a vector per candidate: never silently wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import knockout
from knockout import methods
from knockout.nn import TokenPool, TopK
from knockout.shapes import check_broadcast
from tests.cases import randn, same_bits


def calls(values: Tensor, scores: Tensor) -> list[Callable[[], Tensor]]:
    """Every way to blend these values by these scores."""
    return [
        lambda: knockout.topk(values, scores, 3).values,
        lambda: knockout.topk(values, scores, 3, hard=True).values,
        lambda: knockout.select(scores, 3) @ values,
        lambda: TopK(3)(values, scores).values,
        lambda: methods.softsort(scores, 3).apply(values),
        lambda: methods.hard(scores, 3).apply(values),
    ]


def test_values_of_the_first_batch_dimension_are_not_taken_for_those_of_the_last() -> None:
    scores, values = randn(4, 4, 10), randn(4, 10, 2)
    for call in calls(values, scores):
        with pytest.raises(
            ValueError, match=r"in one way.*Pass values\.unsqueeze\(-3\) for the first, values\.uns"
        ) as e:
            call()
        assert "(4,), must broadcast with those of scores, (4, 4)" in str(e.value)
    for_first = knockout.topk(values.unsqueeze(-3), scores, 3).values
    for_last = knockout.topk(values.unsqueeze(0), scores, 3).values
    for row in range(4):
        same_bits(for_first[row], knockout.topk(values[row], scores[row], 3).values)
        same_bits(for_last[:, row], knockout.topk(values[row], scores[:, row], 3).values)


@pytest.mark.parametrize(
    ("values", "scores", "words"),
    [
        ((2, 10, 2), (2, 4, 10), r"\(2, 4\); got \(2,\)\. Pass values\.unsqueeze\(-3\)$"),
        ((2, 10, 2), (2, 4, 5, 10), r"got \(2,\)\. Pass values\.unsqueeze\(-3\)\.unsqueeze\(-3\)$"),
        ((2, 3, 10, 2), (2, 3, 4, 10), r"got \(2, 3\)\. Pass values\.unsqueeze\(-3\)$"),
        ((2, 1, 10, 2), (2, 2, 4, 10), r"in one way.*Pass values\.unsqueeze\(-3\) for the first"),
        ((2, 1, 10, 2), (2, 1, 4, 10), r"in one way.*Pass values\.unsqueeze\(-3\) for the first"),
        ((3, 3, 10, 2), (3, 10), r"in one way.*Pass scores\.unsqueeze\(-2\) for the first, scores\.unsqueeze\(0\)"),
        ((3, 1, 10, 2), (3, 10), r"in one way.*Pass scores\.unsqueeze\(-2\).*size 1: values\.flatten\(0, -3\)"),
        ((3, 4, 10, 2), (3, 10), r"got \(3, 4\)\. Pass scores\.unsqueeze\(-2\)$"),
        ((3, 10, 2), (4, 10), r"broadcast with those of scores, \(4,\); got \(3,\)$"),
    ],
)
def test_what_to_pass_instead(values: tuple[int, ...], scores: tuple[int, ...], words: str) -> None:
    for call in calls(randn(*values), randn(*scores)):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize(
    ("values", "scores"),
    [((10, 2), (4, 4, 10)), ((1, 10, 2), (1, 4, 10)), ((1, 4, 10, 2), (4, 4, 10)), ((4, 1, 10, 2), (4, 4, 10)),
     ((3, 10, 2), (4, 3, 10)), ((1, 1, 10, 2), (1, 1, 5, 10)), ((4, 4, 10, 2), (1, 10)), ((10, 10, 2), (10,)),
     ((5, 10, 10, 2), (1, 10)), ((3, 10, 10, 2), (10, 10)), ((0, 10, 2), (10,))],
)  # fmt: skip
def test_what_fits_in_one_way(values: tuple[int, ...], scores: tuple[int, ...]) -> None:
    batch = torch.broadcast_shapes(values[:-2], scores[:-1])
    for call in calls(randn(*values), randn(*scores)):
        assert call().shape == (*batch, 3, 2)


def test_masks_fit_in_one_way_too() -> None:
    scores, mask = randn(4, 4, 10), randn(4, 10) > -1
    with pytest.raises(ValueError, match=r"of mask, \(4,\), must .* in one way.*mask\.unsqueeze\(-2\) for the first"):
        knockout.select(scores, 3, mask=mask)
    with pytest.raises(ValueError, match=r"\(2, 4\); got \(2,\)\. Pass mask\.unsqueeze\(-2\)$"):
        methods.hard(scores[:2], 3, mask=mask[:2])
    with pytest.raises(ValueError, match=r"or drop the dimensions of size 1: mask\.flatten\(0, -2\)$"):
        knockout.select(scores[0], 3, mask=mask[:, None, None])  # as attention takes it
    with pytest.raises(ValueError, match=r"of mask, \(4,\), must .* of x, \(4, 4\), in one way"):
        TokenPool(2, 3)(randn(4, 4, 10, 2, dtype=torch.float32), mask)
    selection = knockout.select(scores, 3)
    with pytest.raises(ValueError, match=r"of scores, \(4,\), must .* of the selection, \(4, 4\), in one way"):
        knockout.metrics.topk_mass(selection, scores[0])


sizes = st.lists(st.integers(1, 3), max_size=4)


@given(sizes, sizes)
@settings(max_examples=40, deadline=None)
def test_only_what_fits_in_two_ways_is_an_error(few: list[int], many: list[int]) -> None:
    few, many = sorted([few, many], key=len)
    first = [*few, *[1] * (len(many) - len(few))]  # as if the missing dimensions were the last ones
    two = first != [1] * (len(many) - len(few)) + few and all(a in (1, b) for a, b in zip(first, many, strict=True))
    try:
        torch.broadcast_shapes(tuple(few), tuple(many))
    except RuntimeError:
        two = True
    for one, other in ((few, many), (many, few)):
        if two:
            with pytest.raises(ValueError, match="batch dimensions of mask"):
                check_broadcast(one, "mask", other)
        else:
            check_broadcast(one, "mask", other)


def test_more_than_a_vector_per_candidate() -> None:
    scores, images = randn(4, 10), randn(4, 10, 3, 8, 8)
    for call in calls(images, scores):
        words = r"pass values\.flatten\(2\), and unflatten the result: \.unflatten\(-1, \(3, 8, 8\)\)$"
        with pytest.raises(ValueError, match=words):
            call()
    passed = (knockout.select(scores, 3) @ images.flatten(2)).unflatten(-1, (3, 8, 8))
    expected = torch.einsum("bkn,bnchw->bkchw", knockout.select(scores, 3).weights(), images)
    torch.testing.assert_close(passed, expected)


@pytest.mark.parametrize(
    ("values", "scores"), [((1, 10, 3, 10, 8), (1, 10)), ((10, 3, 10, 8), (10,)), ((1, 10, 10, 2), (1, 10))]
)
def test_more_than_a_vector_is_not_taken_for_more_batch_dimensions(values: Any, scores: Any) -> None:
    flat = len(scores)
    for call in calls(randn(*values), randn(*scores)):
        with pytest.raises(ValueError, match=rf"values\.flatten\({flat}\).*expand the scores"):
            call()
    expanded = randn(*scores).expand(values[:-1])
    assert knockout.topk(randn(*values), expanded, 3).values.shape == (*values[:-2], 3, values[-1])
