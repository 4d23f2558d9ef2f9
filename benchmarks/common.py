"""What several benchmarks share. The only file here that looks inside a Selection of the library."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.testing import assert_close

import knockout
from benchmarks.registry import Row
from harness.timing import Passes, gradients
from knockout import Selection, backends
from knockout.boost import Boost
from knockout.ops.autograd import gather
from knockout.ops.choice import choose
from knockout.plan import SparsePlan

__all__ = [
    "HARD",
    "Size",
    "blend",
    "check_against_reference",
    "check_close",
    "check_operator",
    "draw",
    "in_new_process",
    "pass_rows",
    "soft",
    "sparse",
]

HARD = "hard twin"  # torch.topk + gather
Result = TypeVar("Result")


class Size(NamedTuple):
    """A cell of values (batch, n, d)."""

    batch: int
    n: int
    k: int
    d: int


def draw(size: Size, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Values (batch, n, d) and scores (batch, n), uniform in [0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(size.batch, size.n, size.d, generator=generator)
    return values, torch.rand(size.batch, size.n, generator=generator)


def soft(values: Tensor, scores: Tensor, k: int, boost: Boost) -> Tensor:
    """The blended values of ``knockout.topk``."""
    return knockout.topk(values, scores, k, boost).values


def check_against_reference(values: Tensor, scores: Tensor, k: int, boost: Boost) -> None:
    """Compare ``knockout.topk`` and its gradients with those of the reference backend."""
    check_operator(partial(soft, k=k, boost=boost), values, scores)


def check_operator(operator: Callable[[Tensor, Tensor], Tensor], values: Tensor, scores: Tensor) -> None:
    """Compare a function of values and scores, and its gradients, with what it gives by the reference backend."""

    def run() -> tuple[Tensor, ...]:
        leaves = values.detach().requires_grad_(), scores.detach().requires_grad_()
        result = operator(*leaves).detach()
        return result, *gradients(operator, *leaves, result.cos())

    found = run()
    with backends.force("reference"):
        expected = run()
    for what, one, other in zip(("values", "gradients of values", "gradients of scores"), found, expected, strict=True):
        # A gradient may be a sum of large terms that cancel: small entries are as exact as large ones are.
        atol = 1e-5 * max(1.0, other.abs().max().item())
        check_close(what, one, other, tolerance=1e-4, atol=atol)


def check_close(what: str, found: Tensor, expected: Tensor, tolerance: float, atol: float | None = None) -> None:
    """Raise an AssertionError that says what differs."""
    atol = tolerance if atol is None else atol
    assert_close(found, expected, rtol=tolerance, atol=atol, msg=lambda text: f"{what}: {text}")


def pass_rows(cell: Row, taken: Mapping[str, Passes], base: str = HARD) -> list[Row]:
    """A row per operator: milliseconds, and their ratio to those of ``base``."""
    return [
        {
            **cell, "operator": name,
            "forward, ms": 1e3 * each.forward, "forward, ratio": each.forward / taken[base].forward,
            "with backward, ms": 1e3 * each.both, "with backward, ratio": each.both / taken[base].both,
        }
        for name, each in taken.items()
    ]  # fmt: skip


def blend(values: Tensor, weight: Tensor, member: Tensor) -> Tensor:
    """The weighted gather of the library, by the backend that it chooses."""
    return gather.blend(values, weight, member, backend=choose(values[..., 0]))


def sparse(selection: Selection) -> tuple[Tensor, Tensor]:
    """Members (batch, k, m) int64 of every slot, n for padding, and their weights (batch, k, m)."""
    plan = selection._plan
    assert isinstance(plan, SparsePlan)
    return plan.member.long(), plan.weight


def in_new_process(function: Callable[..., Result], *arguments: Any) -> Result:
    """The result of a call in a process of its own, so that no memory of earlier calls counts."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _start, (torch.get_num_threads(),)) as process:
        return process.submit(function, *arguments).result()


def _start(threads: int) -> None:
    torch.set_num_threads(threads)
