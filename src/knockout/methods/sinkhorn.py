"""Entropic optimal transport (Cuturi et al. 2019, arXiv 1905.11885; Xie et al. 2020, arXiv 2002.06504)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from knockout.checks import check_positive, check_whole
from knockout.functional import Order
from knockout.methods.softmax_plan import SoftmaxPlan, rank
from knockout.selection import Selection
from knockout.torch_private import is_transforming


def sinkhorn(
    scores: Tensor,
    k: int | float | Tensor,
    temperature: float = 0.1,
    steps: int = 50,
    mask: Tensor | None = None,
    order: Order = "score",
    max_k: int | None = None,
) -> Selection:
    """Optimal transport of one unit from each candidate to k slots of capacity 1 and a remainder of capacity n - k.

    The scores z of a row, standardized to mean 0 and deviation 1, are moved to the targets y = 1, (k-1)/k, ..., 1/k of
    the slots and 0 of the remainder, at a cost of (z - y)^2 per unit; ``temperature`` weighs the entropy of the
    transport plan. The scores may have any scale. Solved by ``steps`` Sinkhorn iterations in log space. The weights of
    a slot sum to 1; those of a candidate sum to at most 1 only once the iterations have converged. Low temperatures
    need more iterations.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> knockout.methods.sinkhorn(scores, k=2, temperature=0.5).weights()
    tensor([[0.0018, 0.8204, 0.0213, 0.1565],
            [0.0840, 0.1712, 0.2566, 0.4882]])

    Gradients are those of the iterations as they were run, not of their limit. Time O(steps k n); memory
    O(k n + steps n), backward included: up to 2**22 intermediate numbers are kept for it; beyond that (except under
    ``torch.func``) the iterations are computed again.
    """
    check_positive(temperature, "temperature")
    check_whole(steps, "steps")
    ranking = rank(scores, k, mask, order, max_k)
    score = standardize(ranking.score, ranking.active)
    slots = ranking.slot_count
    rest = ranking.active_count - slots
    # Logarithms of what each candidate supplies, and of what each target, the slots and then the remainder, takes in.
    # For nothing, a number that other logarithms can be added to, which -inf is not.
    log_zero = -1e30
    log_supply = torch.where(ranking.active, 0.0, log_zero).to(score.dtype)
    log_rest = torch.where(rest > 0, torch.log(rest.clamp(min=1).to(score.dtype)), log_zero)
    log_capacity = torch.cat([torch.where(ranking.filled, 0.0, log_zero).to(score.dtype), log_rest], dim=-1)
    number = torch.arange(log_capacity.shape[-1], dtype=score.dtype, device=scores.device)
    target = ((slots - number) / slots.clamp(min=1)).clamp(min=0.0)
    sharpness = min(2.0 / temperature, torch.finfo(score.dtype).max)
    potential = _candidate_potentials(score, target, log_supply, log_capacity, sharpness, steps)
    return ranking.selection(
        SinkhornPlan,
        standardized=score,
        target=target.gather(-1, ranking.slot),
        potential=potential,
        sharpness=sharpness,
    )


def standardize(score: Tensor, active: Tensor) -> Tensor:
    """Scores (..., n) with mean 0 and deviation 1 over the active candidates; all 0 where the scores are equal."""
    count = active.sum(dim=-1, keepdim=True).clamp(min=1)
    # Scaled to at most 1 first, so that no square overflows or vanishes.
    largest = score.detach().abs().amax(dim=-1, keepdim=True)
    score = score / torch.where(largest > 0, largest, 1.0)
    centered = torch.where(active, score - score.sum(dim=-1, keepdim=True) / count, 0.0)
    variance = centered.square().sum(dim=-1, keepdim=True) / count
    smallest = torch.finfo(score.dtype).eps ** 2
    deviation = torch.where(variance > smallest, variance, 1.0).sqrt()
    return torch.where(variance > smallest, centered, 0.0) / deviation


def _candidate_potentials(
    score: Tensor, target: Tensor, log_supply: Tensor, log_capacity: Tensor, sharpness: float, steps: int
) -> Tensor:
    """Potentials (..., n) of the candidates after so many iterations; those of the targets follow from them.

    Of -(z - y)^2 / temperature, the kernel is the part 2 z y / temperature; the potentials take up the squares.
    """

    def iteration(score: Tensor, potential: Tensor) -> Tensor:
        kernel = sharpness * score.unsqueeze(-1) * target.unsqueeze(-2)
        target_potential = log_capacity - torch.logsumexp(kernel + potential.unsqueeze(-1), dim=-2)
        return log_supply - torch.logsumexp(kernel + target_potential.unsqueeze(-2), dim=-1)

    recompute = torch.is_grad_enabled() and not is_transforming()
    recompute = recompute and steps * score.numel() * target.shape[-1] > SoftmaxPlan.CHUNK
    potential = log_supply
    for _ in range(steps):
        if recompute:
            potential = checkpoint(iteration, score, potential, use_reentrant=False, preserve_rng_state=False)
        else:
            potential = iteration(score, potential)
    return potential


@dataclass(eq=False)
class SinkhornPlan(SoftmaxPlan):
    """The transport plan between candidates and slots."""

    standardized: Tensor  # (*batch, n): scores
    target: Tensor  # (*batch, k): of the slots
    potential: Tensor  # (*batch, n): of the candidates
    sharpness: float

    def logits(self, start: int, stop: int) -> Tensor:
        # The potential of a slot is what makes its weights sum to one, which the softmax does.
        kernel = self.sharpness * self.standardized.unsqueeze(-2) * self.target[..., start:stop, None]
        return kernel + self.potential.unsqueeze(-2)
