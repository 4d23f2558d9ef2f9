"""The operator: ``select`` makes a plan from scores, ``topk`` also applies it to values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.compiler import is_compiling

from knockout.boost import Boost, as_boost
from knockout.checks import check_choice, check_flag, check_values, join_scores
from knockout.counts import check_selection
from knockout.no_gradient import is_due, look
from knockout.ops.autograd.topk import fuses
from knockout.ops.autograd.topk import topk as fused_topk
from knockout.ops.autograd.tournament import tournament
from knockout.ops.choice import choose
from knockout.plan import SparsePlan
from knockout.quota import Quota
from knockout.results import refuse_as_tensor
from knockout.rows.sources import RowSource, check_source
from knockout.selection import Selection
from knockout.selection_tensors import Origin
from knockout.torch_private import register_namedtuple

__all__ = ["TopKResult", "select", "topk"]

Order = Literal["score", "position"]
ORDERS = get_args(Order)


class TopKResult(NamedTuple):
    """What ``knockout.topk`` returns: the k selected."""

    values: Tensor  # (..., k, d)
    scores: Tensor  # (..., k)
    indices: Tensor  # (..., k) int64, each slot's leader; -1 in an empty slot
    mask: Tensor  # (..., k) bool; False for an empty slot

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> Any:
        refuse_as_tensor(cls, function)


register_namedtuple(TopKResult, serialized_type_name="knockout.TopKResult")


def topk(
    values: Tensor | RowSource,
    scores: Tensor | Iterable[Tensor],
    k: int | float | Tensor,
    boost: float | Tensor | Boost | None = None,
    mask: Tensor | None = None,
    order: Order = "score",
    hard: bool = False,
    max_k: int | None = None,
) -> TopKResult:
    """Pass on the k best of n vectors, so that gradients reach the scores.

    The hard twin is ``torch.topk`` followed by a gather; its scores learn nothing:

    >>> import torch, knockout
    >>> values = torch.eye(5)
    >>> scores = torch.tensor([0.1, 0.9, 0.7, 0.6, 0.2], requires_grad=True)
    >>> values[torch.topk(scores, 2).indices]
    tensor([[0., 1., 0., 0., 0.],
            [0., 0., 1., 0., 0.]])
    >>> out = knockout.topk(values, scores, k=2, boost=2.0)
    >>> out.indices
    tensor([1, 2])
    >>> out.values.detach()
    tensor([[0.0000, 1.0000, 0.0000, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.6400, 0.3600, 0.0000]])
    >>> out.values[:, 2].sum().backward()  # more of candidate 2, please
    >>> scores.grad
    tensor([ 0.0000,  0.0000,  1.3714, -1.3714,  0.0000])

    Args:
        values: (..., n, d), any floating dtype; its batch dimensions broadcast with those of scores, by the last of
            them. Flatten more than a vector per candidate: images (..., n, C, H, W) by ``values.flatten(-3)``. Or a
            source of rows (n, d), of which only those that carry weight are read: see ``Selection.apply``.
        scores: (..., n), a score per candidate. If one is NaN or +inf, every output of that row is NaN. Or chunks of
            scores, an iterable of tensors (..., n_i) that are joined in their order; gradients reach each chunk.
        k: how many to select, 1 <= k <= n. Or a fraction between 0 and 1 of the active candidates of each row, rounded
            up. The result has slots for that fraction of all n; those that a row does not fill are empty. Or a count
            for each row: an integer tensor (...,) from 0 to ``max_k``, that broadcasts with the batch dimensions of
            scores; see ``max_k``. With k = n all rows pass, in ``order``, and no gradient reaches the scores through
            the values: there is nothing to choose.
        boost: how decisively the better of a pair wins. To train, use the layers of ``knockout.nn`` with nothing set:
            they measure the scale of the scores. Or leave the boost out, for scores whose spread is about 0.1 to 10
            (the mean gap between their better and their worse half without the widest eighth of the gaps, about 1.3
            standard deviations for normal scores): the default, ``boost.Adaptive(2, 1.5)``, is soft and gives most
            candidates a gradient. To choose sharply, pass a number c, or a tensor without dimensions that holds it:
            that means ``boost.Relative(c)``. With 4, most of a slot is its leader, for scores whose spread is 1 or
            more. For exactly the top k in evaluation: ``hard_eval=True`` of the layers, or ``knockout.methods.hard``.
        mask: (..., n) bool, False for inactive candidates: the result is that without them. A score of -inf means the
            same. A large negative score, such as -1e9, does not: that candidate is active, and sets the scale.
        order: how slots are ordered: by "score", or by "position", the index of the leader, for sequences.
        hard: do not use it to train if k is a small part of n or the scorer starts from nothing, nor by itself to
            choose exactly the top k: for that, in evaluation, ``hard_eval=True`` of the layers, or
            ``knockout.methods.hard``. It is straight-through: the leaders' values and scores unchanged in the forward
            pass, the soft gradients in the backward pass. Leaders win all their pairs. They are the true top k, unless
            the selection is so soft that a blend overtakes a better candidate. With the default boost that happens,
            mostly where the spread of the scores is less than 1: of uniform scores, with 2 of 1024, one leader in nine
            is in the top k.
        max_k: with a tensor k, and only then: the number of slots of the result, 1 <= max_k <= n. A row fills the first
            of them, as many as its count; the others are empty. Counts that are out of range raise an error where
            reading them is free, on the CPU outside of graphs; elsewhere they are clamped.
    """
    if not isinstance(scores, Tensor):
        scores = join_scores(scores)
    if not isinstance(values, Tensor):
        quota, mask = check_selection(scores, k, mask, max_k)
        check_source(values, scores.shape[-1])
        selection = _select(scores, quota, boost, mask, order, hard)
        return TopKResult(selection._plan.read(values), selection.scores, selection.indices, selection.mask)
    quota, mask = check_arguments(values, scores, k, mask, max_k)
    out, selection = select_and_apply(values, scores, quota, boost, mask, order, hard, members=False)
    return TopKResult(out, selection.scores, selection.indices, selection.mask)


def select(
    scores: Tensor | Iterable[Tensor],
    k: int | float | Tensor,
    boost: float | Tensor | Boost | None = None,
    mask: Tensor | None = None,
    order: Order = "score",
    hard: bool = False,
    max_k: int | None = None,
) -> Selection:
    """Make the plan alone: which candidates go to which slot, with which weight; apply it to any number of payloads.

    The hard twin is ``torch.topk(scores, k).indices``:

    >>> import torch, knockout
    >>> scores = torch.tensor([0.1, 0.9, 0.7, 0.3])
    >>> torch.topk(scores, 2).indices
    tensor([1, 2])
    >>> picked = knockout.select(scores, k=2, boost=2.0)
    >>> picked.indices
    tensor([1, 2])
    >>> picked.weights()
    tensor([[0.0335, 0.9665, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.7713, 0.2287]])
    >>> picked.mass()
    tensor([0.0335, 0.9665, 0.7713, 0.2287])

    With a count for each row, rows fill different numbers of slots:

    >>> scores, counts = torch.tensor([[0.1, 0.9, 0.7, 0.3], [0.8, 0.2, 0.6, 0.4]]), torch.tensor([2, 1])
    >>> knockout.select(scores, counts, boost=2.0, max_k=2).indices
    tensor([[ 1,  2],
            [ 0, -1]])

    The arguments are those of ``knockout.topk``.
    """
    if not isinstance(scores, Tensor):
        scores = join_scores(scores)
    quota, mask = check_selection(scores, k, mask, max_k)
    return _select(scores, quota, boost, mask, order, hard)


def check_arguments(
    values: Tensor, scores: Tensor, k: int | float | Tensor, mask: Tensor | None, max_k: int | None = None
) -> tuple[Quota, Tensor | None]:
    """Check values (..., n, d), and the others as ``check_selection``, which says what is returned."""
    quota, mask = check_selection(scores, k, mask, max_k)
    batch = scores.shape[:-1] if mask is None else torch.broadcast_shapes(scores.shape[:-1], mask.shape[:-1])
    check_values(values, batch, scores.shape[-1], scores.device)
    return quota, mask


def select_and_apply(
    values: Tensor, scores: Tensor, quota: Quota, boost: float | Tensor | Boost | None, mask: Tensor | None,
    order: Order, hard: bool, members: bool = True,
) -> tuple[Tensor, Selection]:  # fmt: skip
    """Blended values, and the selection; by one operator where there is one. All but order and hard has been checked.

    Without ``members``, the selection may have nothing but scores, indices and mask.
    """
    check_choice(order, "order", ORDERS)
    check_flag(hard, "hard")
    boost = as_boost(boost, scores.device)
    backend = choose(scores, boost)
    if hard or not fuses(backend, values, scores, mask, quota.counts):
        selection = _play(scores, quota, boost, mask, order, hard, backend)
        return selection._plan.apply(values), selection
    out, *selected = fused_topk(values, scores, mask, quota, boost, order == "position", members, backend)
    return out, _selection(selected, scores, boost, mask, backend)


def _select(
    scores: Tensor, quota: Quota, boost: float | Tensor | Boost | None, mask: Tensor | None, order: Order, hard: bool
) -> Selection:
    check_choice(order, "order", ORDERS)
    check_flag(hard, "hard")
    boost = as_boost(boost, scores.device)
    return _play(scores, quota, boost, mask, order, hard, choose(scores, boost))


def _play(
    scores: Tensor, quota: Quota, boost: Boost, mask: Tensor | None, order: Order, hard: bool, backend: str
) -> Selection:
    selected = tournament(scores, mask, quota, boost, order == "position", backend)
    return _selection(selected, scores, boost, mask, backend, hard)


def _selection(
    selected: Sequence[Tensor], scores: Tensor, boost: Boost, mask: Tensor | None, backend: str, hard: bool = False
) -> Selection:
    """The Selection of a tournament that has been played: see ``Selected`` of reference/tournament.py."""
    member, weight, score, leader, filled, valid = selected
    if weight.requires_grad and not is_compiling() and is_due():
        look(scores, mask, member, filled, valid, boost)
    plan = SparsePlan(scores.shape[-1], valid, member, weight, score, backend=backend)
    if hard:
        leader_score = scores.to(score.dtype).expand(*leader.shape[:-1], -1).gather(-1, leader.clamp(min=0))
        leader_score = torch.where(filled, leader_score, 0.0)
        plan = plan.hardened(torch.where(valid, leader_score, torch.nan))
    return Selection(plan, leader, filled, scores.dtype, Origin(scores, mask, boost))
