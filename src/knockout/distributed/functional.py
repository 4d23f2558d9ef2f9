"""``topk`` and ``select`` for candidates that are distributed over ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, NamedTuple, get_args
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from knockout.boost import Boost, as_boost
from knockout.checks import (
    check_choice,
    check_flag,
    check_k,
    check_scores_and_mask,
    check_values,
    join_scores,
    quota_of,
)
from knockout.counts import MAX_K_NEEDS_COUNTS, check_max_k, check_most, counts_of
from knockout.distributed.agreement import agree
from knockout.distributed.call import Call, Reduction, Settings, SlotPlacement
from knockout.distributed.dtensor import layout_of, local_part
from knockout.distributed.ranks import Ranks
from knockout.distributed.selection import DistributedSelection
from knockout.distributed.tournament import tournament
from knockout.functional import Order, TopKResult
from knockout.ops.boost_code import KINDS
from knockout.ops.choice import choose
from knockout.plan import SparsePlan
from knockout.quota import Quota
from knockout.rows.sources import RowSource, check_source, reader_of
from knockout.selection import Selection


@torch.compiler.disable
def topk(
    values: Tensor | RowSource,
    scores: Tensor | Iterable[Tensor],
    k: int | float | Tensor,
    boost: float | Tensor | Boost | None = None,
    mask: Tensor | None = None,
    order: Order = "score",
    hard: bool = False,
    group: dist.ProcessGroup | None = None,
    slots: SlotPlacement = "replicated",
    reduction: Reduction = "mean",
    max_k: int | None = None,
) -> TopKResult:
    """``knockout.topk`` of candidates that are distributed over ranks: every rank of a group passes its own candidates.

    Results and gradients are those of a single process that has the candidates of rank 0, rank 1, ... in this order.
    ``indices`` count through all of them. Values stay on their ranks: each rank sends k * d numbers and a part of its
    scores, a smaller one for a sharper boost.

    The hard twin is ``torch.topk`` and a gather of all values of all ranks.

    All ranks must make the call, with the same arguments except for their candidates, and all must call ``backward``.
    If a rank raises an error, dies or does not respond, all ranks raise an error (the others a ``RankError``), within
    the timeout of the group.

    Args:
        values: (..., n, d), the values of this rank's candidates, as for ``knockout.topk``.
        scores: (..., n), or chunks of them. n may differ between ranks, and may be 0. The batch dimensions must be the
            same on all ranks.
        k: how many of the candidates of all ranks to select, or a fraction of them; or, with ``max_k``, a count for
            each row, an ordinary tensor (...,) that is the same on all ranks.
        boost: as for ``knockout.topk``.
        mask: (..., n) bool, for this rank's candidates, as for ``knockout.topk``.
        order: as for ``knockout.topk``.
        hard: as for ``knockout.topk``.
        group: a process group; None for all processes. Must be None for DTensors: their mesh has the group.
        slots: "replicated": every rank gets all k slots. "sharded": each rank gets a part, divided as by
            ``torch.chunk``.
        reduction: which loss has the gradients, if slots are replicated: the "mean" of the losses of all ranks (if all
            ranks compute the same loss, this is that loss), or their "sum". Inside of DistributedDataParallel and FSDP,
            which average the gradients of parameters afterwards, use "sum". With sharded slots it is always the sum,
            since each rank's loss is a part of the whole.
        max_k: as for ``knockout.topk``: at most the number of candidates of all ranks.

    DTensors must be sharded on the candidate dimension along one dimension of their mesh; the results are DTensors,
    too. Under ``torch.compile`` the call is a graph break, since the messages depend on the scores.
    """
    picked = _select("topk", values, scores, k, boost, mask, order, hard, group, slots, reduction, max_k)
    others = (picked.wrap(each) for each in (picked.scores, picked.indices, picked.mask))
    return TopKResult(picked.apply(values), *others)


@torch.compiler.disable
def select(
    scores: Tensor | Iterable[Tensor],
    k: int | float | Tensor,
    boost: float | Tensor | Boost | None = None,
    mask: Tensor | None = None,
    order: Order = "score",
    hard: bool = False,
    group: dist.ProcessGroup | None = None,
    slots: SlotPlacement = "replicated",
    reduction: Reduction = "mean",
    max_k: int | None = None,
) -> Selection:
    """The plan alone, which all ranks can apply to any number of payloads, each rank to those of its own candidates.

    ``indices``, ``scores``, ``mask``, ``support()`` and ``perplexity()`` describe the slots of this rank: all slots, or
    its part if they are sharded. ``indices`` count through the candidates of all ranks. ``n``, ``weights()`` and
    ``mass()`` describe this rank's candidates, for all slots.

    The hard twin is ``torch.topk`` of all scores of all ranks. The arguments are those of ``topk``.
    """
    return _select("select", None, scores, k, boost, mask, order, hard, group, slots, reduction, max_k)


def _select(
    name: str, values: Tensor | RowSource | None, scores: Tensor | Iterable[Tensor], k: int | float | Tensor,
    boost: float | Tensor | Boost | None, mask: Tensor | None, order: Order, hard: bool,
    group: dist.ProcessGroup | None, slots: SlotPlacement, reduction: Reduction, max_k: int | None,
) -> DistributedSelection:  # fmt: skip
    layout = layout_of(scores)
    if layout is not None and group is not None:
        raise ValueError("group must be None if scores are a DTensor, whose mesh has the group")
    ranks = Ranks(group if layout is None else layout.group)

    def prepare() -> _Arguments:
        own_scores = local_part(scores, "scores", layout, 1) if isinstance(scores, Tensor) else join_scores(scores)
        own_mask = None if mask is None else local_part(mask, "mask", layout, 1)
        check_scores_and_mask(own_scores, own_mask)
        most, counts, own_mask = _quota(own_scores, k, own_mask, max_k)
        settings = Settings(most, as_boost(boost, own_scores.device), order, hard, slots, reduction)
        check_choice(order, "order", get_args(Order))
        check_flag(hard, "hard")
        check_choice(slots, "slots", get_args(SlotPlacement))
        check_choice(reduction, "reduction", get_args(Reduction))
        own = _Arguments(own_scores, own_mask, counts, settings)
        if isinstance(values, Tensor):
            check_values(local_part(values, "values", layout, 2), own.batch, own.n, own_scores.device)
        elif values is not None:
            check_source(values, own.n)
        return own

    def must_match(own: _Arguments) -> dict[str, Any]:
        return {
            **own.settings._asdict(),
            "boost": _describe(own.settings.boost),
            "a checksum of the counts k": None if own.counts is None else crc32(repr(own.counts.tolist()).encode()),
            "the dtype of scores": str(own.scores.dtype).removeprefix("torch."),
            "the batch dimensions of scores": list(own.batch),
            "whether gradients are enabled": torch.is_grad_enabled(),
            "d": None if values is None else (values if isinstance(values, Tensor) else reader_of(values)).shape[-1],
        }

    def may_differ(own: _Arguments) -> tuple[int, bool]:
        return own.n, torch.is_grad_enabled() and own.scores.requires_grad

    own, answers, number = agree(ranks, name, prepare, must_match, may_differ)
    sizes, needs_grad = [n for n, _ in answers], any(needs_grad for _, needs_grad in answers)
    quota = own.quota(sum(sizes))
    call = Call(ranks, number, own.settings, sizes, quota, needs_grad)
    rows = own.batch.numel(), own.n
    result = tournament(own.scores.expand(*own.batch, own.n).reshape(rows), own.active().reshape(rows), call)
    weight, score, member, leader, valid = (each.view(*own.batch, *each.shape[1:]) for each in result)
    plan = SparsePlan(own.n, valid, member, weight, score, hard, choose(own.scores, own.settings.boost))
    return DistributedSelection(plan, leader, own.scores.dtype, call, layout)


class _Arguments(NamedTuple):
    """This rank's arguments, checked."""

    scores: Tensor
    mask: Tensor | None
    counts: Tensor | None  # of the rows
    settings: Settings

    @property
    def n(self) -> int:
        return self.scores.shape[-1]

    @property
    def batch(self) -> torch.Size:
        batch = self.scores.shape[:-1]
        return batch if self.mask is None else torch.broadcast_shapes(batch, self.mask.shape[:-1])

    def quota(self, n: int) -> Quota:
        """The quota, for n candidates of all ranks."""
        shape, most = (*self.batch, n), self.settings.k
        if self.counts is None:
            return quota_of(most, shape)
        assert isinstance(most, int)
        check_most(most, shape)
        return Quota(most, counts=self.counts.reshape(-1))

    def active(self) -> Tensor:
        active = self.scores != -torch.inf
        return active if self.mask is None else active & self.mask


def _quota(
    scores: Tensor, k: int | float | Tensor, mask: Tensor | None, max_k: int | None
) -> tuple[int | float, Tensor | None, Tensor | None]:
    """Check k and ``max_k``. Returns k, or ``max_k`` if there are counts; the counts of the rows; and the mask."""
    if not isinstance(k, Tensor):
        if max_k is not None:
            raise TypeError(MAX_K_NEEDS_COUNTS.format(max_k, k))
        return check_k(k), None, mask
    if isinstance(k, DTensor):
        raise TypeError(
            "k must be an ordinary tensor, the counts of this rank's rows; got a DTensor. Pass k.to_local()"
        )
    max_k = check_max_k(k, max_k)
    return max_k, *counts_of(scores, k, mask, max_k)


def _describe(boost: Boost) -> str:
    """The boost as text, the same for equal numbers of different types, as 4, 4.0 and a tensor."""
    if type(boost) not in KINDS:
        return repr(boost)
    numbers = ", ".join(f"{field.name}={float(getattr(boost, field.name))}" for field in fields(boost))  # type: ignore[arg-type]
    return f"{type(boost).__name__}({numbers})"
