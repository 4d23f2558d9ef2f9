"""The backend ``reference``: plain PyTorch, on every device, for every boost."""

from __future__ import annotations

import torch
from torch import Tensor

from knockout.boost import Boost
from knockout.candidates import candidates
from knockout.ops import schema
from knockout.ops.arguments import checked
from knockout.ops.backend import Backend
from knockout.ops.boost_code import BoostCode, decode
from knockout.ops.reference import gather
from knockout.ops.reference.tournament import tournament as run_tournament
from knockout.quota import Quota


def tournament(
    scores: Tensor, mask: Tensor | None, c_tensor: Tensor | None, unit_tensor: Tensor | None, k: int, numerator: int,
    kind: int, alpha: int, c: float, unit: float, by_position: bool, save: bool, fixed: bool,
    counts: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As the schema says. Nothing is saved: the backward pass plays again."""
    boost = decode(BoostCode(kind, alpha, c, unit), c_tensor, unit_tensor)
    with torch.no_grad():
        selected = run_tournament(candidates(scores, mask), _quota(k, numerator, counts), boost, by_position)
    # An operator must not return one tensor twice, or views of another one.
    batch = selected.score.shape[:-1]
    return *(each.clone() for each in selected), scores.new_empty((*batch, 0), dtype=torch.int32)


def tournament_backward(
    d_weight: Tensor | None, d_score: Tensor | None, scores: Tensor, mask: Tensor | None, c_tensor: Tensor | None,
    unit_tensor: Tensor | None, member: Tensor, saved: Tensor, k: int, numerator: int, kind: int, alpha: int, c: float,
    unit: float, by_position: bool, counts: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As the schema says."""
    if d_weight is None and d_score is None:
        return torch.zeros_like(scores)
    boost = decode(BoostCode(kind, alpha, c, unit), c_tensor, unit_tensor)
    with torch.enable_grad():
        scores = scores.detach().requires_grad_()
        selected = run_tournament(candidates(scores, mask), _quota(k, numerator, counts), boost, by_position)
        outputs, given = (selected.weight, selected.score), (d_weight, d_score)
        pairs = [(output, each) for output, each in zip(outputs, given, strict=True) if each is not None]
        (d_scores,) = torch.autograd.grad([output for output, _ in pairs], scores, [each for _, each in pairs])
    return d_scores


def _quota(k: int, numerator: int, counts: Tensor | None) -> Quota:
    """The quota; counts that were not looked at, since that means to wait for the device, may be out of range."""
    return Quota(k, numerator, None if counts is None else counts.clamp(1, k))


class Reference(Backend):
    """Plain PyTorch: it refuses nothing."""

    name = "reference"

    tournament = staticmethod(tournament)
    tournament_backward = staticmethod(tournament_backward)
    blend = staticmethod(gather.blend)
    spread = staticmethod(gather.spread)
    match = staticmethod(gather.match)

    def why_not(self) -> str:
        return ""

    def refuses(self, scores: Tensor, boost: Boost | None) -> str:
        return ""


# What the operators run on devices that no other backend has kernels for.
for _name in schema.SCHEMAS:
    schema.implement(_name, checked(_name, getattr(Reference, _name)), "CompositeExplicitAutograd")
