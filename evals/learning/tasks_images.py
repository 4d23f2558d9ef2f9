"""Tasks with images of Fashion-MNIST: an embedding that finds neighbours, and patches that are worth a look.

``Neighbours``: an embedding is trained so that the 9 nearest of 256 images, selected softly, vote for the right class.
It is evaluated by a hard vote of the 9 nearest of 2000 images.

``Patches``: an image lies somewhere on a canvas of 8 x 8 patches, among clutter; a network selects 4 patches by their
content, and classifies the image by them. It is evaluated by its accuracy with the top 4 patches, unscaled, or scaled
by a mask or by gates if the method trains with such.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from evals.arena.methods import Select
from evals.learning.tasks import Task
from harness import fashion_mnist
from knockout import methods


class Neighbours(Task):
    """Learn an embedding whose nearest neighbours have the same class."""

    n, k, rate, chance = 256, 9, 1e-3, 0.1
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

    n, k, rate, chance = 64, 4, 2e-3, 0.1
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

    def evaluate_soft(self, select: Select) -> float:
        return self.evaluate(select)
