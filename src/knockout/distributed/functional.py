"""``select`` and ``topk`` for candidates that are spread over ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from knockout.boost import Base, Boost, Fixed, Power, Relative, as_boost
from knockout.checks import check_choice, check_field, check_flag, check_k, check_values, join_scores, quota_of
from knockout.distributed.agreement import agree
from knockout.distributed.mesh import layout_of, local
from knockout.distributed.play import Game, play
from knockout.distributed.ranks import Ranks
from knockout.distributed.shard import Shard, ShardedSelection, Sharing
from knockout.functional import Order, TopKResult
from knockout.ops.choice import choose
from knockout.rows.sources import RowSource, check_source, reader_of
from knockout.selection import Selection

Slots = Literal["replicated", "sharded"]
Reduction = Literal["mean", "sum"]


@torch.compiler.disable
def topk(
    values: Tensor | RowSource,
    scores: Tensor | Iterable[Tensor],
    k: int | float,
    boost: float | Boost = 4.0,
    mask: Tensor | None = None,
    order: Order = "score",
    hard: bool = False,
    group: dist.ProcessGroup | None = None,
    slots: Slots = "replicated",
    reduction: Reduction = "mean",
) -> TopKResult:
    """``knockout.topk`` of candidates that are spread over the ranks of a group: every rank passes those that it has.

    The result is that of one process with the candidates of rank 0, rank 1, ... one after the other, and so are the
    gradients. ``indices`` count through them all. Values stay where they are: k d numbers travel, and scores, less of
    these the sharper the boost.

    The hard twin is ``torch.topk`` and a gather of all values of all ranks.

    All ranks must call it, with the same arguments but for their candidates, and all must call ``backward``. A rank
    that cannot take part, is lost or does not come raises an error on all of them (``RankError`` on the others), within
    the timeout of the group.

    Args:
        values: (..., n, d) of this rank's candidates, as for ``knockout.topk``.
        scores: (..., n), or chunks of them; n may be different on every rank, and 0. The batch dimensions are the same
            on all.
        k: how many of all candidates; or a fraction.
        boost: as for ``knockout.topk``.
        mask: (..., n) bool of this rank's candidates.
        order: as for ``knockout.topk``.
        hard: as for ``knockout.topk``.
        group: a process group; by default all processes. Of DTensors, which say it themselves, it must be None.
        slots: "replicated": every rank gets all k slots; "sharded": each its own, as ``torch.chunk`` deals them out.
        reduction: of replicated slots: gradients are those of the "mean" of all ranks' losses (if all compute the same
            loss, those of this loss), or of their "sum". Inside of DistributedDataParallel and FSDP, which average the
            gradients of parameters afterwards, take "sum". (Of sharded slots it is always the sum: each rank's loss is
            a part.)

    DTensors are taken that are sharded on the candidate dimension along one dimension of their mesh; the result is of
    DTensors, too. Under ``torch.compile`` the call is a break of the graph: what it sends depends on the scores.
    """
    picked = _select("topk", scores, k, boost, mask, order, hard, group, slots, reduction, values)
    others = (picked.wrap(each) for each in (picked.scores, picked.indices, picked.mask))
    return TopKResult(picked.apply(values), *others)


@torch.compiler.disable
def select(
    scores: Tensor | Iterable[Tensor],
    k: int | float,
    boost: float | Boost = 4.0,
    mask: Tensor | None = None,
    order: Order = "score",
    hard: bool = False,
    group: dist.ProcessGroup | None = None,
    slots: Slots = "replicated",
    reduction: Reduction = "mean",
) -> Selection:
    """The plan alone, to be applied by all ranks to any number of payloads, each rank with its candidates' own.

    ``indices``, ``scores``, ``mask``, ``support()`` and ``perplexity()`` are of the slots of this rank: all, or its own
    if they are sharded; indices count through the candidates of all ranks. ``n``, ``weights()`` and ``mass()`` are
    of this rank's candidates (and of all slots).

    The hard twin is ``torch.topk`` of all scores of all ranks. The arguments are those of ``topk``.
    """
    return _select("select", scores, k, boost, mask, order, hard, group, slots, reduction, None)


def _select(
    call: str, scores: Tensor | Iterable[Tensor], k: int | float, boost: float | Boost, mask: Tensor | None,
    order: Order, hard: bool, group: dist.ProcessGroup | None, slots: Slots, reduction: Reduction,
    values: Tensor | RowSource | None,
) -> ShardedSelection:  # fmt: skip
    layout = layout_of(scores)
    if layout is not None and group is not None:
        raise ValueError("group must be None where scores are a DTensor: its mesh says which ranks share them")
    ranks = Ranks(group if layout is None else layout.group)

    def attempt() -> Given:
        whole = local(scores, "scores", layout, 1) if isinstance(scores, Tensor) else join_scores(scores)
        part = None if mask is None else local(mask, "mask", layout, 1)
        check_field(whole, part)
        own = Given(whole, part, check_k(k), as_boost(boost, whole.device))
        check_choice(order, "order", ("score", "position"))
        check_flag(hard, "hard")
        check_choice(slots, "slots", ("replicated", "sharded"))
        check_choice(reduction, "reduction", ("mean", "sum"))
        n = own.scores.shape[-1]
        if isinstance(values, Tensor):
            check_values(local(values, "values", layout, 2), own.batch, n, own.scores.device)
        elif values is not None:
            check_source(values, n)
        return own

    def same(own: Given) -> dict[str, Any]:
        return {
            "k": own.k, "boost": _told(own.boost), "order": order, "hard": hard, "slots": slots, "reduction": reduction,
            "the dtype of scores": str(own.scores.dtype).removeprefix("torch."),
            "the batch dimensions of scores": list(own.batch),
            "whether gradients are enabled": torch.is_grad_enabled(),
            "d": None if values is None else (values if isinstance(values, Tensor) else reader_of(values)).shape[-1],
        }  # fmt: skip

    def differ(own: Given) -> tuple[int, bool]:
        return own.scores.shape[-1], torch.is_grad_enabled() and own.scores.requires_grad

    own, heard, number = agree(ranks, call, attempt, same, differ)
    sizes, batch, n = [n for n, _ in heard], own.batch, own.scores.shape[-1]
    sharing = Sharing(
        ranks, 1.0 / ranks.size if reduction == "mean" and slots == "replicated" else 1.0, slots == "sharded"
    )
    quota = quota_of(own.k, (*batch, sum(sizes)))
    learns = any(learns for _, learns in heard)
    game = Game(ranks, sizes, own.k, quota, own.boost, order, hard, learns, number, sharing.share)
    alive = own.scores != -torch.inf if own.mask is None else (own.scores != -torch.inf) & own.mask
    rows = batch.numel(), n
    played = play(own.scores.expand(alive.shape).reshape(rows), alive.reshape(rows), game)
    weight, score, member, leader = (each.view(*batch, *each.shape[1:]) for each in played)
    return ShardedSelection(
        Shard(n, ~score[..., :1].isnan(), member, weight, score, hard, choose(own.scores), sharing=sharing),
        leader,
        own.scores.dtype,
        layout,
    )


def _told(boost: Boost) -> str:
    """A boost in words that are the same for 4 and 4.0."""
    if type(boost) not in (Relative, Fixed, Base, Power):
        return repr(boost)
    numbers = ", ".join(f"{field.name}={float(getattr(boost, field.name))}" for field in fields(boost))  # type: ignore[arg-type]
    return f"{type(boost).__name__}({numbers})"


class Given(NamedTuple):
    """This rank's arguments, checked."""

    scores: Tensor
    mask: Tensor | None
    k: int | float
    boost: Boost

    @property
    def batch(self) -> torch.Size:
        """Of scores and mask."""
        batch = self.scores.shape[:-1]
        return batch if self.mask is None else torch.broadcast_shapes(batch, self.mask.shape[:-1])
