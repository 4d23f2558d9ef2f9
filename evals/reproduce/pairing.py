"""An ablation of the pairing: the paper's fold of the sorted field, best with worst, against two other pairings."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

import knockout
from evals.reproduce.grid import batches
from evals.reproduce.rounds import full_rounds
from harness.journal import Rows
from knockout.boost import Boost, Power, Relative
from knockout.candidates import candidates
from knockout.ops.reference.tournament import Pairing, tournament
from knockout.plan import SparsePlan
from knockout.quota import Quota
from knockout.selection import Selection

BOOSTS: list[Boost] = [Power(20), Relative(4)]


def adjacent_pairs(size: int) -> Tensor:
    """Pair the best with the second, the third with the fourth, and so on."""
    return torch.cat([torch.arange(0, size, 2), torch.arange(1, size, 2).flip(0)])


def random_pairs(seed: int) -> Pairing:
    """Make a pairing that draws random pairs, new ones in every round."""
    generator = torch.Generator().manual_seed(seed)

    def pairing(size: int) -> Tensor:
        pairs = torch.randperm(size, generator=generator).reshape(-1, 2)
        return torch.cat([pairs.amin(dim=-1), pairs.amax(dim=-1).flip(0)])

    return pairing


PAIRINGS: dict[str, Callable[[int], Pairing | None]] = {  # made from a seed
    "fold": lambda _: None,
    "adjacent": lambda _: adjacent_pairs,
    "random": random_pairs,
}


def select(scores: Tensor, k: int, boost: Boost, pairing: Pairing | None) -> Selection:
    """Do what ``knockout.select`` does, with another pairing; n must be k times a power of two."""
    full_rounds(scores.shape[-1], k)
    selected = tournament(candidates(scores, None), Quota(k), boost, pairing=pairing)
    plan = SparsePlan(scores.shape[-1], selected.valid, selected.member, selected.weight, selected.score)
    return Selection(plan, selected.leader, selected.filled, scores.dtype)


@torch.inference_mode()
def quality(n: int, k: int, count: int, seed: int, device: str = "cpu") -> Rows:
    """Measure the nCCS of every pairing in one cell, a row per boost and pairing."""
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
