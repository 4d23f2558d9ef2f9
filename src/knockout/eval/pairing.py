"""Who meets whom: the paper's sorted fold, best against worst, beside two other ways. An ablation."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import knockout
from knockout.boost import Boost, Power, Relative
from knockout.candidates import candidates
from knockout.eval.grid import batches
from knockout.eval.rounds import full_rounds
from knockout.ops.reference.tournament import Pairing, tournament
from knockout.quota import Quota
from knockout.selection import Selection

BOOSTS: list[Boost] = [Power(20), Relative(4)]


def adjacent(size: int) -> Tensor:
    """First against second, third against fourth."""
    return torch.cat([torch.arange(0, size, 2), torch.arange(1, size, 2).flip(0)])


def drawn(seed: int) -> Pairing:
    """Pairs drawn by lot, anew in every round."""
    generator = torch.Generator().manual_seed(seed)

    def pairing(size: int) -> Tensor:
        pairs = torch.randperm(size, generator=generator).reshape(-1, 2)
        return torch.cat([pairs.amin(dim=-1), pairs.amax(dim=-1).flip(0)])

    return pairing


PAIRINGS: dict[str, Callable[[int], Pairing | None]] = {  # by seed
    "fold": lambda _: None,
    "adjacent": lambda _: adjacent,
    "random": drawn,
}


def select(scores: Tensor, k: int, boost: Boost, pairing: Pairing | None) -> Selection:
    """``knockout.select``, by the reference, with another pairing; n must be k times a power of two."""
    full_rounds(scores.shape[-1], k)
    result = tournament(candidates(scores, None), Quota(k), boost, pairing=pairing)
    return Selection(result.bracket, result.leader, result.filled, scores.dtype)


@torch.inference_mode()
def quality(n: int, k: int, count: int, seed: int, device: str = "cpu") -> list[dict[str, Any]]:
    """nCCS of every pairing in one cell, a row a pairing and boost."""
    rows = []
    for boost in BOOSTS:
        for name, pairing in PAIRINGS.items():
            found, made = [], pairing(seed)
            for batch in batches(n, k, count, seed):
                values, scores = (each.to(device) for each in batch)
                true = knockout.methods.hard(scores, k).apply(values)
                blended = select(scores, k, boost, made).apply(values)
                found.append(knockout.metrics.nccs(true, blended).mean().item())
            rows.append(
                {
                    "pairing": name,
                    "boost": str(boost),
                    "n": n,
                    "k": k,
                    "nccs": statistics.fmean(found),
                    "batches": count,
                }
            )
    return rows
