"""Entropic optimal transport (Cuturi et al. 2019, arXiv 1905.11885; Xie et al. 2020, arXiv 2002.06504)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from knockout.candidates import Candidates, candidates
from knockout.checks import check_positive, check_scores, check_whole
from knockout.methods.slots import Slots, in_order, selection
from knockout.selection import Selection
from knockout.torch_private import is_transforming


def sinkhorn(
    scores: Tensor, k: int | float, temperature: float = 0.1, steps: int = 50, mask: Tensor | None = None
) -> Selection:
    """Move the candidates, a unit of each, to k slots that take one unit and a rest that takes what is left over.

    The scores z of a row, less their mean and over their standard deviation, go to targets y = 1, (k-1)/k, ..., 1/k for
    the slots and 0 for the rest, at a cost of (z - y)^2 a unit; ``temperature`` weighs the entropy of the plan. So
    scores may have any scale. Solved by Sinkhorn's iterations in log space, so many ``steps``; a slot's weights add up
    to 1 exactly, a candidate's to at most 1 only as far as they have converged: low temperatures need more steps.

    Gradients are those of the steps taken, not of their limit. Time O(steps k n); memory O(k n + steps n), backward
    included: steps are kept for it up to 2**22 numbers, beyond (but for ``torch.func``) they are taken again.

    The hard twin is ``torch.topk(scores, k).indices``:

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.sinkhorn(scores, k=2, temperature=0.5).weights()
    tensor([[0.0018, 0.8204, 0.0213, 0.1565],
            [0.0840, 0.1712, 0.2566, 0.4882]])
    """
    quota = check_scores(scores, k, mask)
    check_positive(temperature, "temperature")
    check_whole(steps, "steps")
    entrants = candidates(scores, mask)
    order = in_order(entrants, quota)
    standard = standardised(entrants)
    slots = quota.slots(entrants.active)
    rest = entrants.active.sum(dim=-1, keepdim=True) - slots
    # The last target is the rest. Logarithms of what is offered and wanted; of nothing, one that can be added to.
    lowest = -1e30
    left = torch.where(rest > 0, torch.log(rest.clamp(min=1).to(standard.dtype)), lowest)
    wanted = torch.cat([torch.where(order.filled, 0.0, lowest).to(standard.dtype), left], dim=-1)
    offered = torch.where(entrants.active, 0.0, lowest).to(standard.dtype)
    step = torch.arange(quota.k + 1, dtype=standard.dtype, device=scores.device)
    target = ((slots - step) / slots.clamp(min=1)).clamp(min=0.0)
    sharpness = min(2.0 / temperature, torch.finfo(standard.dtype).max)
    given = _balance(standard, target, offered, wanted, sharpness, steps)
    plan = Transport(
        n=scores.shape[-1],
        k=quota.k,
        valid=entrants.valid,
        score=entrants.score,
        active=entrants.active,
        filled=order.filled,
        masked=mask is not None,
        standard=standard,
        target=target,
        given=given,
        sharpness=sharpness,
    )
    return selection(plan, order, scores.dtype)


def standardised(entrants: Candidates) -> Tensor:
    """Scores (..., n) of mean 0 and deviation 1; all 0 where they are equal."""
    count = entrants.active.sum(dim=-1, keepdim=True).clamp(min=1)
    # Brought to size 1 first, so that no square overflows or vanishes.
    largest = entrants.score.detach().abs().amax(dim=-1, keepdim=True)
    score = entrants.score / torch.where(largest > 0, largest, 1.0)
    centred = torch.where(entrants.active, score - score.sum(dim=-1, keepdim=True) / count, 0.0)
    variance = centred.square().sum(dim=-1, keepdim=True) / count
    smallest = torch.finfo(score.dtype).eps ** 2
    deviation = torch.where(variance > smallest, variance, 1.0).sqrt()
    return torch.where(variance > smallest, centred, 0.0) / deviation


def _balance(standard: Tensor, target: Tensor, offered: Tensor, wanted: Tensor, sharpness: float, steps: int) -> Tensor:
    """Potentials (..., n) of the candidates, after so many steps; those of the targets follow from them."""

    def step(standard: Tensor, given: Tensor) -> Tensor:
        kernel = sharpness * standard.unsqueeze(-1) * target.unsqueeze(-2)
        taken = wanted - torch.logsumexp(kernel + given.unsqueeze(-1), dim=-2)
        return offered - torch.logsumexp(kernel + taken.unsqueeze(-2), dim=-1)

    again = torch.is_grad_enabled() and not is_transforming()
    again = again and steps * standard.numel() * target.shape[-1] > Slots.CHUNK
    given = offered
    for _ in range(steps):
        if again:
            given = checkpoint(step, standard, given, use_reentrant=False, preserve_rng_state=False)
        else:
            given = step(standard, given)
    return given


@dataclass(eq=False)
class Transport(Slots):
    """What goes from each candidate to each slot."""

    standard: Tensor  # (*batch, n)
    target: Tensor  # (*batch, k + 1)
    given: Tensor  # (*batch, n): potentials of the candidates
    sharpness: float

    def logits(self, start: int, stop: int) -> Tensor:
        # The potential of the slot is the one that makes its weights add up to one: the softmax finds it.
        kernel = self.sharpness * self.standard.unsqueeze(-2) * self.target[..., start:stop, None]
        return kernel + self.given.unsqueeze(-2)
