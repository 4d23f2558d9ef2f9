"""The iterative relaxation: k softmaxes over all n candidates (Goyal et al. 2017; Algorithm 1 of the paper)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from knockout.checks import check_flag, check_positive
from knockout.functional import Order
from knockout.methods.softmax_plan import SoftmaxPlan, rank
from knockout.selection import Selection


def iterative(
    scores: Tensor,
    k: int | float | Tensor,
    peaked: bool = True,
    alpha: float = 1.0,
    mask: Tensor | None = None,
    order: Order = "score",
    max_k: int | None = None,
) -> Selection:
    """k times: weigh all remaining candidates by their distance from the best one, then remove the best one.

    With u the best remaining score at a step, and e_j = exp(-alpha (v_j - u)^2) for the remaining candidates:

    - ``peaked=True``, as printed in the paper: w_j = e_j / (sum of e over all but the best). The denominator leaves the
      best candidate out, so the weights of a slot do NOT sum to one. A candidate that is left alone has weight 1.
    - ``peaked=False``, as run for the paper's figures: w = softmax over all remaining ones. Weights sum to one.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.iterative(scores, k=2, peaked=False).weights()
    tensor([[0.0123, 0.6704, 0.0707, 0.2466],
            [0.1714, 0.0000, 0.3628, 0.4658]])
    >>> knockout.methods.iterative(scores, k=2).weights().sum(-1)
    tensor([3.0342, 1.8721])

    To remove the best one each time is to walk down the sorted scores, so no step waits for the one before: steps are
    computed together, in chunks. Time O(k n d); memory O(n d) plus a few chunks of 2**22 weights (or one step of the
    whole batch, if that is more), backward included. Under ``torch.func`` all chunks are kept.
    """
    check_flag(peaked, "peaked")
    check_positive(alpha, "alpha")
    ranking = rank(scores, k, mask, order, max_k)
    ranked = ranking.order
    position = torch.arange(ranked.shape[-1], device=ranked.device).expand(ranked.shape)
    step = torch.where(ranking.active, torch.empty_like(ranked).scatter(-1, ranked, position), -1)
    return ranking.selection(
        IterativePlan, slot=ranking.slot, step=step, top_score=ranking.leader_score(), peaked=peaked, alpha=alpha
    )


@dataclass(eq=False)
class IterativePlan(SoftmaxPlan):
    """Step i weighs the candidates that rank i-th or lower by their distance from the i-th best score.

    Each step fills a slot.
    """

    slot: Tensor  # (*batch, k) int64: the step that fills each slot
    step: Tensor  # (*batch, n) int64: the step at which a candidate is the best remaining one; -1 if it is inactive
    top_score: Tensor  # (*batch, k): the best remaining score at that step
    peaked: bool
    alpha: float

    def logits(self, start: int, stop: int) -> Tensor:
        limits = torch.finfo(self.score.dtype)
        # Clamped so that squares stay finite. The lowest finite number rather than -inf: a row without remaining
        # candidates must not become NaN.
        farthest = math.sqrt(limits.max / max(self.alpha, 1.0)) / 2
        distance = (self.top_score[..., start:stop, None] - self.score.unsqueeze(-2)).clamp(-farthest, farthest)
        remains = self.step.unsqueeze(-2) >= self._steps(start, stop)
        return torch.where(remains, -min(self.alpha, limits.max) * distance.square(), limits.min)

    def raw_weights(self, start: int, stop: int) -> Tensor:
        if not self.peaked:
            return super().raw_weights(start, stop)
        is_best = self.step.unsqueeze(-2) == self._steps(start, stop)
        return self._peaked(self.logits(start, stop), is_best)

    def _steps(self, start: int, stop: int) -> Tensor:
        return self.slot[..., start:stop, None]

    def _peaked(self, logit: Tensor, is_best: Tensor) -> Tensor:
        limits = torch.finfo(logit.dtype)
        peak = torch.exp(logit)
        others = torch.where(is_best, 0.0, peak).sum(dim=-1, keepdim=True)
        alone = (is_best | (logit == limits.min)).all(dim=-1, keepdim=True)
        # If all others are far off, the weight of the best as printed grows without bound; it stops at the largest 1/x.
        return peak / torch.where(alone, 1.0, others.clamp(min=limits.tiny))
