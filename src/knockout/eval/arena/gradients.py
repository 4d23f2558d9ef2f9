"""Gradients: whether they are right, how many candidates they reach, and what the scale of the scores does to them."""

from __future__ import annotations

import math
import statistics
from functools import partial

import torch
from torch import Generator, Tensor

from knockout import methods, metrics
from knockout.eval.arena.contestants import CONTESTANTS, reseeded
from knockout.eval.journal import Rows

SCALES = tuple(10.0**power for power in range(-3, 4))
USABLE = 1e-3  # of the largest: a candidate with less than that learns nothing while that one does
BATCH, D = 16, 8


def agreement(name: str, seed: int, draws: int = 4) -> Rows:
    """The gradient of some function of the rows, beside central differences: cosine, and distance over length.

    In float64, with the same noise on both sides. What a perturbed top-k returns is piecewise constant in the scores:
    there the differences are wide, of many samples, and compared with a gradient from as many. Where all differences
    are 0, so is the cosine, and there is no distance.
    """
    n, k, contestant = 16, 4, CONTESTANTS[name]
    generator = Generator().manual_seed(seed)
    step, select = 1e-5, contestant.at(contestant.default)
    if name == "perturbed":
        step, draws = 0.1 * contestant.default, 1
        select = partial(methods.perturbed, temperature=contestant.default, samples=100_000)
    cosines, distances = [], []
    for _ in range(draws):
        # Of a size at which the method is neither soft nor hard; and larger, where solvers may not have converged.
        scores = 4.0 * contestant.default * torch.randn(n, generator=generator, dtype=torch.float64)
        values = torch.randn(n, D, generator=generator, dtype=torch.float64)
        up = torch.randn(k, D, generator=generator, dtype=torch.float64)

        def value(scores: Tensor, values: Tensor = values, up: Tensor = up) -> Tensor:
            return (reseeded(select)(scores, k).apply(values) * up).sum()

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
    """Normal scores times 1e-3 to 1e3, at one temperature: what is left of fidelity, and of the gradient."""
    select, rows = CONTESTANTS[name].standing(), []
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
    """The share of candidates whose gradient is not negligible beside the largest of their row."""
    size = gradient.abs()
    return ((size > 0) & (size >= USABLE * size.amax(dim=-1, keepdim=True))).float().mean().item()


def working(rows: Rows) -> list[float]:
    """The scales at which a choice is neither arbitrary nor closed: most of the mass is on the true top k, and more
    than these get a gradient, be it through the rows or through the mask."""
    return [
        row["scale"]
        for row in rows
        if row["mass"] >= 0.5
        and max(row["rows"], row["mask"]) * row["n"] >= 1.5 * row["k"]
        and row["length"] is not None
    ]
