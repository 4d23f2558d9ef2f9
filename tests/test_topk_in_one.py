"""knockout.topk as one operator forward and one backward: what ``select`` and ``apply`` give, to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import knockout
from knockout.backends import force
from knockout.boost import Adaptive, Relative
from tests.cases import RecordOperators, randn, same_bits, separated, threads
from tests.contract.cases import BATCHES, CASES, Case, drawn_cases, run_topk


@pytest.fixture(autouse=True)
def _cpu() -> Iterator[None]:
    with force("cpu"):
        yield


def in_two_steps(values: Tensor, scores: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, ...]:
    selection = knockout.select(scores, *rest, **options)
    return selection.apply(values), selection.scores, selection.indices, selection.mask


def run_in_two_steps(case: Case) -> tuple[Tensor, ...]:
    """What ``run_topk`` gives."""
    scores, values, mask, gradients = case.inputs()
    scores, values = scores.requires_grad_(), values.requires_grad_()
    out = in_two_steps(values, scores, **case.options(scores, mask))
    typed = [each.to(x.dtype) for each, x in zip(gradients, out[:2], strict=False)]
    return *(each.detach() for each in out), *torch.autograd.grad(out[:2], (scores, values), typed)


def agree(case: Case) -> None:
    for one, other in zip(run_topk(case), run_in_two_steps(case), strict=True):
        same_bits(one, other)


def called(function: Callable[[], object]) -> list[str]:
    """The names of our operators that a function calls."""
    with RecordOperators() as record:
        function()
    return [str(name).split(".")[1] for name, _, _ in record.calls]


@pytest.mark.parametrize("name", CASES)
def test_the_cases_of_the_contract(name: str) -> None:
    agree(CASES[name])


@settings(max_examples=150)
@given(drawn_cases(st.integers(1, 40) | st.integers(1, 3000)))
def test_drawn_cases(case: Case) -> None:
    # Half of them so that one operator takes them: a row of values and of the mask for each row of scores.
    agree(case._replace(batches=BATCHES[0], hard=False) if case.seed % 4 else case)


TABLES: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda values: values,
    "rows apart": lambda values: values.repeat_interleave(2, dim=-2)[..., ::2, :],
    "columns apart": lambda values: values.repeat_interleave(2, dim=-1)[..., ::2],
    "the same row": lambda values: values[..., :1, :].expand_as(values),
    "not aligned": lambda values: torch.cat([values.new_zeros(1), values.flatten()])[1:].view_as(values),
    "half": lambda values: values.half(),
    "without columns": lambda values: values[..., :0],
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("n", "d"), [(700, 47), (3000, 101)])  # for a first-level cache, and for a second-level one
def test_tables_that_are_read_ahead(n: int, d: int, table: str) -> None:
    values, scores = TABLES[table](randn(5, n, d)), randn(5, n)
    scores[2] = torch.nan  # the row after it cannot know what to expect
    for boost in (Relative(0.5), Relative(16)):
        for one, other in zip(
            knockout.topk(values, scores, 8, boost), in_two_steps(values, scores, 8, boost), strict=True
        ):
            same_bits(one, other)


@pytest.mark.parametrize("boost", [Relative(0.5), Relative(4), Adaptive(2, 1.5)], ids=str)
def test_the_number_of_threads_changes_no_bit(boost: Relative | Adaptive) -> None:
    for case in (
        Case(3000, 17, boost, batches=((33,),) * 3, kept=0.9),
        Case(150_000, 500, boost, batches=((1,),) * 3),
        Case(64, 8, boost, batches=((2000,),) * 3, d=40),
    ):
        with threads(1):
            expected = run_topk(case)
        for count in (2, 7):
            with threads(count):
                for one, other in zip(run_topk(case), expected, strict=True):
                    same_bits(one, other)


def test_it_is_one_operator() -> None:
    values, scores, mask = CASES["mask"].topk_inputs()

    def train() -> None:
        knockout.topk(values, scores, 5, mask=mask).values.sum().backward()

    assert called(train) == ["topk", "topk_backward"]
    assert called(lambda: knockout.topk(values.detach(), scores.detach(), 5)) == ["topk"]
    assert called(lambda: knockout.nn.TopK(5, 1.0)(values, scores).values.sum().backward()) == ["topk", "topk_backward"]
    assert called(lambda: knockout.topk(values, scores, 5, hard=True)) == ["tournament", "blend"]
    assert called(lambda: knockout.topk(values[0], scores, 5)) == ["tournament", "blend"]


@pytest.mark.parametrize("wanted", ["values", "scores"])
@pytest.mark.parametrize("through", ["values", "scores", "both"])
def test_the_gradient_of_one_alone(wanted: str, through: str) -> None:
    values, scores = randn(3, 40, 5), separated(3, 40)
    leaf = (values if wanted == "values" else scores).requires_grad_()
    found = []
    for call in (knockout.topk, in_two_steps):
        out = call(values, scores, 6, 1.0)
        parts = {"values": out[:1], "scores": out[1:2], "both": out[:2]}[through]
        if not any(each.requires_grad for each in parts):
            assert (wanted, through) == ("values", "scores")
            return
        loss = sum(each.sin().sum() for each in parts)
        assert isinstance(loss, Tensor)
        found.append(torch.autograd.grad(loss, leaf)[0])
    same_bits(*found)


def test_second_derivatives() -> None:
    values, scores = randn(2, 20, 3).requires_grad_(), separated(2, 20).requires_grad_()
    found = []
    for call in (knockout.topk, in_two_steps):
        out = call(values, scores, 3, Relative(0.7))
        first = torch.autograd.grad(out[0].sin().sum() + out[1].cos().sum(), (values, scores), create_graph=True)
        found.append(torch.autograd.grad(first[0].sin().sum() + first[1].cos().sum(), (values, scores)))
    for one, other in zip(*found, strict=True):
        same_bits(one, other)


def test_values_may_change_in_place_unless_a_gradient_needs_them() -> None:
    values, scores = randn(2, 20, 3), separated(2, 20)
    changed = values.clone().requires_grad_()
    for needs in (False, True):
        copy = changed * 1
        loss = knockout.topk(copy, scores.clone().requires_grad_(needs), 3, 1.0).values.sum()
        with torch.no_grad():
            copy.zero_()
        if needs:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
        else:
            loss.backward()


def test_a_second_backward_pass_needs_what_was_freed() -> None:
    values, scores = randn(2, 20, 3).requires_grad_(), separated(2, 20).requires_grad_()
    loss = knockout.topk(values, scores, 3, 1.0).values.sum()
    loss.backward(retain_graph=True)
    first = scores.grad
    assert first is not None
    same_bits(torch.autograd.grad(loss, scores)[0], first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
