"""Tasks in which vectors pass through the choice: a needle among tokens, and experts that a router chooses."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evals.arena.methods import Select
from evals.learning.tasks import Task, accuracy


class Needle(Task):
    """Classify a sequence by its one token with a marker; all others are noise."""

    n, k, rate, chance = 48, 1, 0.01, 0.1
    FEATURES, CLASSES, BATCH, TESTED = 32, 10, 64, 2000

    def __init__(self, seed: int, data: Path | None = None, start: float = 1.0) -> None:
        """``start``: factor of the scorer's initial weights."""
        del data  # this task draws its own
        self.generator = torch.Generator().manual_seed(5000 + seed)
        self.marker = torch.randn(self.FEATURES, generator=self.generator)
        self.classes = torch.randn(self.CLASSES, self.FEATURES, generator=self.generator)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.norm, self.scorer = nn.LayerNorm(self.FEATURES), nn.Linear(self.FEATURES, 1)
            self.head = nn.Linear(self.FEATURES, self.CLASSES)
        with torch.no_grad():
            for parameter in self.scorer.parameters():
                parameter.mul_(start)

    def parameters(self) -> list[Tensor]:
        return [p for part in (self.norm, self.scorer, self.head) for p in part.parameters()]

    def draw(self, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw tokens (batch, n, features) and labels (batch,)."""
        tokens = torch.randn(batch, self.n, self.FEATURES, generator=generator)
        labels = torch.randint(self.CLASSES, (batch,), generator=generator)
        place = torch.randint(self.n, (batch,), generator=generator)
        tokens[torch.arange(batch), place] += self.marker + self.classes[labels]
        return tokens, labels

    def logits(self, tokens: Tensor, select: Select) -> Tensor:
        """Compute the logits of the classes (batch, classes)."""
        tokens = self.norm(tokens)
        chosen = select(self.scorer(tokens).squeeze(-1), self.k).apply(tokens)
        logits: Tensor = self.head(chosen.squeeze(1))
        return logits

    def loss(self, select: Select) -> Tensor:
        tokens, labels = self.draw(self.BATCH, self.generator)
        return cross_entropy(self.logits(tokens, select), labels)

    def evaluate(self, hard: Select) -> float:
        tokens, labels = self.draw(self.TESTED, torch.Generator().manual_seed(0))
        return accuracy(self.logits(tokens, hard), labels)

    def evaluate_soft(self, select: Select) -> float:
        return self.evaluate(select)


class Router(Task):
    """Send each token to 2 of 8 experts, as a hidden router with hidden experts does; router and experts learn."""

    n, k, rate, chance = 8, 2, 0.03, 0.0
    FEATURES, BATCH, TESTED = 16, 256, 2048

    def __init__(self, seed: int, data: Path | None = None) -> None:
        del data
        d, self.generator = self.FEATURES, torch.Generator().manual_seed(6000 + seed)
        self.gate = torch.randn(d, self.n, generator=self.generator)
        self.hidden = torch.randn(self.n, d, d, generator=self.generator) / d**0.5
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.router = nn.Linear(d, self.n)
            self.experts = (torch.randn(self.n, d, d) / d**0.5).requires_grad_()

    def parameters(self) -> list[Tensor]:
        return [*self.router.parameters(), self.experts]

    def draw(self, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw tokens and their targets (batch, features)."""
        tokens = torch.randn(batch, self.FEATURES, generator=generator)
        chosen = (tokens @ self.gate).topk(self.k).indices
        return tokens, mixed(tokens, self.hidden)[torch.arange(batch).unsqueeze(-1), chosen].mean(dim=1)

    def output(self, tokens: Tensor, select: Select) -> Tensor:
        """Average the outputs of the chosen experts (batch, features)."""
        return select(self.router(tokens), self.k).apply(mixed(tokens, self.experts)).mean(dim=1)

    def loss(self, select: Select) -> Tensor:
        tokens, target = self.draw(self.BATCH, self.generator)
        return (self.output(tokens, select) - target).square().mean()

    def evaluate(self, hard: Select) -> float:
        """Measure the share of variance explained, 0 if there is none."""
        tokens, target = self.draw(self.TESTED, torch.Generator().manual_seed(0))
        left = (self.output(tokens, hard) - target).square().sum() / target.square().sum()
        return max(0.0, 1.0 - left.item())

    def evaluate_soft(self, select: Select) -> float:
        return self.evaluate(select)


def mixed(tokens: Tensor, experts: Tensor) -> Tensor:
    """Apply all experts (n, d, d) to tokens (batch, d): (batch, n, d)."""
    return torch.einsum("bd,nde->bne", tokens, experts)
