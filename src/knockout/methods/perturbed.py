"""Perturbed top-k (Berthet et al. 2020, arXiv 2002.08676; Cordonnier et al. 2021, arXiv 2104.03059)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from knockout.candidates import sort_key
from knockout.checks import check_generator, check_positive, check_whole
from knockout.functional import Order
from knockout.methods.softmax_plan import RankedPlan, rank
from knockout.selection import Selection


def perturbed(
    scores: Tensor,
    k: int | float | Tensor,
    temperature: float = 0.1,
    samples: int = 100,
    generator: torch.Generator | None = None,
    mask: Tensor | None = None,
    order: Order = "score",
    max_k: int | None = None,
) -> Selection:
    """Slot i: how often each candidate ranks i-th when Gaussian noise is added to the scores, over ``samples`` draws.

    ``temperature`` is the standard deviation of the noise. The gradient of a slot is the covariance of what is in it
    with the noise, over the temperature: unbiased, and noisy. It is the whole Jacobian; the code published with the
    second paper takes its diagonal only. There is no second derivative.

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> generator = torch.Generator().manual_seed(0)
    >>> knockout.methods.perturbed(scores, k=2, temperature=0.3, generator=generator).weights()
    tensor([[0.0000, 0.9800, 0.0000, 0.0200],
            [0.0100, 0.0200, 0.1300, 0.8400]])

    Time O(samples n log k + k n d); memory O(samples (n + k)) plus a few chunks of 2**22 weights.
    """
    check_positive(temperature, "temperature")
    check_whole(samples, "samples", least=2)
    check_generator(generator)
    ranking = rank(scores, k, mask, order, max_k)
    score, active = ranking.score, ranking.active.unsqueeze(-2)
    noise = torch.randn(
        (*score.shape[:-1], samples, score.shape[-1]), dtype=score.dtype, device=score.device, generator=generator
    )
    noisy = score.detach().unsqueeze(-2) + temperature * noise
    picks = sort_key(noisy, active).topk(ranking.k, dim=-1).indices.mT
    return ranking.selection(
        PerturbedPlan, noise=torch.where(active, noise, 0.0), picks=ranking.arranged(picks), temperature=temperature
    )


@dataclass(eq=False)
class PerturbedPlan(RankedPlan):
    """The candidate in each slot, sample by sample; the weights are their frequencies."""

    noise: Tensor  # (*batch, samples, n); 0 for inactive candidates
    picks: Tensor  # (*batch, k, samples) int64
    temperature: float

    def raw_weights(self, start: int, stop: int) -> Tensor:
        picks = self.picks[..., start:stop, :]
        weight: Tensor = _Expectation.apply(self.score, picks, self.noise, self.temperature)  # type: ignore[no-untyped-call]
        return weight


class _Expectation(Function):
    """Means of one-hot rows over the samples, (*batch, slots, n).

    With G the gradient of the means, and Z the noise of a sample,  ds = cov(<G, rows of the sample>, Z) / temperature.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(score: Tensor, picks: Tensor, noise: Tensor, temperature: float) -> Tensor:  # noqa: ARG004
        blank = score.new_zeros(*picks.shape[:-1], score.shape[-1])
        return blank.scatter_add(-1, picks, torch.full_like(picks, 1.0 / picks.shape[-1], dtype=score.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        _, picks, noise, ctx.temperature = inputs
        ctx.save_for_backward(picks, noise)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        picks, noise = ctx.saved_tensors
        value = grad.gather(-1, picks).sum(dim=-2)  # (*batch, samples)
        centered = (value - value.mean(dim=-1, keepdim=True)) / (picks.shape[-1] - 1) / ctx.temperature
        return (centered.unsqueeze(-2) @ noise).squeeze(-2), None, None, None
