"""Fidelity: how close a soft selection comes to the hard one, over scores of many kinds.

nCCS compares rows; a method that gives a mask passes on the true rows, scaled, so it is 1 for all of these, and says
nothing. The mass on the true top k compares weights: of what a method gives away, how much it gives to the true top k.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from knockout import methods, metrics
from knockout.eval.arena.contestants import CONTESTANTS
from knockout.eval.journal import Rows

BATCH, D = 16, 32


def heavy(shape: tuple[int, int], generator: Generator) -> Tensor:
    """Student's t with two degrees of freedom: its variance is infinite."""
    scale = torch.empty(shape).exponential_(generator=generator)
    return torch.randn(shape, generator=generator) / scale.clamp(min=1e-6).sqrt()


def near_ties(shape: tuple[int, int], generator: Generator) -> Tensor:
    """Normal scores, each of them twice but for a millionth."""
    each = torch.randn(shape[0], shape[1] // 2, generator=generator).repeat(1, 2)
    return each + 1e-6 * torch.randn(each.shape, generator=generator)


def clustered(shape: tuple[int, int], generator: Generator) -> Tensor:
    """Eight values, with a deviation of a hundredth around each."""
    centre = torch.randn(shape[0], 8, generator=generator)
    chosen = torch.randint(8, shape, generator=generator)
    return centre.gather(1, chosen) + 0.01 * torch.randn(shape, generator=generator)


DISTRIBUTIONS: dict[str, Callable[[tuple[int, int], Generator], Tensor]] = {
    "uniform": lambda shape, generator: torch.rand(shape, generator=generator),
    "normal": lambda shape, generator: torch.randn(shape, generator=generator),
    "heavy-tailed": heavy,
    "near-ties": near_ties,
    "clustered": clustered,
}


@torch.no_grad()
def measure(distribution: str, n: int, k: int, seed: int) -> Rows:
    """nCCS and mass of every method at each of its temperatures, on the same scores."""
    generator = Generator().manual_seed(seed)
    scores = DISTRIBUTIONS[distribution]((BATCH, n), generator)
    values = torch.rand(BATCH, n, D, generator=generator) * 2 - 1
    true = methods.hard(scores, k).apply(values)
    rows = []
    for name, contestant in CONTESTANTS.items():
        for temperature in sorted({*contestant.temperatures, contestant.default}):
            selection = contestant._replace(default=temperature).standing()(scores, k)
            rows.append(
                {
                    "distribution": distribution, "method": name, "temperature": temperature, "n": n, "k": k,
                    "nccs": metrics.nccs(true, selection.apply(values)).mean().item(),
                    "mass": metrics.topk_mass(selection, scores).mean().item(),
                }
            )  # fmt: skip
    return rows
