"""The paper's grid of n and k: quality (nCCS) and time of each method on random vectors with random scores."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import knockout
from evals.reproduce.rounds import round_by_round
from harness.journal import Rows
from harness.timing import median, timed
from knockout.boost import Fixed, Power, Relative
from knockout.ops.reference.tournament import rounds_of

BATCH, D = 16, 32
CELLS = [(2**i, 2**j) for i in range(4, 15) for j in range(1, 12) if 2**j < 2**i]

Method = Callable[[Tensor, Tensor, int], Tensor]  # values (batch, n, d), scores (batch, n), k -> (batch, k, d)


def hard(values: Tensor, scores: Tensor, k: int) -> Tensor:
    """Select the true top k: torch.topk and a gather."""
    index = torch.topk(scores, k, dim=-1).indices
    return values.gather(1, index.unsqueeze(-1).expand(-1, -1, values.shape[-1]))


# "halving" and "iterative" are what was run for the published figures. The iterative method's alpha is 2: see
# docs/paper.md.
METHODS: dict[str, Method] = {
    "halving": lambda values, scores, k: knockout.topk(values, scores, k, Power(20)).values,
    "iterative": lambda values, scores, k: knockout.methods.iterative(scores, k, peaked=False, alpha=2.0).apply(values),
    "iterative, peaked": lambda values, scores, k: knockout.methods.iterative(scores, k, alpha=2.0).apply(values),
    "Relative(4)": lambda values, scores, k: knockout.topk(values, scores, k, Relative(4)).values,
    "Relative(16)": lambda values, scores, k: knockout.topk(values, scores, k, Relative(16)).values,
    "Fixed(100)": lambda values, scores, k: knockout.topk(values, scores, k, Fixed(100)).values,
    "round by round": lambda values, scores, k: round_by_round(values, scores, k, Power(20)),
    "hard": hard,
}


def batches(n: int, k: int, count: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw ``count`` batches of values (16, n, 32) ~ U[-1, 1] and scores (16, n) ~ U[0, 1], the same in every call."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + n * 4096 + k)
    for _ in range(count):
        yield (
            torch.rand(BATCH, n, D, generator=generator) * 2 - 1,
            torch.rand(BATCH, n, generator=generator),
        )


def measure(n: int, k: int, count: int = 16, seed: int = 0, device: str = "cpu", patience: float = 60.0) -> Rows:
    """Measure one cell, a row per method; on every batch, all methods one after the other.

    Quality and the time of a forward pass are measured on every batch. The time with backward, to values and scores, is
    measured once and then on further batches until a method has taken ``patience`` seconds.
    """
    place = torch.device(device)
    found: dict[str, list[float]] = {name: [] for name in METHODS}
    forward: dict[str, list[float]] = {name: [] for name in METHODS}
    both: dict[str, list[float]] = {name: [] for name in METHODS}
    for number, batch in enumerate(batches(n, k, count, seed)):
        values, scores = (each.to(place) for each in batch)
        true = hard(values, scores, k)
        for name, method in METHODS.items():
            with torch.no_grad():
                if number == 0:
                    method(values[:1], scores[:1], k)  # load and allocate what a first call needs
                out, spent = timed(place, method, values, scores, k)
                forward[name].append(spent)
                found[name].append(knockout.metrics.nccs(true, out).mean().item())
            if not both[name] or sum(both[name]) < patience:
                learned = values.clone().requires_grad_(), scores.clone().requires_grad_(name != "hard")
                both[name].append(timed(place, _with_backward, method, *learned, k)[1])
    return [
        {
            "method": name,
            "n": n,
            "k": k,
            "rounds": rounds_of(n, k),
            "nccs": statistics.fmean(found[name]),
            "nccs_std": statistics.stdev(found[name]) if count > 1 else 0.0,
            "batches": count,
            "seconds": median(forward[name]),
            "seconds_with_backward": median(both[name]),
        }
        for name in METHODS
    ]


def _with_backward(method: Method, values: Tensor, scores: Tensor, k: int) -> None:
    method(values, scores, k).sum().backward()
