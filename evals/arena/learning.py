"""Learning: networks that select, trained through each method with the same data, steps and learning rate.

``planted``: 8 of 256 candidates are relevant, by a hidden direction; the target is the mean of their payloads. A linear
scorer is evaluated by how many of them a hard top-k of its scores finds.

``neighbours``: an embedding of Fashion-MNIST is trained so that the 9 nearest of 256 images, selected softly, vote for
the right class. It is evaluated by a hard vote of the 9 nearest of 2000 images.

``patches``: an image of Fashion-MNIST lies somewhere on a canvas of 8 x 8 patches, among clutter; a network selects 4
patches by their content, and classifies the image by them. It is evaluated by its accuracy with the top 4 patches,
unscaled, or scaled by a mask or by gates if the method trains with such.

In each, the temperature of a method is either constant or annealed: sixteen times as high for half of the steps, then
lowered by equal factors (as ``knockout.nn.Sharpen`` does).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from evals.arena.methods import METHODS, Select
from harness import fashion_mnist
from harness.journal import Rows
from knockout import methods

HOLD, START = 0.5, 16.0  # of annealing: part of the steps before it starts, factor of the temperature


def temperature_at(progress: float, temperature: float, annealed: bool) -> float:
    """Compute the temperature after this part of the steps."""
    if not annealed:
        return temperature
    rise = max(0.0, progress - HOLD) / (1.0 - HOLD)
    return float(temperature * START ** (1.0 - rise))


class Task(ABC):
    """A network that selects k of n candidates, with its data."""

    n: int
    k: int
    rate: float  # the initial learning rate of Adam; it falls linearly to 0

    @abstractmethod
    def parameters(self) -> list[Tensor]:
        """List what is learned."""

    @abstractmethod
    def loss(self, select: Select) -> Tensor:
        """Compute the loss on the next batch."""

    @abstractmethod
    def evaluate(self, hard: Select) -> float:
        """Measure the share of right answers, with candidates selected by ``hard``."""


class Planted(Task):
    """Find the candidates that a hidden direction makes relevant."""

    rate = 0.02
    FEATURES, PAYLOAD, BATCH = 64, 16, 32

    def __init__(
        self, seed: int, data: Path | None = None, n: int = 256, k: int = 8, start: float = 1.0, scale: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        """``start``: scale of the initial weights, 1 as in nn.Linear; ``scale``: factor of the scores."""
        del data  # this task draws its own
        self.n, self.k, self.scale, self.dtype = n, k, scale, dtype
        self.generator = torch.Generator().manual_seed(1000 + seed)
        self.direction = torch.randn(self.FEATURES, generator=self.generator)
        self.weight = start * torch.randn(self.FEATURES, generator=self.generator) / self.FEATURES**0.5
        self.weight.requires_grad_()

    def parameters(self) -> list[Tensor]:
        return [self.weight]

    def scores(self, features: Tensor) -> Tensor:
        """Compute scores (batch, n)."""
        scores: Tensor = self.scale * (features @ self.weight)
        return scores.to(self.dtype)

    def loss(self, select: Select) -> Tensor:
        features = torch.randn(self.BATCH, self.n, self.FEATURES, generator=self.generator)
        payloads = torch.randn(self.BATCH, self.n, self.PAYLOAD, generator=self.generator)
        target = methods.hard(features @ self.direction, self.k).apply(payloads).mean(dim=1)
        return (pooled(select(self.scores(features), self.k).mass().float(), payloads) - target).square().mean()

    def evaluate(self, hard: Select) -> float:
        features = torch.randn(128, self.n, self.FEATURES, generator=self.generator)
        relevant = methods.hard(features @ self.direction, self.k).indices
        found = hard(self.scores(features), self.k).indices
        return (found.unsqueeze(-1) == relevant.unsqueeze(-2)).any(dim=-1).float().mean().item()


def pooled(mass: Tensor, payloads: Tensor) -> Tensor:
    """Average payloads (batch, n, d), weighted by a mask (batch, n)."""
    share = mass / mass.sum(dim=-1, keepdim=True)
    return (share.unsqueeze(-2) @ payloads).squeeze(-2)


class Neighbours(Task):
    """Learn an embedding whose nearest neighbours have the same class."""

    n, k, rate = 256, 9, 1e-3
    QUERIES, REFERENCES, TESTED = 64, 2000, 2000

    def __init__(self, seed: int, data: Path | None) -> None:
        assert data is not None
        self.train, self.test = fashion_mnist.load(data)
        self.generator = torch.Generator().manual_seed(2000 + seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 16))

    def parameters(self) -> list[Tensor]:
        return list(self.network.parameters())

    def votes(self, queries: Tensor, references: Tensor, labels: Tensor, select: Select) -> Tensor:
        """Compute the share of each class (queries, 10) among the nearest."""
        distance = torch.cdist(self.network(queries), self.network(references)).square()
        mass = select(-distance, self.k).mass()
        return mass @ one_hot(labels, 10).to(mass.dtype) / mass.sum(dim=-1, keepdim=True)

    def loss(self, select: Select) -> Tensor:
        drawn = torch.randint(len(self.train.images), (self.QUERIES + self.n,), generator=self.generator)
        images, labels = self.train.images[drawn], self.train.labels[drawn]
        shares = self.votes(images[: self.QUERIES], images[self.QUERIES :], labels[self.QUERIES :], select)
        return -torch.log(shares.gather(1, labels[: self.QUERIES, None]) + 1e-4).mean()

    def evaluate(self, hard: Select) -> float:  # noqa: ARG002
        references, labels = self.train.images[: self.REFERENCES], self.train.labels[: self.REFERENCES]
        # Each of the nearest has one vote, however a method would weight them.
        shares = self.votes(self.test.images[: self.TESTED], references, labels, methods.hard)
        return (shares.argmax(dim=-1) == self.test.labels[: self.TESTED]).float().mean().item()


class Patches(Task):
    """Learn which patches of an image to look at."""

    n, k, rate = 64, 4, 2e-3
    SIDE, PATCH, CLUTTER, BATCH, TESTED = 8, 14, 16, 32, 2000

    def __init__(self, seed: int, data: Path | None) -> None:
        assert data is not None
        self.train, self.test = fashion_mnist.load(data)
        self.generator = torch.Generator().manual_seed(3000 + seed)
        pixels = self.PATCH**2
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.scorer = nn.Sequential(nn.Linear(pixels, 32), nn.ReLU(), nn.Linear(32, 1))
            self.reader = nn.Sequential(nn.Linear(pixels + 2, 128), nn.ReLU(), nn.Linear(128, 64))
            self.head = nn.Sequential(nn.ReLU(), nn.Linear(64, 10))
        at = torch.linspace(-1.0, 1.0, self.SIDE)
        self.place = torch.cartesian_prod(at, at)  # (64, 2)

    def parameters(self) -> list[Tensor]:
        return [p for part in (self.scorer, self.reader, self.head) for p in part.parameters()]

    def canvas(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Put images (batch, 28, 28) among patches (batch, 64, 196): four of the image, clutter, and blank ones."""
        batch, p, side = len(images), self.PATCH, self.SIDE
        quarters = images.view(batch, 2, p, 2, p).transpose(2, 3).reshape(batch, 4, p * p)
        blank = images.amin().expand(batch, self.n, p * p).clone()
        # Clutter: quarters of other images with shuffled pixels: only the arrangement of pixels tells them apart.
        place = torch.rand(batch, self.n, generator=generator).argsort(dim=1)[:, : self.CLUTTER]
        other = torch.randint(4 * batch, (batch, self.CLUTTER), generator=generator)
        shuffled = quarters.flatten(0, 1)[:, torch.randperm(p * p, generator=generator)]
        blank.scatter_(1, place.unsqueeze(-1).expand(-1, -1, p * p), shuffled[other])
        corner = torch.randint(side - 1, (batch, 2), generator=generator)
        first = corner[:, 0] * side + corner[:, 1]
        where = first.unsqueeze(-1) + torch.tensor([0, 1, side, side + 1])
        return blank.scatter_(1, where.unsqueeze(-1).expand(-1, -1, p * p), quarters)

    def logits(self, patches: Tensor, select: Select) -> Tensor:
        """Compute the logits of the classes (batch, 10)."""
        chosen = select(self.scorer(patches).squeeze(-1), self.k)
        seen = torch.cat([patches, self.place.expand(len(patches), -1, -1)], dim=-1)
        logits: Tensor = self.head(self.reader(chosen.apply(seen)).mean(dim=1))
        return logits

    def loss(self, select: Select) -> Tensor:
        drawn = torch.randint(len(self.train.images), (self.BATCH,), generator=self.generator)
        patches = self.canvas(self.train.images[drawn], self.generator)
        return cross_entropy(self.logits(patches, select), self.train.labels[drawn])

    def evaluate(self, hard: Select) -> float:
        generator, right = torch.Generator().manual_seed(0), 0
        for start in range(0, self.TESTED, 250):
            patches = self.canvas(self.test.images[start : start + 250], generator)
            right += int((self.logits(patches, hard).argmax(dim=-1) == self.test.labels[start : start + 250]).sum())
        return right / self.TESTED


