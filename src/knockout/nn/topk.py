"""The operator as a module, with k, the boost and the mode of evaluation as its settings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from knockout.boost import DEFAULT, Adaptive, Boost, Fixed, Relative
from knockout.checks import check_choice, check_flag, check_k, check_scores_and_mask, join_scores
from knockout.counts import check_counts, check_selection
from knockout.functional import Order, TopKResult, check_arguments, select, select_and_apply
from knockout.hard import hard_selection
from knockout.nn.calibration import boost_and_buffers, measured_unit
from knockout.nn.output import Output, check_output, choose_output
from knockout.quota import DENOMINATOR, Quota
from knockout.reporting import remember
from knockout.rows import RowSource
from knockout.selection import Selection
from knockout.selection_tensors import Origin
from knockout.torch_private import is_transforming
from knockout.tracing import NoTorchScript, is_readable, refuse_torchscript


class TopK(NoTorchScript):
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

    By default the layer calibrates itself: its boost is ``Adaptive``, with a unit measured on the first batch in
    training mode. So the choice starts equally soft at any scale of the scores, and sharpens as they spread.

    >>> layer = knockout.nn.TopK(k=2)
    >>> layer
    TopK(k=2, boost=Adaptive(c=..., unit=<measured on the first training batch>, alpha=1.5))
    >>> out = layer(values, scores)
    >>> bool(layer.unit > 0)
    True

    The unit is the buffer ``unit``, 0 until it is measured. The ``state_dict`` contains it, so a layer that was loaded
    does not measure again. In evaluation mode and inside of ``torch.func`` transforms nothing is measured; a unit that
    is not known yet is then that of the default boost of ``knockout.topk``. Whether gradients are enabled does not
    matter: a checkpointed pass runs first without, then with them. To measure by hand, or anew: ``calibrate``.

    The c of a ``Relative``, ``Fixed`` or ``Adaptive`` boost is the buffer ``sharpness``: a schedule changes it
    (``knockout.nn.Sharpen``), and ``torch.compile`` does not compile again for a new number. To set c and unit by hand,
    assign ``layer.boost``.

    Args:
        k: how many to select: an int, or a fraction of the active candidates of each row. Unlike for ``knockout.topk``,
            an int may be above n: then all candidates are selected.
        boost: how decisively the better candidate of a pair wins, as for ``knockout.topk``; None: see above. No other
            boost is measured: ``Adaptive(c, unit)`` keeps its unit.
        order: the order of the slots, "score" or "position".
        hard: straight-through in training: hard choices forward, soft gradients backward.
        hard_eval: whether choices are hard in evaluation mode; None: as in training. They are then the true top k, as
            of ``torch.topk``, and the scores get no gradient.
        gate: whether to multiply the values by ``Selection.gates``: the next layer then sees how sure the choice was.
        output: what to return: None for all, the name of one result, such as "values", for that tensor alone, or a
            tuple of names for a tuple of tensors.
    """

    sharpness: Tensor
    unit: Tensor
    _made: Adaptive | None = None  # the boost of the last call

    def __init__(
        self,
        k: int | float,
        boost: float | Tensor | Boost | None = None,
        order: Order = "score",
        hard: bool = False,
        hard_eval: bool | None = None,
        gate: bool = False,
        output: Output = None,
    ) -> None:
        super().__init__()
        self.k = check_k(k)
        self.output = check_output(output, TopKResult._fields)
        check_flag(gate, "gate")
        self.gate = gate
        # A fraction as an integer numerator: torch.compile would treat a float as a dynamic input.
        self._numerator = Quota.of_fraction(self.k, 1).numerator if isinstance(self.k, float) else 0
        check_choice(order, "order", ("score", "position"))
        self.order: Order = order
        check_flag(hard, "hard")
        self.hard = hard
        self.hard_eval = hard_eval
        if hard_eval is not None:
            check_flag(hard_eval, "hard_eval")
        self._boost, numbers = boost_and_buffers(boost)
        for name, number in numbers.items():
            self.register_buffer(name, torch.tensor(number, dtype=torch.float32 if name == "unit" else None))

    @property
    def boost(self) -> Boost:
        """The current boost; one whose unit was not measured yet has that of the default boost."""
        if isinstance(self._boost, Adaptive):
            if is_readable(self.unit):
                return replace(self._boost, c=self.sharpness, unit=self.unit.item() or DEFAULT.unit)
            return replace(self._boost, c=self.sharpness, unit=torch.where(self.unit > 0, self.unit, DEFAULT.unit))
        if isinstance(self._boost, (Relative, Fixed)):
            return replace(self._boost, c=self.sharpness)
        return self._boost

    @boost.setter
    def boost(self, boost: float | Tensor | Boost | None) -> None:
        made, numbers = boost_and_buffers(boost)
        if not isinstance(made, type(self._boost)):
            kind = type(self._boost).__name__
            raise TypeError(f"boost must remain {kind}, or be passed when the layer is made; got {made!r}")
        self._boost = made
        with torch.no_grad():
            for name, number in numbers.items():
                getattr(self, name).fill_(number)

    def calibrate(self, scores: Tensor | Iterable[Tensor] | None = None, mask: Tensor | None = None) -> None:
        """Measure the unit of an ``Adaptive`` boost from scores (..., n) now, in any mode.

        Without scores: forget the unit, so that the next batch in training mode measures it.

        >>> import torch, knockout
        >>> layer = knockout.nn.TopK(k=2)
        >>> layer.calibrate(torch.randn(16, 100))
        >>> layer.boost
        Adaptive(c=..., unit=..., alpha=1.5)
        """
        if not isinstance(self._boost, Adaptive):
            raise TypeError(f"only the unit of an Adaptive boost, the default, can be measured; got {self.boost!r}")
        if scores is None:
            if mask is not None:
                raise ValueError("mask must come with scores; got a mask alone. To measure again: calibrate()")
            self.unit.zero_()
            return
        if not isinstance(scores, Tensor):
            scores = join_scores(scores)
        check_scores_and_mask(scores, mask)
        unit = measured_unit(scores, mask, self.unit.dtype) if scores.shape[-1] else scores.new_zeros(())
        if not unit.is_meta and not unit > 0:
            raise ValueError(
                "scores must have a row with two or more active candidates and no NaN or inf, to measure their spread; "
                f"got none in shape {tuple(scores.shape)}"
            )
        self.unit.copy_(unit)

    def select(
        self, scores: Tensor | Iterable[Tensor], mask: Tensor | None = None, k: Tensor | None = None
    ) -> Selection:
        """Scores (..., n), or chunks of them -> the Selection, which can be applied to any number of tensors.

        ``k``: how many each row selects in this call, as for ``forward``.
        """
        if not isinstance(scores, Tensor):
            scores = join_scores(scores)
        (k_now, max_k), hard = self._slots(scores, k), self._is_hard()
        boost = self._measured_boost(scores, k_now, max_k, mask)
        if self._takes_true_top_k():
            # Not the leaders of a tournament, which need not be the true top k. Gates take the unit of the boost.
            scores = scores.detach()
            quota, active = check_selection(scores, k_now, mask, max_k)
            return hard_selection(scores, quota, active, self.order == "position", Origin(scores, mask, boost))
        selection = select(scores, k_now, boost, mask, self.order, hard, max_k)
        if self._reports():
            remember(self, selection)
        return selection

    def _slots(self, scores: Tensor, k: Tensor | None) -> tuple[int | float | Tensor, int | None]:
        """The k and the max_k of ``knockout.select``."""
        refuse_torchscript()  # before sizes are looked at
        if k is None:
            return self._numerator / DENOMINATOR if self._numerator else min(self.k, scores.shape[-1]), None
        if not isinstance(self.k, int):
            raise TypeError(
                f"k must be None for a layer whose own k is a fraction, {self.k}; got {type(k).__name__}. Make the "
                "layer with an int, the most that a row may select"
            )
        check_counts(k, self.k, "the k of the layer")
        max_k = min(self.k, scores.shape[-1])
        return k.clamp(max=max_k), max_k

    def _is_hard(self) -> bool:
        return self.hard if self.training or self.hard_eval is None else self.hard_eval

    def _takes_true_top_k(self) -> bool:
        """Whether choices are hard now, and this is no training: no gradient reaches the scores."""
        return not self.training and self._is_hard()

    def _reports(self) -> bool:
        """Whether a selection is a training step, which ``knockout.report`` tells about."""
        return self.training and torch.is_grad_enabled()

    def _measured_boost(self, scores: Tensor, k: int | float | Tensor, max_k: int | None, mask: Tensor | None) -> Boost:
        """The current boost, with a unit that is measured now if it has to be; its numbers as floats if at hand."""
        if not isinstance(self._boost, Adaptive):
            return self.boost
        unit, sharpness = self.unit, self.sharpness
        readable = is_readable(unit)
        number = unit.item() if readable else 0.0
        # There is no number in a meta tensor, and one for each part of a vmap.
        measures = self.training and not number and not is_transforming() and (unit.is_meta or not scores.is_meta)
        if measures:
            check_selection(scores, k, mask, max_k)
            self._measure(scores, mask)
            number = unit.item() if readable else 0.0
        if not (readable and number and is_readable(sharpness)):
            return self.boost
        numbers = sharpness.item(), number
        if self._made is None or (self._made.c, self._made.unit) != numbers:
            # To make and check a boost takes longer than a small selection.
            self._made = replace(self._boost, c=numbers[0], unit=numbers[1])
        return self._made

    def _measure(self, scores: Tensor, mask: Tensor | None) -> None:
        unit = measured_unit(scores, mask, self.unit.dtype).to(self.unit.device)
        with torch.no_grad():
            self.unit.copy_(torch.where(self.unit > 0, self.unit, unit))

    def forward(
        self,
        values: Tensor | RowSource,
        scores: Tensor | Iterable[Tensor],
        mask: Tensor | None = None,
        k: Tensor | None = None,
    ) -> Any:
        """Values (..., n, d), scores (..., n), mask (..., n) -> a ``TopKResult``, or what ``output`` names of it.

        A row source instead of values, and chunks instead of scores, are taken as by ``knockout.topk``. ``k``: an
        integer tensor (...,), how many each row selects in this call: from 0 to the k of the layer, which must be an
        int. The result has the layer's number of slots in any case.
        """
        if not isinstance(scores, Tensor) or not isinstance(values, Tensor) or self.gate or self._is_hard():
            picked = self.select(scores, mask, k)
            out = self.pick(picked, values)
            return choose_output(TopKResult(out, picked.scores, picked.indices, picked.mask), self.output)
        k_now, max_k = self._slots(scores, k)
        quota, active = check_arguments(values, scores, k_now, mask, max_k)
        boost = self._measured_boost(scores, k_now, max_k, mask)
        out, picked = select_and_apply(values, scores, quota, boost, active, self.order, False, members=self._reports())
        if self._reports():
            remember(self, picked)
        return choose_output(TopKResult(out, picked.scores, picked.indices, picked.mask), self.output)

    def pick(self, picked: Selection, values: Tensor | RowSource) -> Tensor:
        """A selection applied to values (..., n, d), with gates if the layer has them: (..., k, d)."""
        out = picked.apply(values)
        if not self.gate:
            return out
        return out * picked.gates().unsqueeze(-1).to(out.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TopK:
        unit = self._buffers.get("unit")
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if unit is not None and self.unit.dtype != torch.float32:
            # Half precision might round it to 0, which would mean that it was not measured, or to infinity.
            self.unit = unit.to(self.unit.device, torch.float32)
        return self

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing_keys: Any, *more: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, *more)
        if f"{prefix}unit" in missing_keys and f"{prefix}sharpness" in state_dict:
            # Strict loading raises an error for the missing key; other loading would go on without a word.
            warnings.warn(
                f"the state_dict has {prefix}sharpness but no {prefix}unit: its boost was not Adaptive, and the same "
                "numbers choose otherwise. Make the layer with the boost that it had; boost=4.0 was once the default",
                stacklevel=2,
            )

    def extra_repr(self) -> str:
        boost = repr(self.boost)
        if isinstance(self._boost, Adaptive) and is_readable(self.unit) and not self.unit.item():
            # The unit is not the one that evaluation takes meanwhile.
            number = f"{self.sharpness.item()}, unit=<measured on the first training batch>, alpha={self._boost.alpha}"
            boost = f"Adaptive(c={number})"
        settings = [f"k={self.k}", f"boost={boost}"]
        settings += [f"order={self.order!r}"] * (self.order != "score")
        settings += ["hard=True"] * self.hard
        settings += [f"hard_eval={self.hard_eval}"] * (self.hard_eval is not None)
        settings += ["gate=True"] * self.gate
        settings += [f"output={self.output!r}"] * (self.output is not None)
        return ", ".join(settings)


def topk_layers(model: nn.Module) -> list[TopK]:
    """All ``TopK`` modules of a model, those inside of pools included."""
    return [layer for layer in model.modules() if isinstance(layer, TopK)]


@contextmanager
def evaluate_hard(model: nn.Module, hard: bool = True) -> Iterator[None]:
    """Make all selections of a model hard (or soft) in evaluation mode, within a ``with`` block; it may have none.

    To measure what hard choices cost after soft training, evaluate twice:

    >>> import torch, knockout
    >>> pool = knockout.nn.TokenPool(8, k=4).eval()
    >>> x = torch.randn(2, 16, 8)
    >>> with knockout.nn.evaluate_hard(pool):
    ...     hard = pool(x).x
    >>> gap = (pool(x).x - hard).norm() / hard.norm()  # how far the soft result is from the hard one
    """
    check_flag(hard, "hard")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module; got {type(model).__name__}")
    layers = topk_layers(model)
    before = [layer.hard_eval for layer in layers]
    for layer in layers:
        layer.hard_eval = hard
    try:
        yield
    finally:
        for layer, setting in zip(layers, before, strict=True):
            layer.hard_eval = setting
