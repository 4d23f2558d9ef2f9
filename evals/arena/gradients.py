"""Gradients: whether they are right, how many candidates they reach, and how they depend on the scale of the scores."""

from __future__ import annotations

import math
import statistics
from functools import partial

import torch
from torch import Generator, Tensor

from evals.arena.methods import METHODS, with_fixed_noise
from harness.journal import Rows
from knockout import methods, metrics

SCALES = tuple(10.0**power for power in range(-3, 4))
USABLE = 1e-3  # times the largest gradient in its row: with less, a candidate learns next to nothing
BATCH, D = 16, 8


def agreement(name: str, seed: int, draws: int = 4) -> Rows:
    """Compare the gradient of a function of the value rows with central differences: cosine, and relative distance.

    In float64, with the same noise on both sides. The output of a perturbed top-k is piecewise constant in the scores:
    its differences are wide and of many samples, compared with a gradient of as many. Where all differences are 0, the
    cosine is 0 and the distance None.
    """
    n, k, method = 16, 4, METHODS[name]
    generator = Generator().manual_seed(seed)
    step, select = 1e-5, method.at(method.default)
    if name == "perturbed":
        step, draws = 0.1 * method.default, 1
        select = partial(methods.perturbed, temperature=method.default, samples=100_000)
    cosines, distances = [], []
    for _ in range(draws):
        # Scores so large that the method is neither soft nor hard, and that solvers may not have converged.
        scores = 4.0 * method.default * torch.randn(n, generator=generator, dtype=torch.float64)
        values = torch.randn(n, D, generator=generator, dtype=torch.float64)
        up = torch.randn(k, D, generator=generator, dtype=torch.float64)

        def value(scores: Tensor, values: Tensor = values, up: Tensor = up) -> Tensor:
            return (with_fixed_noise(select)(scores, k).apply(values) * up).sum()

        moving = scores.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(value(moving), moving)
        with torch.no_grad():
            ways = step * torch.eye(n, dtype=torch.float64)
            differences = torch.stack([value(scores + way) - value(scores - way) for way in ways]) / (2 * step)
        length = float(differences.norm())
        if length > 1e-9:
            cosines.append(float(gradient @ differences) / (float(gradient.norm()) * length or 1.0))
            distances.append(float((gradient - differences).norm()) / length)
    return [
        {
            "method": name,
            "cosine": statistics.fmean(cosines) if cosines else 0.0,
            "distance": max(distances) if distances else None,
        }
    ]


def scales(name: str, n: int, k: int, seed: int) -> Rows:
    """Measure mass and gradient with normal scores times 1e-3 to 1e3, at the default temperature."""
    method, rows = METHODS[name], []
    select = method.deterministic(method.default)
    for scale in SCALES:
        generator = Generator().manual_seed(seed)
        scores = scale * torch.randn(BATCH, n, generator=generator)
        values, up = torch.randn(BATCH, n, D, generator=generator), torch.randn(BATCH, k, D, generator=generator)
        moving = scores.clone().requires_grad_()
        selection = select(moving, k)
        (through_rows,) = torch.autograd.grad((selection.apply(values) * up).sum(), moving, retain_graph=True)
        (through_mask,) = torch.autograd.grad((selection.mass() * values[..., 0]).sum(), moving)
        length = through_rows.norm(dim=-1).mean().item()
        rows.append(
            {
                "method": name, "n": n, "k": k, "scale": scale,
                "mass": metrics.topk_mass(selection, scores).mean().item(),
                "rows": usable(through_rows), "mask": usable(through_mask),
                "length": length if math.isfinite(length) else None,
            }
        )  # fmt: skip
    return rows


def usable(gradient: Tensor) -> float:
    """Compute the share of candidates whose gradient is not negligible beside the largest in their row."""
    size = gradient.abs()
    return ((size > 0) & (size >= USABLE * size.amax(dim=-1, keepdim=True))).float().mean().item()


def working_scales(rows: Rows) -> list[float]:
    """List the scales at which a method both chooses and learns: at least half of the mass is on the true top k, and
    more than these get a gradient, through the value rows or through the mask."""
    return [
        row["scale"]
        for row in rows
        if row["mass"] >= 0.5
        and max(row["rows"], row["mask"]) * row["n"] >= 1.5 * row["k"]
        and row["length"] is not None
    ]
