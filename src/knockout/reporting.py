"""Does the scorer learn? ``report`` answers in numbers that a logger takes, for a selection or for a whole model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from knockout.checks import check_device
from knockout.methods.khot_plan import GatedPlan
from knockout.methods.softmax_plan import RankedPlan
from knockout.plan import SparsePlan
from knockout.selection import Selection
from knockout.torch_private import is_transforming

__all__ = ["remember", "report"]


@torch.no_grad()
def report(subject: Selection | nn.Module, before: Tensor | None = None) -> dict[str, float]:
    """How much a scorer can learn from a selection, or from the last training step of a model, for a logger.

    >>> import torch, knockout
    >>> scores = torch.tensor([[3.0, 2.0, 1.5, 0.0], [9.0, 8.0, 0.5, 0.0]])
    >>> for name, value in knockout.report(knockout.select(scores, k=2, boost=4.0)).items():
    ...     print(f"{name:24} {value:.3f}")
    rows_with_gradient       0.500
    candidates_with_gradient 0.250
    perplexity               1.118
    soft_hard_gap            0.033

    ============================  ====================================================================================
    ``rows_with_gradient``        the share of rows in which a slot is a blend. Where none is, all pairs are decided,
                                  and the scores get no gradient through the values
    ``candidates_with_gradient``  the share of active candidates that carry weight in a slot that is a blend
    ``perplexity``                the effective number of candidates in a slot, mean over the filled slots: 1 is decided
    ``soft_hard_gap``             1 - the leader's share of the weight of its slot, mean over the filled slots: 0 means
                                  that the soft choice is the hard one
    ``leaders_changed``           with ``before``: the share of leaders that did not lead a slot of the same row before
    ============================  ====================================================================================

    Rows with nothing to choose, because no more candidates are active than slots are filled, are left out, and so are
    rows with a NaN or +inf score. A number that nothing is left for, or that cannot be told, is left out too: none is
    NaN. A straight-through selection has the numbers of the soft selection whose gradients it has. It works with or
    without gradients, and waits for the device once, at the end.

    For a model: the last selection of each ``knockout.nn`` layer in training mode, with gradients enabled. Each name
    follows that of its ``TopK``, as in ``"encoder.pools.0.topk/perplexity"``. Layers remember it without its graph, and
    outside of the ``state_dict``; compiled code does not. So ``logger.log(knockout.report(model))`` can follow any
    training step.

    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), knockout.nn.TokenPool(16, k=4))
    >>> knockout.report(model)
    {}
    >>> loss = model(torch.randn(2, 32, 8)).x.square().mean()
    >>> list(knockout.report(model))[:2]
    ['1.topk/rows_with_gradient', '1.topk/candidates_with_gradient']

    Args:
        subject: a ``Selection``, or a model with layers of ``knockout.nn``. For ``knockout.methods`` that weigh all
            candidates in each slot, "a blend" means two candidates with weight. Those that give masks or gates have no
            blends, and no shares of rows and candidates; the gap of a mask is what it has outside of the leaders.
        before: for a selection: the ``indices`` (..., k) of an earlier one, from the same inputs. Keep a batch for it:
            the leaders of two different batches say nothing about the scorer.
    """
    if isinstance(subject, Selection):
        return _means(_ratios(_slots(subject), subject.indices, _check_before(before, subject)))
    if not isinstance(subject, nn.Module):
        raise TypeError(
            f"report takes a knockout.Selection, as of knockout.select or pooled.selection, or a model with layers of "
            f"knockout.nn; got {type(subject).__name__}"
        )
    if before is not None:
        raise ValueError(
            "before must be None for a model: the leaders of different batches cannot be compared. Pass a selection "
            "of a fixed batch, such as pooled.selection, and the indices of an earlier one"
        )
    from knockout.nn.topk import TopK  # not above: it imports this module

    layers = {name: layer for name, layer in subject.named_modules() if isinstance(layer, TopK)}
    if not layers:
        raise ValueError(
            f"a model must contain a knockout.nn.TopK or TokenPool for a report; got a {type(subject).__name__} "
            f"without one"
        )
    seen = [(name, _LAST[layer]) for name, layer in layers.items() if layer in _LAST]
    return _means(
        _Ratio(f"{name}/{each.name}" if name else each.name, each.total, each.number)
        for name, last in seen
        for each in _ratios(last.slots())
    )


class _Last(NamedTuple):
    """The last selection of a layer: what a report needs of it, without its graph."""

    weight: Tensor  # (*batch, k, m), the leader first
    filled: Tensor  # (*batch, k)
    valid: Tensor  # (*batch, 1)
    scores: Tensor  # (..., n)
    mask: Tensor | None  # (..., n)

    def slots(self) -> _Slots:
        return _of_tournament(self.weight, self.filled, self.valid, _active_count(self.scores, self.mask))


# Beside the layers, not in them: so it is not saved, copied or moved with a model, and goes with its layer.
_LAST: WeakKeyDictionary[nn.Module, _Last] = WeakKeyDictionary()


def remember(layer: nn.Module, selection: Selection) -> None:
    """Keep the tensors of a layer's selection until its next one: two numbers per candidate, and no computation.

    Not in compiled code, where this would be one more output of every graph, nor under a transform or with tensors that
    have no numbers.
    """
    if torch.compiler.is_compiling() or is_transforming():
        return
    plan, origin = selection._plan, selection._origin
    if isinstance(plan, SparsePlan) and origin is not None and type(plan.weight) is Tensor and not plan.weight.is_meta:
        _LAST[layer] = _Last(plan.weight.detach(), selection.mask, plan.valid, origin.scores.detach(), origin.mask)


class _Slots(NamedTuple):
    """What a report needs to know of the slots of any selection; None where it cannot be told."""

    filled: Tensor  # (*batch, k) bool
    valid: Tensor  # (*batch, 1) bool
    perplexity: Tensor  # (*batch, k)
    leader_share: Tensor | None = None  # (*batch, k): of the weight of the slot
    blended: Tensor | None = None  # (*batch, 1): how many candidates have weight in slots of two or more
    active: Tensor | None = None  # (*batch, 1): how many candidates are active


def _slots(selection: Selection) -> _Slots:
    plan, origin = selection._checked_plan(), selection._origin
    filled, valid = selection.mask, plan.valid
    if isinstance(plan, GatedPlan):
        weight = None if type(plan) is GatedPlan else plan.weight[..., 0]  # gates, unlike masks, may be above 1
        return _Slots(filled, valid, plan.entropy().exp(), weight)
    if isinstance(plan, SparsePlan):
        active = None if origin is None else _active_count(origin.scores, origin.mask)
        return _of_tournament(plan.weight, filled, valid, active)
    slots = _Slots(filled, valid, plan.entropy().exp())
    return _with_all_weights(slots, plan, selection.indices) if isinstance(plan, RankedPlan) else slots


def _of_tournament(weight: Tensor, filled: Tensor, valid: Tensor, active: Tensor | None) -> _Slots:
    """Slots with weights (*batch, k, m), the leader's first, where no candidate is in two slots."""
    support = (weight != 0).sum(dim=-1)
    blended = torch.where(support > 1, support, 0).sum(dim=-1, keepdim=True)
    return _Slots(filled, valid, torch.special.entr(weight).sum(dim=-1).exp(), weight[..., 0], blended, active)