TASKS: dict[str, Callable[[int, Path | None], Task]] = {  # made from a seed and the folder of the data
    "planted": Planted,
    "neighbours": Neighbours,
    "patches": Patches,
}
NEEDS_DATA = ("neighbours", "patches")


def train(task: Task, at: Callable[[float], Select], steps: int, hard: Select, seed: int) -> float:
    """Train through the selection ``at`` each part of the steps, then evaluate with ``hard``."""
    torch.manual_seed(seed)  # for the methods that draw noise
    optimizer = torch.optim.Adam(task.parameters(), lr=task.rate)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for step in range(steps):
        loss = task.loss(at(step / steps))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    with torch.no_grad():
        return task.evaluate(hard)


def measure(
    task: str, name: str, temperature: float, annealed: bool, steps: int, seeds: int, data: Path | None
) -> Rows:
    """Train with one setting of a method, a row per seed."""
    method = METHODS[name]

    def at(progress: float) -> Select:
        return method.at(temperature_at(progress, temperature, annealed))

    return [
        {
            "task": task, "method": name, "temperature": temperature, "annealed": annealed,
            "seed": seed, "score": train(TASKS[task](seed, data), at, steps, method.for_evaluation(temperature), seed),
        }
        for seed in range(seeds)
    ]  # fmt: skip
