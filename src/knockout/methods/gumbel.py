"""Relaxed subset sampling (Xie and Ermon 2019, arXiv 1901.10517)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from knockout.candidates import candidates
from knockout.checks import check_flag, check_generator, check_positive, check_scores
from knockout.methods.slots import Slots, in_order, selection
from knockout.selection import Selection


def gumbel(
    scores: Tensor,
    k: int | float,
    temperature: float = 0.1,
    noise: bool = True,
    generator: torch.Generator | None = None,
    mask: Tensor | None = None,
) -> Selection:
    """A sample of k candidates, in proportion to the exponentials of their scores and without replacement, relaxed.

    To the scores Gumbel noise is added; then k softmaxes over ``temperature`` follow each other, and what one has taken
    of a candidate, the next ones cannot: the log of the remainder is added to its score. With noise, the leaders are
    those of the sample; ``noise=False`` leaves it out, for an evaluation that depends on nothing but the scores. Time
    O(k n d), one slot after the other; memory O(k n + n d).

    The hard twin is ``torch.topk(scores, k).indices``:

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.gumbel(scores, k=2, temperature=0.5, noise=False).weights()
    tensor([[0.0152, 0.8310, 0.0414, 0.1125],
            [0.0894, 0.1438, 0.2303, 0.5365]])
    """
    quota = check_scores(scores, k, mask)
    check_positive(temperature, "temperature")
    check_flag(noise, "noise")
    check_generator(generator)
    entrants = candidates(scores, mask)
    limits = torch.finfo(entrants.score.dtype)
    left = entrants.score
    if noise:
        # Contiguous, whatever the scores are: the same noise for the same seed.
        drawn = torch.empty(left.shape, dtype=left.dtype, device=left.device).exponential_(generator=generator)
        left = left - torch.log(drawn.clamp(min=limits.tiny))
    order = in_order(entrants, quota, left)
    sharpness = min(1.0 / temperature, limits.max)
    taken = []
    for _ in range(quota.k):
        best = torch.where(entrants.active, left, limits.min).amax(dim=-1, keepdim=True).detach()
        logit = ((left - best) * sharpness).clamp(min=limits.min / 8)
        logit = torch.where(entrants.active, logit, limits.min)
        taken.append(torch.softmax(logit, dim=-1))
        left = (left + _remainder(taken[-1], logit)).clamp(min=limits.min / 4)
    plan = Taken(
        n=scores.shape[-1],
        k=quota.k,
        valid=entrants.valid,
        score=entrants.score,
        active=entrants.active,
        filled=order.filled,
        masked=mask is not None,
        taken=torch.stack(taken, dim=-2),
    )
    return selection(plan, order, scores.dtype)


def _remainder(share: Tensor, logit: Tensor) -> Tensor:
    """log(1 - share) of a softmax, also where a share is 1 but for rounding: what is left is that of the others."""
    others = logit.scatter(-1, logit.argmax(dim=-1, keepdim=True), torch.finfo(logit.dtype).min)
    rest = others.logsumexp(dim=-1, keepdim=True) - logit.logsumexp(dim=-1, keepdim=True)
    return torch.where(share < 0.5, torch.log1p(-share.clamp(max=0.5)), rest)


@dataclass(eq=False)
class Taken(Slots):
    """Softmaxes that were computed one after the other."""

    taken: Tensor  # (*batch, k, n)

    def slot_weights(self, start: int, stop: int) -> Tensor:
        return self.kept(self.taken[..., start:stop, :], start, stop)

    def logits(self, start: int, stop: int) -> Tensor:
        return torch.log(self.taken[..., start:stop, :])
