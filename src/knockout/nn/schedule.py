"""Schedules of the boost: soft selections early in training, sharp ones later.

A scorer learns from candidates that carry weight, so it learns fastest while selections are soft; what it has learned
is used best when they are sharp. A schedule is stepped like those of torch.optim.lr_scheduler:

>>> import torch, knockout
>>> model = knockout.nn.TokenPool(16, k=4)
>>> optimizer = torch.optim.Adam(model.parameters())
>>> schedule = knockout.nn.Sharpen(model, steps=4)
>>> for step in range(4):
...     loss = model(torch.randn(2, 32, 16)).x.square().mean()
...     loss.backward()
...     optimizer.step()
...     schedule.step()
...     print(schedule.get_last_boost())
0.5
0.5
2.0
8.0

The boost is part of the model's ``state_dict``; the number of steps taken is part of the schedule's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from knockout.checks import check_positive, check_whole
from knockout.nn.topk import topk_layers


class BoostSchedule(ABC):
    """The base class of the schedules: sets the boost of all selections in a model, now and at every ``step()``.

    The boosts must be ``Relative`` or ``Fixed`` (a bare number is Relative): the schedule sets their c.
    """

    def __init__(self, model: nn.Module, steps: int) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module; got {type(model).__name__}")
        self.steps = check_whole(steps, "steps")
        self.last_step = 0
        self._layers = topk_layers(model)
        if not self._layers:
            raise ValueError(
                f"model must contain a knockout.nn.TopK or TokenPool for a schedule to act on; "
                f"got a {type(model).__name__} without one"
            )
        for layer in self._layers:
            if not hasattr(layer, "sharpness"):
                raise TypeError(f"a schedule needs boosts that are numbers, Relative or Fixed; got {layer.boost!r}")

    @abstractmethod
    def boost_at(self, progress: float) -> float:
        """The boost after this fraction of the steps, from 0 to 1."""

    def step(self) -> None:
        """Set the next boost; call it after each ``optimizer.step()``. After the last step the boost stays as it is."""
        self.last_step += 1
        self._set()

    def get_last_boost(self) -> float:
        """The boost that was set last."""
        return self.boost_at(min(self.last_step / self.steps, 1.0))

    def state_dict(self) -> dict[str, Any]:
        """The steps taken, and the settings of the schedule."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a ``state_dict()``, with its settings instead of those passed to this schedule."""
        own = self.state_dict()
        if set(state) != set(own):
            raise ValueError(
                f"state must come from the state_dict() of a {type(self).__name__}, with {sorted(own)}; "
                f"got {sorted(state)}"
            )
        check_whole(state["steps"], 'state["steps"]')
        check_whole(state["last_step"], 'state["last_step"]', least=0)
        vars(self).update(state)
        self._set()

    def _set(self) -> None:
        boost = self.get_last_boost()
        with torch.no_grad():
            for layer in self._layers:
                layer.sharpness.fill_(boost)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(step {self.last_step} of {self.steps}, boost {self.get_last_boost():.3g})"


class ConstantBoost(BoostSchedule):
    """A constant boost, with the interface of a schedule.

    >>> import knockout
    >>> knockout.nn.ConstantBoost(knockout.nn.TopK(4), boost=2.0)
    ConstantBoost(step 0 of 1, boost 2)
    """

    def __init__(self, model: nn.Module, boost: float = 4.0) -> None:
        super().__init__(model, 1)
        check_positive(boost, "boost")
        self.boost = float(boost)
        self._set()

    def boost_at(self, progress: float) -> float:  # noqa: ARG002
        return self.boost


class _StartToEnd(BoostSchedule):
    """The base class of schedules that lead from one boost to another."""

    def __init__(self, model: nn.Module, steps: int, start: float = 0.5, end: float = 8.0) -> None:
        super().__init__(model, steps)
        check_positive(start, "start")
        check_positive(end, "end")
        self.start, self.end = start, end
        self._set()


class Sharpen(_StartToEnd):
    """``start`` for the fraction ``hold`` of the steps, then an exponential rise to ``end``.

    The recommended schedule: with its defaults it learned best, at every scale of the scores, in a test with planted
    relevance.

    >>> import knockout
    >>> schedule = knockout.nn.Sharpen(knockout.nn.TopK(4), steps=1000)
    >>> [schedule.boost_at(progress) for progress in (0.0, 0.5, 0.75, 1.0)]
    [0.5, 0.5, 2.0, 8.0]
    """

    def __init__(self, model: nn.Module, steps: int, start: float = 0.5, end: float = 8.0, hold: float = 0.5) -> None:
        if not isinstance(hold, (int, float)) or not 0 <= hold <= 1:
            raise ValueError(f"hold must be a number from 0 to 1, a part of the steps; got {hold!r}")
        self.hold = hold
        super().__init__(model, steps, start, end)

    def boost_at(self, progress: float) -> float:
        rise = max(0.0, progress - self.hold) / (1.0 - self.hold) if self.hold < 1 else 0.0
        return self.start * math.pow(self.end / self.start, rise)


class LinearBoost(_StartToEnd):
    """A linear rise from ``start`` to ``end``.

    >>> import knockout
    >>> knockout.nn.LinearBoost(knockout.nn.TopK(4), steps=100, start=1.0, end=5.0).boost_at(0.25)
    2.0
    """

    def boost_at(self, progress: float) -> float:
        return self.start + (self.end - self.start) * progress


class CosineBoost(_StartToEnd):
    """A rise from ``start`` to ``end`` along half a cosine, slow at both ends.

    >>> import knockout
    >>> knockout.nn.CosineBoost(knockout.nn.TopK(4), steps=100, start=1.0, end=5.0).boost_at(0.5)
    3.0
    """

    def boost_at(self, progress: float) -> float:
        return self.start + (self.end - self.start) * (1.0 - math.cos(math.pi * progress)) / 2.0
