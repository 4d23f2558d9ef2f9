"""The experiments: the cells of the paper's grid, and what its other claims need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch

from evals.reproduce import grid, pairing, rounds, training
from harness.journal import Rows
from harness.runner import Experiment, rows_match
from knockout.ops.reference.tournament import rounds_of


@dataclass(frozen=True)
class Settings:
    """All that the results depend on; results with other settings belong to another run."""

    grid: str
    seed: int
    device: str
    threads: int
    batches: int  # of 16 rows in each cell, at most
    weights: int  # limit of n * k * batches in a cell, for the sake of the iterative method; two batches in any case
    patience: float  # seconds for timing the backward pass of a method in one cell
    rates: tuple[float, ...]  # learning rates: every method is trained with each of them, the best one counts
    seeds: int  # scorers trained with each learning rate
    steps: int  # of training

    def batches_of(self, n: int, k: int) -> int:
        """Return the number of batches of a cell."""
        return max(2, min(self.batches, self.weights // (n * k)))


PANELS = (2, 8, 32, 128, 512, 2048)  # the k of the paper's figures
QUICK = [
    *((n, k) for k in (2, 8, 32, 128) for n in (16, 64, 512, 4096, 16384) if k < n),
    *((n, 512) for n in (1024, 4096)),
    *((n, 2048) for n in (4096, 8192)),
]
GRIDS: dict[str, list[tuple[int, int]]] = {"quick": sorted(QUICK), "paper": grid.CELLS}


def settings_for(name: str, seed: int, device: str, threads: int) -> Settings:
    """Make the settings for the paper's grid, or for the quick one, with fewer cells, batches and steps."""
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


def cell_name(kind: str, n: int, k: int) -> str:
    """Name an experiment on one cell."""
    return f"{kind} n={n} k={k}"


def training_name(layer: str, k: int, rate: float, seed: int) -> str:
    """Name the training of one scorer."""
    return f"training {layer}, k={k}, rate={rate}, seed={seed}"


def experiments(settings: Settings) -> list[Experiment]:
    """List all experiments, in the order in which they are run."""
    seed = settings.seed
    listed = []
    for n, k in GRIDS[settings.grid]:
        batches = settings.batches_of(n, k)
        run = partial(grid.measure, n, k, batches, seed, settings.device, settings.patience)
        # The iterative method computes n * k weights, every method reads n vectors.
        listed.append(Experiment(cell_name("cell", n, k), batches * (4e-7 * n * k + 2e-5 * n + 0.02), run))
    listed.append(Experiment("rounds", 0.3, partial(count_rounds, seed)))
    for batch, n, k, d in SORTS:
        run = partial(rounds.sorting_share, n, k, batch, d, seed, settings.device)
        listed.append(Experiment(f"sorting batch={batch} n={n} k={k} d={d}", 0.02 + batch * n * d * 5e-8, run))
    for n, k in PAIRED:
        batches = settings.batches_of(n, k)
        run = partial(pairing.quality, n, k, batches, seed, settings.device)
        listed.append(Experiment(cell_name("pairing", n, k), batches * n * 4e-5, run))
    for number in range(settings.seeds):
        for name, k in TRAINED:
            cost = settings.steps * (0.01 if name in training.SEEDED else 0.002 + 1e-4 * training.chain(name, k))
            for rate in settings.rates:
                run = partial(training.train, name, k, rate, seed + number, settings.steps, settings.device)
                listed.append(Experiment(training_name(name, k, rate, seed + number), cost, run))
    return listed


SORTS = [(1, 1024, 8, 32), (1, 16384, 8, 32), (16, 1024, 8, 32), (16, 16384, 8, 32), (4, 16384, 8, 512)]
PAIRED = [(64, 8), (512, 8), (4096, 8), (4096, 128)]
TRAINED = [(name, k) for k in (8, 64) for name in training.LAYERS] + [(name, 8) for name in training.SEEDED]


def count_rounds(seed: int) -> Rows:
    """Count the rounds that are played, beside log2 of n/k rounded up, for the paper's sizes and for random ones."""
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


# The fields of the rows of each kind of experiment.
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


def is_complete(name: str, rows: Rows) -> bool:
    """Whether these are the rows of the experiment with this name."""
    kind = name.split()[0]
    if not rows_match(rows, FIELDS[kind]):
        return False
    if kind == "training":
        return all(name == training_name(row["layer"], row["k"], row["rate"], row["seed"]) for row in rows)
    if kind not in ("cell", "pairing"):
        return True
    if not all(name == cell_name(kind, row["n"], row["k"]) for row in rows):
        return False
    if kind == "cell":
        return [row["method"] for row in rows] == list(grid.METHODS)
    return [row["pairing"] for row in rows] == list(pairing.PAIRINGS) * len(pairing.BOOSTS)
