"""How many to select, learned row by row: a threshold on the scores, instead of one k for all rows.

Each row has 48 items, of which 1 to 16 are relevant, about 5 on average; one of 12 noisy features tells which. The
network is to give the sum of the values of the relevant items. It scores the items, selects the best, and adds up their
values, each times a gate: how far its score is above a threshold, as a sigmoid.

With one k for all rows, a row with more relevant items loses some, and one with fewer has slots that only its gates can
turn down. With a threshold, a row selects as many items as score above it. The threshold learns by the gates, and by
what the slots cost: the expected number of items above it, which has a gradient, where the number itself has none.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

import knockout

ITEMS, FEATURES, DIM, MOST = 48, 12, 6, 16
BATCH, RATE, STEPS = 128, 0.03, 400


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw rows: features (count, ITEMS, FEATURES), values (count, ITEMS, DIM), which are relevant, and their sum."""
    chance = torch.rand(count, 1, generator=generator)
    number = (chance.log() / torch.tensor(0.8).log()).floor().clamp(0, MOST - 1) + 1
    relevant = torch.rand(count, ITEMS, generator=generator).argsort(dim=-1) < number
    features = torch.randn(count, ITEMS, FEATURES, generator=generator)
    features[..., 0] += 4.0 * relevant
    values = torch.randn(count, ITEMS, DIM, generator=generator)
    return features, values, relevant, (values * relevant.unsqueeze(-1)).sum(dim=-2)


class Budget(nn.Module):
    """Scores to counts: how many candidates of a row score above a learned threshold."""

    def __init__(self, max_k: int, temperature: float = 0.5) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.zeros(()))
        self.max_k, self.temperature = max_k, temperature

    def forward(self, scores: Tensor) -> Tensor:
        """Return the counts (...,), from 1 to max_k: int64, without a gradient."""
        return (scores > self.threshold).sum(dim=-1).clamp(1, self.max_k)

    def gate(self, scores: Tensor) -> Tensor:
        """How far scores are above the threshold, from 0 to 1."""
        return torch.sigmoid((scores - self.threshold) / self.temperature)

    def expected(self, scores: Tensor) -> Tensor:
        """The count (...,) as a number that has a gradient."""
        return self.gate(scores).sum(dim=-1)


class Net(nn.Module):
    """Features and values to the sum of the relevant values; ``k`` slots for each row, or None to learn how many."""

    def __init__(self, k: int | None) -> None:
        super().__init__()
        self.scorer = nn.Linear(FEATURES, 1, bias=False)
        self.budget = Budget(MOST)
        self.topk = knockout.nn.TopK(k or MOST, hard_eval=True)
        self.learns_k = k is None

    def forward(self, features: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sum (..., DIM), the expected count (...,), and the number of slots (...,) that are used."""
        scores = self.scorer(features).squeeze(-1)
        picked = self.topk.select(scores, k=self.budget(scores) if self.learns_k else None)
        gate = self.budget.gate(picked.scores) * picked.mask
        total = (picked.apply(values) * gate.unsqueeze(-1)).sum(dim=-2)
        return total, self.budget.expected(scores), picked.mask.sum(dim=-1)


def train(
    seed: int, k: int | None = None, price: float = 0.0, most: float | None = None, steps: int = STEPS
) -> tuple[float, float]:
    """Train a network, and test it: the part of the variance that it misses, and the mean number of slots.

    ``price`` is what a slot costs, as a part of the loss; ``most``, how many slots a row may use on average, without
    cost. Neither counts in the first quarter of the training: the scorer must find out what is relevant first.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    net = Net(k)
    optimizer = torch.optim.Adam(net.parameters(), RATE)
    for step in range(steps):
        features, values, _, target = draw(BATCH, generator)
        total, expected, _ = net(features, values)
        loss = (total - target).square().mean() / target.square().mean()
        if step >= steps // 4:
            loss = loss + price * expected.mean()
            if most is not None:
                loss = loss + relu(expected.mean() / most - 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    features, values, _, target = draw(2000, torch.Generator().manual_seed(10**6))
    with torch.no_grad():
        total, _, slots = net(features, values)
    return float((total - target).square().sum() / target.square().sum()), float(slots.float().mean())


def table(seeds: Sequence[int] = range(5), steps: int = STEPS) -> None:
    """Print what is missed, and the mean number of slots, of each way to choose k: means and deviations over seeds."""
    ways: dict[str, dict[str, float]] = {f"k = {k}": {"k": k} for k in (3, 5, 6, 8, 12, 16)}
    ways |= {f"learned, a slot costs {price}": {"price": price} for price in (0.0, 0.02, 0.06, 0.2)}
    ways |= {f"learned, at most {most} on average": {"most": most} for most in (3.0, 5.0)}
    print("| k | missed | slots |\n|---|---|---|")
    for name, way in ways.items():
        missed, slots = zip(*(train(seed, steps=steps, **way) for seed in seeds), strict=True)  # type: ignore[arg-type]
        shown = (f"{statistics.mean(x):.3f} ± {statistics.pstdev(x):.3f}" for x in (missed, slots))
        print(f"| {name} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    table()
