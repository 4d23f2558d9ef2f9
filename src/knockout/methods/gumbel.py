"""Relaxed subset sampling (Xie and Ermon 2019, arXiv 1901.10517)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from knockout.checks import check_flag, check_generator, check_positive
from knockout.functional import Order
from knockout.methods.softmax_plan import RankedPlan, rank
from knockout.selection import Selection


def gumbel(
    scores: Tensor,
    k: int | float | Tensor,
    temperature: float = 0.1,
    noise: bool = True,
    generator: torch.Generator | None = None,
    mask: Tensor | None = None,
    order: Order = "score",
    max_k: int | None = None,
) -> Selection:
    """A relaxed sample of k candidates, in proportion to the exponentials of their scores and without replacement.

    Gumbel noise is added to the scores. Then k softmaxes over ``temperature`` follow each other; after each one,
    log(1 - weight) is added to every candidate's score, so that what one slot has taken is not there for the next. The
    leaders are the top k of the noisy scores. ``noise=False`` adds none, for a deterministic evaluation.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.gumbel(scores, k=2, temperature=0.5, noise=False).weights()
    tensor([[0.0152, 0.8310, 0.0414, 0.1125],
            [0.0894, 0.1438, 0.2303, 0.5365]])

    Time O(k n d), one slot after the other; memory O(k n + n d).
    """
    check_positive(temperature, "temperature")
    check_flag(noise, "noise")
    check_generator(generator)

    def add_noise(score: Tensor) -> Tensor:
        # A new contiguous tensor, whatever the strides of the scores: the same seed gives the same noise.
        exponential = torch.empty(score.shape, dtype=score.dtype, device=score.device)
        exponential.exponential_(generator=generator)
        return score - torch.log(exponential.clamp(min=torch.finfo(score.dtype).tiny))

    ranking = rank(scores, k, mask, order, max_k, add_noise if noise else None)
    active, remaining = ranking.active, ranking.key
    limits = torch.finfo(remaining.dtype)
    sharpness = min(1.0 / temperature, limits.max)
    weights = []
    for _ in range(ranking.k):
        highest = torch.where(active, remaining, limits.min).amax(dim=-1, keepdim=True).detach()
        logit = ((remaining - highest) * sharpness).clamp(min=limits.min / 8)
        logit = torch.where(active, logit, limits.min)
        weights.append(torch.softmax(logit, dim=-1))
        remaining = (remaining + _log_remainder(weights[-1], logit)).clamp(min=limits.min / 4)
    return ranking.selection(GumbelPlan, weight=ranking.arranged(torch.stack(weights, dim=-2)))


def _log_remainder(weight: Tensor, logit: Tensor) -> Tensor:
    """log(1 - weight) of a softmax, accurate where a weight rounds to 1 too: there it is the log of all the others."""
    others = logit.scatter(-1, logit.argmax(dim=-1, keepdim=True), torch.finfo(logit.dtype).min)
    rest = others.logsumexp(dim=-1, keepdim=True) - logit.logsumexp(dim=-1, keepdim=True)
    return torch.where(weight < 0.5, torch.log1p(-weight.clamp(max=0.5)), rest)


@dataclass(eq=False)
class GumbelPlan(RankedPlan):
    """Softmaxes that were computed beforehand, one after the other."""

    weight: Tensor  # (*batch, k, n)

    def raw_weights(self, start: int, stop: int) -> Tensor:
        return self.weight[..., start:stop, :]
