"""Fidelity: how close a soft selection comes to the hard one, for scores of several distributions.

nCCS compares value rows. Methods that compute a mask return the true rows, scaled, so that their nCCS is 1 and says
nothing. The mass on the true top k compares weights: it is the share of all weight that the true top k get.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from evals.arena.methods import METHODS
from harness.journal import Rows
from knockout import methods, metrics

BATCH, D = 16, 32


def heavy(shape: tuple[int, int], generator: Generator) -> Tensor:
    """Draw from Student's t with two degrees of freedom, which has an infinite variance."""
    scale = torch.empty(shape).exponential_(generator=generator)
    return torch.randn(shape, generator=generator) / scale.clamp(min=1e-6).sqrt()


def near_ties(shape: tuple[int, int], generator: Generator) -> Tensor:
    """Draw normal scores, each twice, with a difference of about a millionth."""
    each = torch.randn(shape[0], shape[1] // 2, generator=generator).repeat(1, 2)
    return each + 1e-6 * torch.randn(each.shape, generator=generator)


def clustered(shape: tuple[int, int], generator: Generator) -> Tensor:
    """Draw scores around eight values per row, with a standard deviation of a hundredth."""
    center = torch.randn(shape[0], 8, generator=generator)
    chosen = torch.randint(8, shape, generator=generator)
    return center.gather(1, chosen) + 0.01 * torch.randn(shape, generator=generator)


DISTRIBUTIONS: dict[str, Callable[[tuple[int, int], Generator], Tensor]] = {
    "uniform": lambda shape, generator: torch.rand(shape, generator=generator),
    "normal": lambda shape, generator: torch.randn(shape, generator=generator),
    "heavy-tailed": heavy,
    "near-ties": near_ties,
    "clustered": clustered,
}


@torch.no_grad()
def measure(distribution: str, n: int, k: int, seed: int) -> Rows:
    """Measure nCCS and mass of every method at each of its temperatures, on the same scores."""
    generator = Generator().manual_seed(seed)
    scores = DISTRIBUTIONS[distribution]((BATCH, n), generator)
    values = torch.rand(BATCH, n, D, generator=generator) * 2 - 1
    true = methods.hard(scores, k).apply(values)
    rows = []
    for name, method in METHODS.items():
        for temperature in sorted({*method.temperatures, method.default}):
            selection = method.deterministic(temperature)(scores, k)
            rows.append(
                {
                    "distribution": distribution, "method": name, "temperature": temperature, "n": n, "k": k,
                    "nccs": metrics.nccs(true, selection.apply(values)).mean().item(),
                    "mass": metrics.topk_mass(selection, scores).mean().item(),
                }
            )  # fmt: skip
    return rows
