"""What there is to measure, piece by piece: the paper's grid, and what its other claims need."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from knockout.eval import grid, pairing, rounds, training
from knockout.eval.journal import Rows
from knockout.eval.works import Work, fit
from knockout.ops.reference.tournament import rounds_of


@dataclass(frozen=True)
class Settings:
    """What decides the figures; results with other settings are of another run."""

    grid: str
    seed: int
    device: str
    threads: int
    batches: int  # of 16 rows, in each cell, at most
    weights: int  # of one row of the iterative method, n * k, over all batches of a cell: at most, but for two batches
    patience: float  # seconds for a method's time with backward in one cell
    rates: tuple[float, ...]  # of learning: every method is trained with each, and judged by its best
    seeds: int  # scorers trained so
    steps: int  # of training

    def batches_of(self, n: int, k: int) -> int:
        """How many batches a cell gets."""
        return max(2, min(self.batches, self.weights // (n * k)))


PANELS = (2, 8, 32, 128, 512, 2048)  # the k of the paper's figures
QUICK = [
    *((n, k) for k in (2, 8, 32, 128) for n in (16, 64, 512, 4096, 16384) if k < n),
    *((n, 512) for n in (1024, 4096)),
    *((n, 2048) for n in (4096, 8192)),
]
GRIDS: dict[str, list[tuple[int, int]]] = {"quick": sorted(QUICK), "paper": grid.CELLS}


def settings_for(name: str, seed: int, device: str, threads: int) -> Settings:
    """The paper's grid as the paper has it; the quick one with fewer cells, batches and steps."""
    if name == "paper":
        return Settings(
            name,
            seed,
            device,
            threads,
            batches=16,
            weights=2**30,
            patience=30.0,
            rates=(0.05, 0.005),
            seeds=4,
            steps=400,
        )
    return Settings(
        name, seed, device, threads, batches=6, weights=2**22, patience=0.3, rates=(0.02,), seeds=2, steps=160
    )


def name_of(kind: str, n: int, k: int) -> str:
    """Of the work on a cell."""
    return f"{kind} n={n} k={k}"


def name_of_training(layer: str, k: int, rate: float, seed: int) -> str:
    """Of the training of one scorer."""
    return f"training {layer}, k={k}, rate={rate}, seed={seed}"


def experiments(settings: Settings) -> list[Work]:
    """All pieces of work, in the order in which they are done."""
    seed = settings.seed
    work = []
    for n, k in GRIDS[settings.grid]:
        batches = settings.batches_of(n, k)
        run = partial(grid.measure, n, k, batches, seed, settings.device, settings.patience)
        # The iterative method weighs n * k pairs, everybody reads n vectors.
        work.append(Work(name_of("cell", n, k), batches * (4e-7 * n * k + 2e-5 * n + 0.02), run))
    work.append(Work("rounds", 0.3, partial(count_rounds, seed)))
    for batch, n, k, d in SORTS:
        run_sorting = partial(rounds.sorting_share, n, k, batch, d, seed, settings.device)
        work.append(Work(f"sorting batch={batch} n={n} k={k} d={d}", 0.02 + batch * n * d * 5e-8, _row(run_sorting)))
    for n, k in PAIRED:
        batches = settings.batches_of(n, k)
        run = partial(pairing.quality, n, k, batches, seed, settings.device)
        work.append(Work(name_of("pairing", n, k), batches * n * 4e-5, run))
    for number in range(settings.seeds):
        for name, k in TRAINED:
            cost = settings.steps * (0.01 if name in training.SEEDED else 0.002 + 1e-4 * training.chain(name, k))
            for rate in settings.rates:
                run = partial(training.train, name, k, rate, seed + number, settings.steps, settings.device)
                work.append(Work(name_of_training(name, k, rate, seed + number), cost, run))
    return work


SORTS = [(1, 1024, 8, 32), (1, 16384, 8, 32), (16, 1024, 8, 32), (16, 16384, 8, 32), (4, 16384, 8, 512)]
PAIRED = [(64, 8), (512, 8), (4096, 8), (4096, 128)]
TRAINED = [(name, k) for k in (8, 64) for name in training.LAYERS] + [(name, 8) for name in training.SEEDED]


def count_rounds(seed: int) -> Rows:
    """Rounds that are played, beside log2 of n/k rounded up, for the paper's sizes and for any others."""
    generator = torch.Generator().manual_seed(seed)
    sizes = list(grid.CELLS)
    for _ in range(60):
        n = int(torch.randint(1, 700, (), generator=generator))
        sizes.append((n, int(torch.randint(1, n + 1, (), generator=generator))))
    return [
        {
            "n": n,
            "k": k,
            "played": rounds.count_rounds(n, k),
            "said": math.ceil(math.log2(math.ceil(n / k))),
            "rounds": rounds_of(n, k),
        }
        for n, k in sizes
    ]


# What the rows of each kind of work hold.
FIELDS: dict[str, dict[str, type]] = {
    "cell": {
        "method": str, "n": int, "k": int, "rounds": int, "nccs": float, "nccs_std": float, "batches": int,
        "seconds": float, "seconds_with_backward": float,
    },
    "rounds": {"n": int, "k": int, "played": int, "said": int, "rounds": int},
    "sorting": {"n": int, "k": int, "batch": int, "d": int, "seconds": float, "seconds_sorting": float},
    "pairing": {"pairing": str, "boost": str, "n": int, "k": int, "nccs": float, "batches": int},
    "training": {
        "layer": str, "k": int, "chain": int, "rate": float, "seed": int, "step": int, "recall": float, "loss": float,
    },
}  # fmt: skip


def are_whole(name: str, rows: Rows) -> bool:
    """Whether rows are what a piece of work with this name finds."""
    kind = name.split()[0]
    if not fit(rows, FIELDS[kind]):
        return False
    if kind == "training":
        return all(name == name_of_training(row["layer"], row["k"], row["rate"], row["seed"]) for row in rows)
    if kind not in ("cell", "pairing"):
        return True
    if not all(name == name_of(kind, row["n"], row["k"]) for row in rows):
        return False
    if kind == "cell":
        return [row["method"] for row in rows] == list(grid.METHODS)
    return [row["pairing"] for row in rows] == list(pairing.PAIRINGS) * len(pairing.BOOSTS)


def _row(run: Callable[[], dict[str, Any]]) -> Callable[[], Rows]:
    return lambda: [run()]
