"""torch.export: one program for a varying batch and n, with the results of the eager call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import knockout
from knockout.backends import NAMES
from knockout.boost import Relative
from tests.cases import NAMESPACES, randn, same_bits, separated
from tests.contract.cases import CASES, OTHERS, Case


class Pool(torch.nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def forward(self, values: Tensor, scores: Tensor, mask: Tensor | None) -> Any:
        return self.case.topk(values, scores, mask)


def inputs(batch: int, n: int) -> tuple[Tensor, Tensor]:
    return randn(batch, n, 4, dtype=torch.float32), separated(batch, n).float()


# Tracing the reference takes seconds: most of that are slow tests.
TRACED = [
    pytest.param(
        backend, name, marks=pytest.mark.slow if backend == "reference" and name not in ("relative", "hard") else ()
    )
    for backend in NAMES
    for name in ("relative", "number", "softmax", "power", "hard", "position")
]


@pytest.mark.parametrize(("backend", "name"), TRACED, indirect=["backend"])
def test_dynamic_batch_and_n(name: str) -> None:
    batch, n = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("n", min=11, max=20)
    dynamic = {"values": {0: batch, 1: n}, "scores": {0: batch, 1: n}, "mask": None}
    pool = Pool(CASES[name])
    program = torch.export.export(pool, (*inputs(3, 15), None), dynamic_shapes=dynamic).module()
    for size in ((2, 11), (5, 20)):
        for one, other in zip(program(*inputs(*size), None), pool(*inputs(*size), None), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["mask", "fraction"])
def test_dynamic_batch_with_a_mask(name: str) -> None:
    pool = Pool(CASES[name])
    arguments = (*inputs(4, 12), torch.arange(12) < torch.tensor([[12], [7], [1], [0]]))
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(pool, arguments, dynamic_shapes=({0: batch},) * 3).module()
    for rows in (2, 4):
        few = tuple(x[:rows] for x in arguments)
        for one, other in zip(program(*few), pool(*few), strict=True):
            same_bits(one, other)


@pytest.mark.parametrize("backend", OTHERS, indirect=True)  # the reference cannot: see docs/semantics.md
def test_a_fraction_with_dynamic_n() -> None:
    pool, n = Pool(CASES["fraction"]), torch.export.Dim("n", min=11, max=100)
    arguments = (*inputs(4, 12), torch.arange(12) < torch.tensor([[12], [7], [1], [0]]))
    program = torch.export.export(pool, arguments, dynamic_shapes=({1: n},) * 3).module()
    for size in (11, 100):
        values, scores = inputs(4, size)
        for one, other in zip(program(values, scores, scores > 0), pool(values, scores, scores > 0), strict=True):
            same_bits(one, other)


@pytest.mark.parametrize("backend", OTHERS, indirect=True)
def test_counts_with_dynamic_batch_and_n() -> None:
    pool, batch, n = (
        Pool(CASES["counts"]),
        torch.export.Dim("batch", min=2, max=64),
        torch.export.Dim("n", min=17, max=32),
    )
    arguments = (*inputs(4, 20), torch.rand(4, 20) > 0.3)
    program = torch.export.export(pool, arguments, dynamic_shapes=({0: batch, 1: n},) * 3).module()
    for size in ((2, 17), (5, 32)):
        values, scores = inputs(*size)
        for one, other in zip(program(values, scores, scores > 0), pool(values, scores, scores > 0), strict=True):
            same_bits(one, other)


@pytest.mark.parametrize("backend", OTHERS, indirect=True)
def test_the_operators_are_in_the_program(backend: str) -> None:
    pool = Pool(CASES["relative"])
    program = torch.export.export(pool, (*inputs(3, 30), None))
    for name in ("tournament", "blend"):
        assert f"torch.ops.{NAMESPACES[backend]}.{name}.default" in program.graph_module.code
    for one, other in zip(program.module()(*inputs(3, 30), None), pool(*inputs(3, 30), None), strict=True):
        same_bits(one, other)


def test_the_c_of_a_boost_stays_a_buffer() -> None:
    class Sharpened(torch.nn.Module):
        c: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("c", torch.tensor(1.0))

        def forward(self, values: Tensor, scores: Tensor) -> Any:
            return knockout.topk(values, scores, 5, Relative(self.c))

    program = torch.export.export(Sharpened(), inputs(3, 30)).module()
    for number in (0.5, 3.0):
        program.get_buffer("c").fill_(number)
        for one, other in zip(program(*inputs(3, 30)), knockout.topk(*inputs(3, 30), 5, number), strict=True):
            same_bits(one, other)
