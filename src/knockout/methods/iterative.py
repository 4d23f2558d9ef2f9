"""The iterative relaxation: k softmaxes over all n candidates (Goyal et al. 2017; Algorithm 1 of the paper)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from knockout.candidates import candidates
from knockout.checks import check_flag, check_positive, check_scores
from knockout.methods.slots import Slots, in_order, selection
from knockout.selection import Selection


def iterative(
    scores: Tensor, k: int | float, peaked: bool = True, alpha: float = 1.0, mask: Tensor | None = None
) -> Selection:
    """k times: weigh all candidates by their distance from the best one left, then strike that one out.

    With u the best score left at a step, and e_j = exp(-alpha (v_j - u)^2) for the candidates left:

    - ``peaked=True``, as printed in the paper: w_j = e_j / (sum of e over the others than the best one). The
      denominator leaves the best one out, so the rows do NOT sum to one. With no other left, the best one has weight 1.
    - ``peaked=False``, as run for the paper's figures: w = softmax over all that are left. DensePlan sum to one.

    Striking out the best one is the same as walking down the sorted scores, so no step waits for the one before:
    steps are computed together, in chunks. Time O(k n d); memory O(n d) plus a few chunks of 2**22 weights (or one
    step of the whole batch, if that is more), backward included, but for ``torch.func``, under which chunks are kept.

    The hard twin is ``torch.topk(scores, k).indices``:

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.iterative(scores, k=2, peaked=False).weights()
    tensor([[0.0123, 0.6704, 0.0707, 0.2466],
            [0.1714, 0.0000, 0.3628, 0.4658]])
    >>> knockout.methods.iterative(scores, k=2).weights().sum(-1)
    tensor([3.0342, 1.8721])
    """
    quota = check_scores(scores, k, mask)
    check_flag(peaked, "peaked")
    check_positive(alpha, "alpha")
    entrants = candidates(scores, mask)
    order = in_order(entrants, quota)
    plan = Steps(
        n=scores.shape[-1],
        k=quota.k,
        valid=entrants.valid,
        score=entrants.score,
        active=entrants.active,
        filled=order.filled,
        masked=mask is not None,
        rank=order.rank,
        best=entrants.score.gather(-1, order.leader),
        peaked=peaked,
        alpha=alpha,
    )
    return selection(plan, order, scores.dtype)


@dataclass(eq=False)
class Steps(Slots):
    """Step i weighs the candidates whose rank is i or later by their distance from the i-th best score."""

    rank: Tensor  # (*batch, n): the step at which a candidate is the best one left; -1 if it takes no part
    best: Tensor  # (*batch, k): the score of the best one left at each step
    peaked: bool
    alpha: float

    def logits(self, start: int, stop: int) -> Tensor:
        limits = torch.finfo(self.score.dtype)
        # Squares must stay finite, and the lowest number rather than -inf keeps a row with nobody left finite too.
        farthest = math.sqrt(limits.max / max(self.alpha, 1.0)) / 2
        distance = (self.best[..., start:stop, None] - self.score.unsqueeze(-2)).clamp(-farthest, farthest)
        is_left = self.rank.unsqueeze(-2) >= self._steps(start, stop)
        return torch.where(is_left, -min(self.alpha, limits.max) * distance.square(), limits.min)

    def slot_weights(self, start: int, stop: int) -> Tensor:
        if not self.peaked:
            return super().slot_weights(start, stop)
        is_best = self.rank.unsqueeze(-2) == self._steps(start, stop)
        return self.kept(self._peaked(self.logits(start, stop), is_best), start, stop)

    def _steps(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=self.score.device).unsqueeze(-1)

    def _peaked(self, logit: Tensor, is_best: Tensor) -> Tensor:
        limits = torch.finfo(logit.dtype)
        peak = torch.exp(logit)
        others = torch.where(is_best, 0.0, peak).sum(dim=-1, keepdim=True)
        alone = (is_best | (logit == limits.min)).all(dim=-1, keepdim=True)
        # Far-off others make the printed weight of the best one grow without bound; it stops at the largest 1/x.
        return peak / torch.where(alone, 1.0, others.clamp(min=limits.tiny))
