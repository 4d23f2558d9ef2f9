"""Whether a device gives the results of the reference backend on the CPU, in calls of many kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import knockout
from knockout import backends
from knockout.boost import Fixed, Power
from knockout.cli.habits import CommandError
from knockout.cli.timing import CPU, gradients


class Cell(NamedTuple):
    """Sizes of one measurement."""

    batch: int
    n: int
    k: int
    d: int


SMALL = Cell(2, 300, 7, 8)


class Case(NamedTuple):
    """A call of ``knockout.topk`` with these settings."""

    settings: Mapping[str, Any]
    dtype: torch.dtype = torch.float32
    masked: bool = False
    cell: Cell = SMALL
    fraction: float | None = None  # instead of the k of the cell


CASES = {
    "default": Case({}),
    "boost 1": Case({"boost": 1.0}),
    "boost 4": Case({"boost": 4.0}),
    "boost 16": Case({"boost": 16.0}),
    "Fixed": Case({"boost": Fixed(3.0)}),
    "Power": Case({"boost": Power(2.0)}),
    "mask": Case({}, masked=True),
    "fraction": Case({}, masked=True, fraction=0.1),
    "by position": Case({"order": "position"}),
    "hard": Case({"hard": True}),
    "bfloat16": Case({}, dtype=torch.bfloat16),
    "float64": Case({}, dtype=torch.float64),
}
# These would take minutes in the interpreter of Triton.
LARGE = {"long rows": Case({}, cell=Cell(2, 20_000, 64, 8)), "longest rows": Case({}, cell=Cell(1, 300_000, 100, 4))}


def cases_for(place: torch.device) -> dict[str, Case]:
    """The cases to check a device with: on the CPU small ones, on Apple's GPUs those without float64."""
    if place.type == "mps":
        return {name: case for name, case in CASES.items() if case.dtype != torch.float64}
    return CASES if place.type == "cpu" else CASES | LARGE


def check(place: torch.device, operator: Callable[..., Tensor]) -> list[str]:
    """Compare results and gradients on a device with those of the reference backend on the CPU.

    Returns the names of the cases in which indices, weights or scores differ in some bits. Raises CommandError where
    results differ by more than rounding. ``operator`` computes the values of ``knockout.topk``.
    """
    rounded = []
    for name, case in cases_for(place).items():
        found = _outcome(case, place, operator)
        with backends.force("reference"):
            expected = _outcome(case, CPU, operator)
        tolerance = 5e-2 if case.dtype == torch.bfloat16 else 1e-4
        for what, result in found.items():
            other = expected[what]
            close = partial(torch.allclose, rtol=tolerance, atol=tolerance * max(1.0, other.abs().max().item()) / 10)
            if not close(result.cpu().double(), other.double()):
                raise CommandError(
                    f"on {place} the backend {backends.chosen_for(place)!r} is wrong: its {what} differ from those of "
                    f"the reference backend in the case {name!r}; no times are reported"
                )
        if not all(torch.equal(found[what].cpu(), expected[what]) for what in ("indices", "weights", "scores")):
            rounded.append(name)
    return rounded


def _outcome(case: Case, place: torch.device, operator: Callable[..., Tensor]) -> dict[str, Tensor]:
    """All results of a case by name, and the gradients of the values."""
    values, scores = (each.to(case.dtype).requires_grad_() for each in inputs(place, case.cell))
    mask = scores.detach() < 1.0 if case.masked else None
    settings = {**case.settings, "mask": mask}
    k = case.fraction or case.cell.k
    use = partial(operator, k=k, **settings)
    picked = knockout.select(scores.detach(), k, **settings)
    result = use(values, scores).detach()
    to_values, to_scores = gradients(use, values, scores, torch.ones_like(result))
    return {
        "indices": picked.indices, "weights": picked.weights(), "scores": picked.scores, "values": result,
        "gradients of values": to_values, "gradients of scores": to_scores,
    }  # fmt: skip


def inputs(place: torch.device, cell: Cell) -> tuple[Tensor, Tensor]:
    """Values and scores, the same on every device."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(cell.batch, cell.n, cell.d, generator=generator)
    return values.to(place), torch.randn(cell.batch, cell.n, generator=generator).to(place)
