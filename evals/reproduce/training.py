"""Planted relevance: does a scorer learn, through each method, which candidates matter?

Every candidate has features and a payload. A hidden direction in the space of features makes k of the n candidates
relevant, and the target is the mean payload of these. A linear scorer is trained, only through the method, to bring the
mean of the k returned payloads close to the target. It is evaluated as it would be used, by a hard top-k: how many of
the relevant candidates it finds (recall), and how far the mean of those it takes is from the target (loss, in units of
the loss of the mean of all candidates).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import knockout
from evals.reproduce.grid import METHODS, hard
from evals.reproduce.pairing import PAIRINGS, select
from harness.journal import Rows
from knockout.boost import Power, Relative
from knockout.ops.reference.tournament import rounds_of

N, FEATURES, PAYLOAD, BATCH = 256, 16, 16, 32

Layer = Callable[[Tensor, Tensor, int], Tensor]  # payloads (batch, n, d), scores (batch, n), k -> (batch, k, d)


def paired(name: str) -> Callable[[int], Layer]:
    """Make layers with the default boost and another pairing, from a seed."""

    def layer(seed: int) -> Layer:
        pairing = PAIRINGS[name](seed)
        return lambda values, scores, k: select(scores, k, Relative(4), pairing).apply(values)

    return layer


# The paper's halving expects scores from 0 to 1: a sigmoid brings them into that range.
LAYERS: dict[str, Layer] = {
    "halving": lambda values, scores, k: knockout.topk(values, scores.sigmoid(), k, Power(20)).values,
    **{name: METHODS[name] for name in ("Relative(4)", "Relative(16)", "iterative", "iterative, peaked")},
    # Twice the sigmoid: a row whose score is 0 passes unchanged.
    "hard, gated": lambda values, scores, k: knockout.methods.gated(scores, k, scale=2.0).apply(values),
}
# These are made for each run from its seed.
SEEDED = {f"pairing: {name}": paired(name) for name in PAIRINGS}


def chain(name: str, k: int) -> int:
    """Count the dependent steps between a score and the output: a softmax per slot, or a pair weight per round."""
    return k if name.startswith("iterative") else 1 if name.startswith("hard") else rounds_of(N, k)


CHECKS = 8  # evaluations in the course of the training


def train(name: str, k: int, rate: float, seed: int, steps: int, device: str = "cpu") -> Rows:
    """Train one scorer with a learning rate; return a row per evaluation."""
    generator = torch.Generator().manual_seed(1000 + seed)
    direction = torch.randn(FEATURES, generator=generator).to(device)
    weight = (torch.randn(FEATURES, generator=generator) / FEATURES**0.5).to(device).requires_grad_()
    layer = LAYERS[name] if name in LAYERS else SEEDED[name](seed)
    optimizer = torch.optim.Adam([weight], lr=rate)

    def draw() -> Batch:
        features = torch.randn(BATCH, N, FEATURES, generator=generator).to(device)
        payloads = torch.randn(BATCH, N, PAYLOAD, generator=generator).to(device)
        return Batch(features, payloads, hard(payloads, features @ direction, k).mean(dim=1))

    test_batches = [draw() for _ in range(4)]
    rows = []
    for step in range(steps + 1):
        if step * CHECKS % steps < CHECKS:
            found = evaluate(weight.detach(), direction, k, test_batches)
            run = {"layer": name, "k": k, "chain": chain(name, k), "rate": rate, "seed": seed}
            rows.append({**run, "step": step, **found})
        batch = draw()
        blended = layer(batch.payloads, batch.features @ weight, k)
        loss = (blended.mean(dim=1) - batch.target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return rows


class Batch(NamedTuple):
    """A batch of problems."""

    features: Tensor  # (batch, n, features)
    payloads: Tensor  # (batch, n, payload)
    target: Tensor  # (batch, payload)


def evaluate(weight: Tensor, direction: Tensor, k: int, test_batches: list[Batch]) -> dict[str, float]:
    """Measure recall and loss of a hard selection by these weights."""
    recall, loss, loss_of_mean = 0.0, 0.0, 0.0
    for features, payloads, target in test_batches:
        relevant = torch.topk(features @ direction, k, dim=-1).indices
        taken = torch.topk(features @ weight, k, dim=-1).indices
        recall += (taken.unsqueeze(-1) == relevant.unsqueeze(-2)).any(dim=-1).float().mean().item()
        loss += (hard(payloads, features @ weight, k).mean(dim=1) - target).square().sum().item()
        loss_of_mean += (payloads.mean(dim=1) - target).square().sum().item()
    return {"recall": recall / len(test_batches), "loss": loss / loss_of_mean}
