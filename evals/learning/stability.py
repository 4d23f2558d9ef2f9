"""Whether gradients blow up: their lengths, for scores of many kinds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from evals.learning.contestants import OURS
from harness.journal import Rows

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda noise: noise,
    **{f"normal x {spread:g}": partial(torch.mul, spread) for spread in (1e-1, 1e-2, 1e-4, 1e-6)},
    "all tied": lambda noise: 0.0 * noise,
    "two values": lambda noise: (noise > 0).to(noise.dtype),
    "bfloat16": lambda noise: noise.to(torch.bfloat16),
    "an outlier of 1000": lambda noise: noise.index_fill(-1, torch.tensor([7]), 1e3),
}


def stability(contestant: str, n: int = 256, k: int = 8, batch: int = 16) -> Rows:
    """Measure the length of a row's gradient, mean and largest, with one of ours, at the end of its schedule."""
    generator, rows = torch.Generator().manual_seed(0), []
    noise, values = torch.randn(batch, n, generator=generator), torch.randn(batch, n, 8, generator=generator)
    for kind, make in SCORES.items():
        scores = make(noise).requires_grad_()
        mean = OURS[contestant](k).at(1.0)(scores, k).apply(values).mean(dim=1)
        (gradient,) = torch.autograd.grad(mean.sum(), scores)
        length = gradient.float().norm(dim=-1)
        rows.append(
            {"contestant": contestant, "field": kind, "mean": length.mean().item(), "largest": length.max().item()}
        )
    return rows
