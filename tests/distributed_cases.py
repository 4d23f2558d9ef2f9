"""Drawn cases for candidates on many ranks, and the comparison with a single process."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

import knockout
from knockout import distributed
from knockout.boost import Boost
from tests.process_group import GROUPS, MAX_RANKS

cuts = st.tuples(*[st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.7, 1.0])] * (MAX_RANKS - 1))


class Case(NamedTuple):
    """A drawn case: every rank makes the same inputs from it, and takes its own part of them."""

    size: int
    cuts: tuple[float, ...]  # where the candidates of each rank end, as fractions of n
    n: int
    k: int | float
    boost: Boost
    batch: tuple[int, ...] = ()
    d: int = 3
    masked: float = 0.0  # the fraction of inactive candidates
    kind: str = "normal"  # of scores: one of SCORE_KINDS
    dtype: torch.dtype = torch.float64
    order: str = "score"
    hard: bool = False
    slots: str = "replicated"
    seed: int = 0
    counted: bool = False  # whether each row has a k of its own, up to k

    def part(self, rank: int) -> slice:
        """The candidates of a rank."""
        ends = [0, *sorted(int(cut * self.n) for cut in self.cuts[: self.size - 1]), self.n]
        return slice(ends[rank], ends[rank + 1])

    def inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Values, scores and mask of all candidates."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (*self.batch, self.n)
        scores = SCORE_KINDS[self.kind](torch.randn(shape, generator=generator, dtype=torch.float64)).to(self.dtype)
        values = torch.randn(*shape, self.d, generator=generator, dtype=torch.float64).to(self.dtype)
        mask = torch.rand(shape, generator=generator) >= self.masked if self.masked else None
        return values, scores, mask


SCORE_KINDS: dict[str, Any] = {
    "normal": lambda x: x,
    "uniform": lambda x: torch.special.ndtr(x),
    "heavy": lambda x: x.sign() * x.abs().pow(3) * 2,
    "exponential": lambda x: -torch.special.ndtr(x).clamp(min=1e-12).log(),
    "clustered": lambda x: (x * 2).round() + 0.01 * x,
    "tied": lambda x: (x * 2).round() / 2,
    "constant": lambda x: 0.0 * x,
    "small": lambda x: 1e-3 * x,
    "far": lambda x: 1000.0 + x,
    "outlier": lambda x: torch.where(x == x.amax(dim=-1, keepdim=True), 1000.0, x),
    "huge": lambda x: torch.where(x == x.amax(dim=-1, keepdim=True), 1e30, 10 * x),
    "huge both": lambda x: torch.where(x.abs() == x.abs().amax(dim=-1, keepdim=True), -1e30, 10 * x),
    "holes": lambda x: torch.where(x > 1.0, -torch.inf, x),
    "invalid": lambda x: torch.where(x > 2.2, torch.nan, x),
}


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    most = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    return {"rtol": most, "atol": most}


def loss(result: Any, slots: Any) -> Tensor:
    """A loss of values and scores that depends on each slot in a different way; ``slots`` are those of the result."""
    values, scores = result.values, result.scores
    at = torch.arange(slots.start or 0, slots.stop, dtype=values.dtype)[..., None] + 1.0
    total: Tensor = ((values / at).sin() * at).sum() + (scores * at.squeeze(-1).cos()).sum()
    return total


def compare(rank: int, case: Case) -> int:
    """Compare the results and gradients of a rank with its part of those of a single process.

    Returns the number of bytes of scores that the rank has sent.
    """
    group, own = GROUPS[case.size], case.part(rank)
    values, scores, mask = case.inputs()
    settings: dict[str, Any] = {"k": case.k, "order": case.order, "hard": case.hard}
    if case.counted:
        counts = torch.arange(math.prod(case.batch)) + case.seed
        settings |= {"k": counts.reshape(case.batch) % (case.k + 1), "max_k": case.k}

    alone = [x.clone().requires_grad_() for x in (values, scores)]
    one = knockout.topk(alone[0], alone[1], boost=case.boost, mask=mask, **settings)
    slots = one.indices.shape[-1]
    loss(one, slice(0, slots)).backward()

    mine = [values[..., own, :].clone().requires_grad_(), scores[..., own].clone().requires_grad_()]
    part = None if mask is None else mask[..., own]
    settings |= {"group": group, "slots": case.slots}
    with distributed.traffic() as traffic:
        many = distributed.topk(mine[0], mine[1], boost=case.boost, mask=part, **settings)
    here = slice(0, slots)
    if case.slots == "sharded":
        each = -(-slots // case.size)
        here = slice(min(slots, rank * each), min(slots, (rank + 1) * each))
    loss(many, here).backward()

    close = {**tolerance(case.dtype), "equal_nan": True}
    torch.testing.assert_close(many.indices, one.indices[..., here], rtol=0, atol=0)
    torch.testing.assert_close(many.mask, one.mask[..., here], rtol=0, atol=0)
    torch.testing.assert_close(many.scores, one.scores[..., here], **close)
    torch.testing.assert_close(many.values, one.values[..., here, :], **close)
    torch.testing.assert_close(mine[0].grad, alone[0].grad[..., own, :], **close)
    torch.testing.assert_close(mine[1].grad, alone[1].grad[..., own], **close)
    return traffic.sent["scores"]
