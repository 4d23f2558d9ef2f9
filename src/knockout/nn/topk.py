"""The operator as a module, with k, the boost and the mode of evaluation as its settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from knockout.boost import Boost, Fixed, Relative, as_boost
from knockout.checks import check_choice, check_flag, check_k, join_scores
from knockout.functional import Order, TopKResult, select
from knockout.quota import DENOMINATOR, Quota
from knockout.rows import RowSource
from knockout.selection import Selection


class TopK(nn.Module):
    """``knockout.topk`` as a module.

    >>> import torch, knockout
    >>> layer = knockout.nn.TopK(k=2, boost=2.0, hard_eval=True)
    >>> layer
    TopK(k=2, boost=Relative(c=2.0, unit=1.0, alpha=1.5), hard_eval=True)
    >>> values, scores = torch.eye(4), torch.tensor([0.1, 0.9, 0.7, 0.3])
    >>> layer(values, scores).values
    tensor([[0.0335, 0.9665, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.7713, 0.2287]])
    >>> layer.eval()(values, scores).values
    tensor([[0., 1., 0., 0.],
            [0., 0., 1., 0.]])

    The c of a ``Relative`` or ``Fixed`` boost is the buffer ``sharpness``: the ``state_dict`` contains it, a schedule
    changes it (``knockout.nn.Sharpen``), and ``torch.compile`` does not compile again for a new number. To set it by
    hand, assign ``layer.boost``.

    Args:
        k: how many to select: an int, or a fraction of the active candidates of each row. Unlike for ``knockout.topk``,
            an int may be above n: then all candidates are selected.
        boost: how decisively the better candidate of a pair wins, as for ``knockout.topk``.
        order: the order of the slots, "score" or "position".
        hard: straight-through in training: hard choices forward, soft gradients backward.
        hard_eval: whether choices are hard in evaluation mode; None: as in training.
    """

    sharpness: Tensor

    def __init__(
        self,
        k: int | float,
        boost: float | Boost = 4.0,
        order: Order = "score",
        hard: bool = False,
        hard_eval: bool | None = None,
    ) -> None:
        super().__init__()
        self.k = check_k(k)
        # A fraction as an integer numerator: torch.compile would treat a float as a dynamic input.
        self._numerator = Quota.of_fraction(self.k, 1).numerator if isinstance(self.k, float) else 0
        check_choice(order, "order", ("score", "position"))
        self.order: Order = order
        check_flag(hard, "hard")
        self.hard = hard
        self.hard_eval = hard_eval
        if hard_eval is not None:
            check_flag(hard_eval, "hard_eval")
        self._boost = as_boost(boost, torch.device("cpu"))
        if isinstance(self._boost, (Relative, Fixed)):
            self.register_buffer("sharpness", torch.tensor(float(self._boost.c)))

    @property
    def boost(self) -> Boost:
        """The current boost."""
        if isinstance(self._boost, (Relative, Fixed)):
            return replace(self._boost, c=self.sharpness)
        return self._boost

    @boost.setter
    def boost(self, boost: float | Boost) -> None:
        boost = as_boost(boost, torch.device("cpu"))
        if not isinstance(boost, type(self._boost)):
            raise TypeError(f"boost must remain a {type(self._boost).__name__}; got {boost!r}")
        self._boost = boost
        if isinstance(boost, (Relative, Fixed)):
            with torch.no_grad():
                self.sharpness.fill_(float(boost.c))

    def select(self, scores: Tensor | Iterable[Tensor], mask: Tensor | None = None) -> Selection:
        """Scores (..., n), or chunks of them -> the Selection, which can be applied to any number of tensors."""
        if not isinstance(scores, Tensor):
            scores = join_scores(scores)
        k = self._numerator / DENOMINATOR if self._numerator else min(self.k, scores.shape[-1])
        hard = self.hard if self.training or self.hard_eval is None else self.hard_eval
        return select(scores, k, self.boost, mask, self.order, hard)

    def forward(
        self, values: Tensor | RowSource, scores: Tensor | Iterable[Tensor], mask: Tensor | None = None
    ) -> TopKResult:
        """Values (..., n, d), scores (..., n), mask (..., n) -> (values (..., k, d), scores, indices, mask).

        A row source instead of values, and chunks instead of scores, are taken as by ``knockout.topk``.
        """
        picked = self.select(scores, mask)
        return TopKResult(picked.apply(values), picked.scores, picked.indices, picked.mask)

    def extra_repr(self) -> str:
        boost = self.boost
        settings = [f"k={self.k}", f"boost={boost!r}"]
        settings += [f"order={self.order!r}"] * (self.order != "score")
        settings += ["hard=True"] * self.hard
        settings += [f"hard_eval={self.hard_eval}"] * (self.hard_eval is not None)
        return ", ".join(settings)


def topk_layers(model: nn.Module) -> list[TopK]:
    """All ``TopK`` modules of a model, those inside of pools included."""
    return [layer for layer in model.modules() if isinstance(layer, TopK)]


@contextmanager
def evaluate_hard(model: nn.Module, hard: bool = True) -> Iterator[None]:
    """Make all selections of a model hard (or soft) in evaluation mode, within a ``with`` block.

    To measure what hard choices cost after soft training, evaluate twice:

    >>> import torch, knockout
    >>> pool = knockout.nn.TokenPool(8, k=4).eval()
    >>> x = torch.randn(2, 16, 8)
    >>> with knockout.nn.evaluate_hard(pool):
    ...     hard = pool(x).x
    >>> gap = (pool(x).x - hard).norm() / hard.norm()  # how far the soft result is from the hard one
    """
    check_flag(hard, "hard")
    layers = topk_layers(model)
    before = [layer.hard_eval for layer in layers]
    for layer in layers:
        layer.hard_eval = hard
    try:
        yield
    finally:
        for layer, setting in zip(layers, before, strict=True):
            layer.hard_eval = setting
