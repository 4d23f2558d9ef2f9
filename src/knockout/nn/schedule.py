"""Schedules of the boost: choices that become sharper in the course of training, by plan.

The layers need none: the boost that they calibrate sharpens as the scores spread. A schedule is for choices that must
be hard, or nearly, at the end; or for a boost that does not sharpen by itself. It is stepped like those of
torch.optim.lr_scheduler:

>>> import torch, knockout
>>> model = knockout.nn.TokenPool(16, k=4, boost=knockout.boost.Adaptive(1.0, unit=5.0))
>>> optimizer = torch.optim.Adam(model.parameters())
>>> schedule = knockout.nn.Sharpen(model, steps=4)
>>> for step in range(4):
...     loss = model(torch.randn(2, 32, 16)).x.square().mean()
...     loss.backward()
...     optimizer.step()
...     schedule.step()
...     print(round(schedule.get_last_boost(), 2))
1.0
1.0
4.0
16.0

The boost is part of the model's ``state_dict``; the number of steps taken is part of the schedule's.

Without a layer, pass the boost itself. Its c must be a tensor, whose number the schedule changes:

>>> boost = knockout.boost.Adaptive(torch.tensor(2.0), unit=1.5)
>>> schedule = knockout.nn.Sharpen(boost, steps=4)
>>> for step in range(4):
...     values, scores = torch.randn(10, 8), torch.randn(10)
...     out = knockout.topk(values, scores, k=2, boost=boost)
...     schedule.step()
>>> boost
Adaptive(c=32.0, unit=1.5, alpha=1.5)

That boost is in no ``state_dict``: to continue, make it as before, and load that of the schedule.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from knockout.boost import Adaptive, Boost, Fixed, Relative
from knockout.checks import check_positive, check_whole
from knockout.nn.topk import TopK, topk_layers


class _BoostOfCalls:
    """A boost that is passed to functions, with what a schedule needs of a layer."""

    def __init__(self, boost: Boost) -> None:
        if isinstance(boost, (Adaptive, Relative, Fixed)):
            if not isinstance(boost.c, Tensor):
                raise TypeError(
                    f"a schedule needs a boost whose c is a tensor, as {type(boost).__name__}(torch.tensor(2.0)), or a "
                    f"model with layers; got {boost!r}"
                )
            self.sharpness = boost.c
            boost = replace(boost, c=boost.c.item())  # with the number that it starts from
        self.boost = self._boost = boost


Driven = TopK | _BoostOfCalls
Subject = nn.Module | Boost | Sequence[nn.Module | Boost]  # of a schedule


def _driven(subject: Subject) -> list[Driven]:
    """What a schedule sets the boost of."""
    if isinstance(subject, Boost):
        return [_BoostOfCalls(subject)]
    if isinstance(subject, nn.Module):
        layers = topk_layers(subject)
        if not layers:
            raise ValueError(
                f"model must contain a knockout.nn.TopK or TokenPool for a schedule to act on; "
                f"got a {type(subject).__name__} without one"
            )
        return [*layers]
    if not isinstance(subject, (list, tuple)) or not subject:
        raise TypeError(
            f"model must be an nn.Module, a knockout.boost, or a list of these; "
            f"got {'an empty ' if isinstance(subject, (list, tuple)) else ''}{type(subject).__name__}"
        )
    return [each for part in subject for each in _driven(part)]


class BoostSchedule(ABC):
    """The base class of the schedules: sets the boost of all selections in a model, now and at every ``step()``.

    The boosts must be ``Adaptive``, ``Relative`` or ``Fixed``: the schedule sets their c. In place of the model may be
    a boost whose c is a tensor, or a list of models and boosts.
    """

    def __init__(self, model: Subject, steps: int) -> None:
        self.steps = check_whole(steps, "steps")
        self.last_step = 0
        self._layers = _driven(model)
        for layer in self._layers:
            if not hasattr(layer, "sharpness"):
                raise TypeError(f"a schedule needs boosts that are Adaptive, Relative or Fixed; got {layer.boost!r}")

    @abstractmethod
    def boost_at(self, progress: float) -> float:
        """The boost after this fraction of the steps, from 0 to 1; of the first layer, if the layers differ."""

    def step(self) -> None:
        """Set the next boost; call it after each ``optimizer.step()``. After the last step the boost stays as it is."""
        self.last_step += 1
        self._set()

    def get_last_boost(self) -> float:
        """The boost that was set last; that of the first layer, if the layers differ."""
        return self.boost_at(self._progress())

    def _progress(self) -> float:
        return min(self.last_step / self.steps, 1.0)

    def _boost_of(self, layer: Driven) -> float:  # noqa: ARG002
        """The boost to set in a layer."""
        return self.get_last_boost()

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
        with torch.no_grad():
            for layer in self._layers:
                layer.sharpness.fill_(self._boost_of(layer))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(step {self.last_step} of {self.steps}, boost {self.get_last_boost():.3g})"


class ConstantBoost(BoostSchedule):
    """A constant boost, with the interface of a schedule.

    >>> import knockout
    >>> knockout.nn.ConstantBoost(knockout.nn.TopK(4), boost=2.0)
    ConstantBoost(step 0 of 1, boost 2)
    """

    def __init__(self, model: Subject, boost: float = 4.0) -> None:
        super().__init__(model, 1)
        check_positive(boost, "boost")
        self.boost = float(boost)
        self._set()

    def boost_at(self, progress: float) -> float:  # noqa: ARG002
        return self.boost


class _StartToEnd(BoostSchedule):
    """The base class of schedules that lead from one boost to another.

    A start of None is, for an ``Adaptive`` boost, the c that it was made with, and ``START`` for the others. (Not the
    current c, which in a model that was loaded is that of a later step.) An end of None is ``RISE`` times the start.
    """

    START, RISE = 0.5, 16.0

    def __init__(self, model: Subject, steps: int, start: float | None = None, end: float | None = None) -> None:
        super().__init__(model, steps)
        if start is not None:
            check_positive(start, "start")
        if end is not None:
            check_positive(end, "end")
        self.start, self.end = start, end
        self._set()

    @abstractmethod
    def _between(self, start: float, end: float, progress: float) -> float:
        """The boost after this fraction of the steps, from this start to this end."""

    def boost_at(self, progress: float) -> float:
        return self._between(*self._ends(self._layers[0]), progress)

    def _boost_of(self, layer: Driven) -> float:
        return self._between(*self._ends(layer), self._progress())

    def _ends(self, layer: Driven) -> tuple[float, float]:
        start = self.start
        if start is None:
            start = float(layer._boost.c) if isinstance(layer._boost, Adaptive) else self.START
        return start, self.RISE * start if self.end is None else self.end


class Sharpen(_StartToEnd):
    """``start`` for the fraction ``hold`` of the steps, then an exponential rise to ``end``.

    ``start`` is by default the c that a layer with an ``Adaptive`` boost was made with, for other boosts 0.5. ``end``
    is by default sixteen times that, where choices are nearly hard.

    >>> import knockout
    >>> schedule = knockout.nn.Sharpen(knockout.nn.TopK(4), steps=1000, start=0.5)
    >>> [schedule.boost_at(progress) for progress in (0.0, 0.5, 0.75, 1.0)]
    [0.5, 0.5, 2.0, 8.0]
    """

    def __init__(
        self, model: Subject, steps: int, start: float | None = None, end: float | None = None, hold: float = 0.5
    ) -> None:
        if isinstance(hold, bool) or not isinstance(hold, (int, float)) or not 0 <= hold <= 1:
            raise ValueError(f"hold must be a number from 0 to 1, a part of the steps; got {hold!r}")
        self.hold = hold
        super().__init__(model, steps, start, end)

    def _between(self, start: float, end: float, progress: float) -> float:
        rise = max(0.0, progress - self.hold) / (1.0 - self.hold) if self.hold < 1 else 0.0
        return start * math.pow(end / start, rise)


class LinearBoost(_StartToEnd):
    """A linear rise from ``start``, by default that of ``Sharpen``, to ``end``.

    >>> import knockout
    >>> knockout.nn.LinearBoost(knockout.nn.TopK(4), steps=100, start=1.0, end=5.0).boost_at(0.25)
    2.0
    """

    def _between(self, start: float, end: float, progress: float) -> float:
        return start + (end - start) * progress


class CosineBoost(_StartToEnd):
    """A rise from ``start``, by default that of ``Sharpen``, to ``end`` along half a cosine, slow at both ends.

    >>> import knockout
    >>> knockout.nn.CosineBoost(knockout.nn.TopK(4), steps=100, start=1.0, end=5.0).boost_at(0.5)
    3.0
    """

    def _between(self, start: float, end: float, progress: float) -> float:
        return start + (end - start) * (1.0 - math.cos(math.pi * progress)) / 2.0
