"""Tasks with planted relevance, evaluated by how many of the relevant candidates a hard top-k of the scores finds."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from evals.arena.methods import Select
from evals.learning.tasks import Task, pooled, recall
from knockout import methods


class Candidates(NamedTuple):
    """How the features of candidates are drawn: normal, unless one of these is set."""

    freedom: int = 0  # Student's t with so many degrees of freedom, one factor a candidate: scores have heavy tails
    copies: int = 1  # each candidate so many times, the copies with a little noise
    outlier: float = 1.0  # factor of the first candidate's features

    def draw(self, batch: int, n: int, d: int, generator: torch.Generator) -> Tensor:
        """Draw features (batch, n, d)."""
        if self.copies > 1:
            centers = torch.randn(batch, n // self.copies, d, generator=generator)
            noise = torch.randn(batch, n, d, generator=generator)
            return centers.repeat_interleave(self.copies, dim=1) + 0.1 * noise
        features = torch.randn(batch, n, d, generator=generator)
        if self.freedom:
            squares = torch.randn(batch, n, self.freedom, generator=generator).square()
            features /= squares.mean(dim=-1, keepdim=True).sqrt()
        features[:, 0] *= self.outlier
        return features


class Planted(Task):
    """Find the candidates that a hidden direction makes relevant; the target is the mean of their payloads."""

    rate = 0.02
    PAYLOAD, TESTED = 16, 128

    def __init__(
        self, seed: int, data: Path | None = None, n: int = 256, k: int = 8, start: float = 1.0, scale: float = 1.0,
        dtype: torch.dtype = torch.float32, batch: int = 32, features: int = 64,
        candidates: Candidates | None = None,
    ) -> None:  # fmt: skip
        """``start``: scale of the initial weights, 1 as in nn.Linear; ``scale``: factor of the scores."""
        del data  # this task draws its own
        self.n, self.k, self.scale, self.dtype, self.batch, self.d = n, k, scale, dtype, batch, features
        self.candidates = candidates or Candidates()
        self.generator = torch.Generator().manual_seed(1000 + seed)
        self.direction = torch.randn(features, generator=self.generator)
        self.weight = start * torch.randn(features, generator=self.generator) / features**0.5
        self.weight.requires_grad_()

    def parameters(self) -> list[Tensor]:
        return [self.weight]

    def features(self) -> Tensor:
        """Draw the candidates of a batch (batch, n, d)."""
        return self.candidates.draw(self.batch, self.n, self.d, self.generator)

    def scores(self, features: Tensor) -> Tensor:
        """Compute scores (batch, n)."""
        scores: Tensor = self.scale * (features @ self.weight)
        return scores.to(self.dtype)

    def loss(self, select: Select) -> Tensor:
        features = self.features()
        payloads = torch.randn(self.batch, self.n, self.PAYLOAD, generator=self.generator)
        target = methods.hard(features @ self.direction, self.k).apply(payloads).mean(dim=1)
        return (pooled(select(self.scores(features), self.k), self.k, payloads) - target).square().mean()

    def evaluate(self, hard: Select) -> float:
        batches = -(-self.TESTED // self.batch)
        found = 0.0
        for _ in range(batches):  # as small as in training: many candidates take much memory
            features = self.features()
            found += recall(self.scores(features), features @ self.direction, self.k, hard)
        return found / batches


class Indexer(Task):
    """Find the keys that a hidden bilinear form makes relevant to a query, with a form of the same kind."""

    n, k, rate = 128, 4, 0.01
    FEATURES, HEAD, PAYLOAD, BATCH, TESTED = 32, 16, 16, 64, 8

    def __init__(self, seed: int, data: Path | None = None) -> None:
        del data
        self.generator = torch.Generator().manual_seed(4000 + seed)
        hidden = torch.randn(2, self.FEATURES, self.HEAD, generator=self.generator)
        self.form = hidden[0] @ hidden[1].T
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.query, self.key = (nn.Linear(self.FEATURES, self.HEAD) for _ in range(2))

    def parameters(self) -> list[Tensor]:
        return [*self.query.parameters(), *self.key.parameters()]

    def draw(self) -> tuple[Tensor, Tensor]:
        """Draw queries (batch, features) and the keys that they share (n, features)."""
        queries, keys = torch.randn(self.BATCH + self.n, self.FEATURES, generator=self.generator).tensor_split(
            (self.BATCH,)
        )
        return queries, keys

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Compute scores (batch, n)."""
        scores: Tensor = self.query(queries) @ self.key(keys).T / self.HEAD**0.5
        return scores

    def loss(self, select: Select) -> Tensor:
        queries, keys = self.draw()
        payloads = torch.randn(self.n, self.PAYLOAD, generator=self.generator)
        target = payloads[methods.hard(queries @ self.form @ keys.T, self.k).indices].mean(dim=1)
        return (pooled(select(self.scores(queries, keys), self.k), self.k, payloads) - target).square().mean()

    def evaluate(self, hard: Select) -> float:
        found = 0.0
        for _ in range(self.TESTED):
            queries, keys = self.draw()
            found += recall(self.scores(queries, keys), queries @ self.form @ keys.T, self.k, hard)
        return found / self.TESTED
