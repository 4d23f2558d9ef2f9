"""DTensors: what this rank holds of them, and results as DTensors again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard


class Layout(NamedTuple):
    """Where the candidates of DTensors are: along one dimension of a mesh. Along others, rows of the batch may be."""

    mesh: DeviceMesh
    along: int
    placements: tuple[Placement, ...]  # of the scores
    shape: torch.Size  # of the scores, all candidates

    @property
    def group(self) -> dist.ProcessGroup:
        """Of the ranks that share the candidates of this one's rows."""
        return self.mesh.get_group(self.along)

    def wrap(self, result: Tensor, batch: Sequence[int], k: int | None) -> DTensor:
        """A result (*batch, k, ...) as a DTensor; k if each rank has a part of the slots.

        ``batch`` is that of the values on all ranks, which may be more than that of the scores.
        """
        batch = torch.broadcast_shapes(self.shape[:-1], torch.Size(batch))
        slots = len(batch)
        more = slots + 1 - len(self.shape)
        placements: list[Placement] = [Shard(more + p.dim) if isinstance(p, Shard) else p for p in self.placements]
        placements[self.along] = Replicate() if k is None else Shard(slots)
        shape = torch.Size((*batch, result.shape[slots] if k is None else k, *result.shape[slots + 1 :]))
        stride = torch.empty(shape, device="meta").stride()
        out: DTensor = DTensor.from_local(
            result.contiguous(), self.mesh, placements, run_check=False, shape=shape, stride=stride
        )
        return out


def layout_of(scores: object) -> Layout | None:
    """Of scores (..., n) that are sharded on the candidate dimension; None for an ordinary tensor."""
    if not isinstance(scores, DTensor):
        return None
    along = [i for i, each in enumerate(scores.placements) if each.is_shard(scores.dim() - 1)]
    others = [each for i, each in enumerate(scores.placements) if i not in along]
    if len(along) != 1 or any(each.is_partial() for each in others):
        raise ValueError(
            f"scores must be sharded on their last dimension, the candidates, along one dimension of the mesh, and "
            f"nowhere be partial; got placements {scores.placements}"
        )
    return Layout(scores.device_mesh, along[0], scores.placements, scores.shape)


def local(tensor: Tensor, name: str, layout: Layout | None, dim: int) -> Tensor:
    """What this rank holds of a DTensor whose candidates, along ``dim`` from the end, are as those of the scores."""
    if not isinstance(tensor, DTensor):
        return tensor
    if layout is None:
        raise TypeError(f"{name} must be an ordinary tensor, as scores; got a DTensor. Pass both as DTensors")
    more = tensor.dim() - dim - (len(layout.shape) - 1)  # batch dimensions that the scores have not
    expected: list[Placement] = []
    for i, each in enumerate(layout.placements):
        at = tensor.dim() - dim if i == layout.along else more + each.dim if isinstance(each, Shard) else None
        if at is not None and at < 0 and name == "values":
            # Their gradient would have to be added up over ranks that know nothing of each other here.
            raise ValueError(
                f"values must have the batch dimensions of scores that are sharded; got shape {tuple(tensor.shape)} "
                f"for scores of shape {tuple(layout.shape)} with placements {layout.placements}. Expand them"
            )
        expected.append(Replicate() if at is None or at < 0 else Shard(at))
    if tensor.device_mesh != layout.mesh or list(tensor.placements) != expected:
        raise ValueError(
            f"{name} must be laid out as scores, with placements {tuple(expected)} on {layout.mesh}; got "
            f"{tensor.placements} on {tensor.device_mesh}. Pass {name}.redistribute(placements=...)"
        )
    out: Tensor = tensor.to_local()
    return out
