"""Selection of features, the same for all rows of a table, with the small tables that scikit-learn contains.

The weights of a selection multiply the features, as in feature selection with a learned mask. Evaluation zeroes all
features but the k chosen ones.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evals.arena.methods import Select
from evals.learning.tasks import Task, accuracy

HAS_SKLEARN = importlib.util.find_spec("sklearn") is not None


@cache  # a process that trains many networks reads a table once
def table(name: str) -> tuple[Tensor, Tensor]:
    """Read the features (rows, n) and labels (rows,) of a table: "digits" or "breast_cancer"."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return torch.from_numpy(x).float(), torch.from_numpy(y).long()


class Features(Task):
    """Choose k features of a table for a classifier with one hidden layer."""

    rate = 0.01
    BATCH, TESTED = 128, 0.3  # the second as a part of the rows

    def __init__(
        self, seed: int, data: Path | None = None, name: str = "digits", k: int = 8, start: float = 0.1
    ) -> None:
        """``start``: standard deviation of the initial scores."""
        del data  # scikit-learn contains the tables
        x, y = table(name)
        self.generator = torch.Generator().manual_seed(7000 + seed)
        order = torch.randperm(len(x), generator=self.generator)
        tested, trained = order.tensor_split((int(self.TESTED * len(x)),))
        x = (x - x[trained].mean(dim=0)) / x[trained].std(dim=0).clamp(min=1e-6)  # some pixels are always 0
        self.train, self.test = (x[trained], y[trained]), (x[tested], y[tested])
        self.n, self.k, classes = x.shape[1], k, int(y.max()) + 1
        self.classes = classes
        self.scores = (start * torch.randn(self.n, generator=self.generator)).requires_grad_()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = nn.Sequential(nn.Linear(self.n, 32), nn.ReLU(), nn.Linear(32, classes))

    @property
    def chance(self) -> float:
        return 1.0 / self.classes

    def parameters(self) -> list[Tensor]:
        return [self.scores, *self.network.parameters()]

    def loss(self, select: Select) -> Tensor:
        x, y = self.train
        drawn = torch.randint(len(x), (self.BATCH,), generator=self.generator)
        return cross_entropy(self.network(select(self.scores, self.k).mass() * x[drawn]), y[drawn])

    def evaluate(self, hard: Select) -> float:
        chosen = hard(self.scores, self.k)
        only = torch.zeros(self.n).index_fill(0, chosen.indices, 1.0)  # a soft mask reaches more than k
        x, y = self.test
        return accuracy(self.network(only * chosen.mass() * x), y)

    def evaluate_soft(self, select: Select) -> float:
        x, y = self.test
        return accuracy(self.network(select(self.scores, self.k).mass() * x), y)
