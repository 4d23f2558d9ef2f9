"""What all tasks share: a network that selects k of n candidates, the recipe that trains it, and the training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from evals.arena.methods import Select
from knockout import Selection, methods


class Task(ABC):
    """A network that selects k of n candidates, with its data."""

    n: int
    k: int
    rate: float  # the initial learning rate of Adam

    @property
    def chance(self) -> float:
        """The score of a choice at random: the recall of it, unless a task measures something else."""
        return self.k / self.n

    @abstractmethod
    def parameters(self) -> list[Tensor]:
        """List what is learned."""

    @abstractmethod
    def loss(self, select: Select) -> Tensor:
        """Compute the loss on the next batch."""

    @abstractmethod
    def evaluate(self, hard: Select) -> float:
        """Measure the share of right answers, with candidates selected by ``hard``."""

    def evaluate_soft(self, select: Select) -> float | None:  # noqa: ARG002
        """Measure the same with a soft selection; None where the score is of indices, which have no weights."""
        return None


class Recipe(NamedTuple):
    """How a network is trained: the optimizer, its learning rate and whether that falls linearly to 0."""

    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam
    rate: float | None = None  # None: that of the task
    decay: bool = True


def optimize(task: Task, at: Callable[[float], Select], steps: int, seed: int, recipe: Recipe | None = None) -> None:
    """Train through the selection ``at`` each part of the steps."""
    torch.manual_seed(seed)  # for the methods that draw noise
    make, rate, decay = recipe or Recipe()
    optimizer = make(task.parameters(), lr=task.rate if rate is None else rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0 if decay else 1.0, steps)
    for step in range(steps):
        loss = task.loss(at(step / steps))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def train(
    task: Task, at: Callable[[float], Select], steps: int, hard: Select, seed: int, recipe: Recipe | None = None
) -> float:
    """Train through the selection ``at`` each part of the steps, then evaluate with ``hard``."""
    optimize(task, at, steps, seed, recipe)
    with torch.no_grad():
        return task.evaluate(hard)


def pooled(selection: Selection, k: int, payloads: Tensor) -> Tensor:
    """Average payloads (..., n, d), weighted by the mass of a selection.

    Weights are normalized, since not all methods have weights that sum to k; but for k = 1 that would leave a gate
    nothing to learn by.
    """
    mass = selection.mass().float()
    share = mass / mass.sum(dim=-1, keepdim=True) if k > 1 else mass
    return (share.unsqueeze(-2) @ payloads).squeeze(-2)


def recall(scores: Tensor, relevance: Tensor, k: int, hard: Select) -> float:
    """Compute the share of the k candidates of highest relevance (..., n) that ``hard`` finds by scores (..., n)."""
    found, relevant = hard(scores, k).indices, methods.hard(relevance, k).indices
    return (found.unsqueeze(-1) == relevant.unsqueeze(-2)).any(dim=-1).float().mean().item()


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Compute the share of rows whose highest logit is that of their label."""
    return (logits.argmax(dim=-1) == labels).float().mean().item()