def _with_all_weights(slots: _Slots, plan: RankedPlan, leader: Tensor) -> _Slots:
    """The same for a plan that weighs all candidates in each slot, and computes some slots at a time."""
    leader, in_blend, weights = leader.clamp(min=0), torch.zeros_like(plan.active), []
    for start, stop in plan._chunks():
        weight = plan.slot_weights(start, stop)
        has_weight = weight != 0
        in_blend |= (has_weight & (has_weight.sum(dim=-1, keepdim=True) > 1)).any(dim=-2)
        leads = weight.gather(-1, leader[..., start:stop, None]).squeeze(-1)
        weights.append(leads / weight.sum(dim=-1))  # shares: not all methods have weights that sum to 1
    blended, active = (each.sum(dim=-1, keepdim=True) for each in (in_blend, plan.active))
    return slots._replace(leader_share=torch.cat(weights, dim=-1), blended=blended, active=active)


def _active_count(scores: Tensor, mask: Tensor | None) -> Tensor:
    active = scores != -torch.inf
    return (active if mask is None else active & mask).sum(dim=-1, keepdim=True)


class _Ratio(NamedTuple):
    """A number of a report, as a sum and how many were added: tensors without dimensions, not fetched yet."""

    name: str
    total: Tensor
    number: Tensor


def _ratios(slots: _Slots, leader: Tensor | None = None, before: Tensor | None = None) -> list[_Ratio]:
    chooses = slots.valid
    if slots.active is not None:
        chooses = chooses & (slots.active > slots.filled.sum(dim=-1, keepdim=True))
    counted = slots.filled & chooses
    found: list[_Ratio] = []
    if slots.active is not None and slots.blended is not None:
        blended, active = (torch.where(chooses, each, 0) for each in (slots.blended, slots.active))
        found.append(_Ratio("rows_with_gradient", (blended > 0).sum(), chooses.sum()))
        found.append(_Ratio("candidates_with_gradient", blended.sum(), active.sum()))
    found.append(_Ratio("perplexity", torch.where(counted, slots.perplexity, 0.0).sum(), counted.sum()))
    if slots.leader_share is not None:
        gap = torch.where(counted, 1.0 - slots.leader_share, 0.0)
        found.append(_Ratio("soft_hard_gap", gap.sum(), counted.sum()))
    if leader is not None and before is not None:
        # Looked up rather than compared with each other, which would take k * k of them.
        ordered = before.contiguous().sort(dim=-1).values
        place = torch.searchsorted(ordered, leader.contiguous()).clamp(max=ordered.shape[-1] - 1)
        changed = counted & (ordered.gather(-1, place) != leader)
        found.append(_Ratio("leaders_changed", changed.sum(), counted.sum()))
    return found


def _means(ratios: Iterable[_Ratio]) -> dict[str, float]:
    """All of them as numbers, fetched from their device at once; those of nothing are left out."""
    ratios = list(ratios)
    if not ratios:
        return {}
    device = ratios[0].total.device
    dtype = torch.float32 if device.type == "mps" else torch.float64
    rows = torch.stack([torch.stack([each.total, each.number]).to(device, dtype) for each in ratios]).tolist()
    return {each.name: total / number for each, (total, number) in zip(ratios, rows, strict=True) if number}


def _check_before(before: Tensor | None, selection: Selection) -> Tensor | None:
    if before is None:
        return None
    wanted = f"before must be the indices of an earlier selection, int64 of shape {tuple(selection.indices.shape)}"
    if not isinstance(before, Tensor):
        raise TypeError(f"{wanted}; got {type(before).__name__}")
    if before.dtype != torch.int64 or before.shape != selection.indices.shape:
        raise ValueError(f"{wanted}; got {before.dtype} of shape {tuple(before.shape)}")
    check_device(before, "before", selection.indices.device, "the selection")
    return before
