"""Perturbed top-k (Berthet et al. 2020, arXiv 2002.08676; Cordonnier et al. 2021, arXiv 2104.03059)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from knockout.candidates import candidates, sort_key
from knockout.checks import check_generator, check_positive, check_scores, check_whole
from knockout.methods.slots import Slots, in_order, selection
from knockout.selection import Selection


def perturbed(
    scores: Tensor,
    k: int | float,
    temperature: float = 0.1,
    samples: int = 100,
    generator: torch.Generator | None = None,
    mask: Tensor | None = None,
) -> Selection:
    """Slot i: how often each candidate comes i-th when Gaussian noise is added to the scores, so many ``samples``.

    ``temperature`` is the deviation of the noise. The gradient of a slot is the covariance of what is in it with the
    noise, over the temperature: the whole Jacobian, not its diagonal alone, which is what the code that came with the
    second paper takes; unbiased, and noisy. It has no second derivative. Time O(samples n log k + k n d); memory
    O(samples (n + k)) plus a few chunks of 2**22 weights.

    The hard twin is ``torch.topk(scores, k).indices``:

    >>> import torch, knockout
    >>> scores = torch.tensor([0.0, 2.0, 0.5, 1.0])
    >>> generator = torch.Generator().manual_seed(0)
    >>> knockout.methods.perturbed(scores, k=2, temperature=0.3, generator=generator).weights()
    tensor([[0.0000, 0.9800, 0.0000, 0.0200],
            [0.0100, 0.0200, 0.1300, 0.8400]])
    """
    quota = check_scores(scores, k, mask)
    check_positive(temperature, "temperature")
    check_whole(samples, "samples", least=2)
    check_generator(generator)
    entrants = candidates(scores, mask)
    order = in_order(entrants, quota)
    score, active = entrants.score, entrants.active
    noise = torch.randn(
        (*score.shape[:-1], samples, score.shape[-1]), dtype=score.dtype, device=score.device, generator=generator
    )
    shaken = score.detach().unsqueeze(-2) + temperature * noise
    picks = sort_key(shaken, active.unsqueeze(-2)).topk(quota.k, dim=-1).indices.mT
    plan = Perturbed(
        n=scores.shape[-1],
        k=quota.k,
        valid=entrants.valid,
        score=score,
        active=active,
        filled=order.filled,
        masked=mask is not None,
        noise=torch.where(active.unsqueeze(-2), noise, 0.0),
        picks=picks.contiguous(),
        temperature=temperature,
    )
    return selection(plan, order, scores.dtype)


@dataclass(eq=False)
class Perturbed(Slots):
    """Who came to which slot in which sample."""

    noise: Tensor  # (*batch, samples, n); 0 for those who take no part
    picks: Tensor  # (*batch, k, samples) int64
    temperature: float

    def slot_weights(self, start: int, stop: int) -> Tensor:
        picks = self.picks[..., start:stop, :]
        weight: Tensor = _Expectation.apply(self.score, picks, self.noise, self.temperature)  # type: ignore[no-untyped-call]
        return self.kept(weight, start, stop)

    def logits(self, start: int, stop: int) -> Tensor:
        return torch.log(self.slot_weights(start, stop))


class _Expectation(Function):
    """Means of one-hot rows over samples, (*batch, slots, n). With G their gradient and Z the noise of a sample,

    ds = cov(<G, rows of the sample>, Z) / temperature.
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
        centred = (value - value.mean(dim=-1, keepdim=True)) / (picks.shape[-1] - 1) / ctx.temperature
        return (centred.unsqueeze(-2) @ noise).squeeze(-2), None, None, None
