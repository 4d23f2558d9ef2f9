"""DTensors as arguments and results: the part that this rank holds, and a local result as a DTensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard


class DTensorLayout(NamedTuple):
    """How scores are laid out on a mesh: candidates along one of its dimensions, batch dimensions along others."""

    mesh: DeviceMesh
    candidate_dim: int  # of the mesh
    placements: tuple[Placement, ...]  # of the scores
    shape: torch.Size  # of the scores, with the candidates of all ranks

    @property
    def group(self) -> dist.ProcessGroup:
        """The ranks that hold the other candidates of this rank's rows."""
        return self.mesh.get_group(self.candidate_dim)

    def wrap(self, result: Tensor, batch: Sequence[int], k: int | None) -> DTensor:
        """A local result (*batch, slots, ...) as a DTensor.

        ``batch`` are the batch dimensions of the values on all ranks; the scores may have fewer. ``k`` is the number of
        slots on all ranks if each rank has a part of them, or None if every rank has all.
        """
        batch = torch.broadcast_shapes(self.shape[:-1], torch.Size(batch))
        slot_dim = len(batch)
        added = slot_dim + 1 - len(self.shape)
        placements: list[Placement] = [Shard(added + p.dim) if isinstance(p, Shard) else p for p in self.placements]
        placements[self.candidate_dim] = Replicate() if k is None else Shard(slot_dim)
        shape = torch.Size((*batch, result.shape[slot_dim] if k is None else k, *result.shape[slot_dim + 1 :]))
        stride = torch.empty(shape, device="meta").stride()
        out: DTensor = DTensor.from_local(
            result.contiguous(), self.mesh, placements, run_check=False, shape=shape, stride=stride
        )
        return out


def layout_of(scores: object) -> DTensorLayout | None:
    """The layout of scores (..., n) that are sharded on the candidate dimension; None for an ordinary tensor."""
    if not isinstance(scores, DTensor):
        return None
    candidate_dims = [i for i, each in enumerate(scores.placements) if each.is_shard(scores.dim() - 1)]
    others = [each for i, each in enumerate(scores.placements) if i not in candidate_dims]
    if len(candidate_dims) != 1 or any(each.is_partial() for each in others):
        raise ValueError(
            f"scores must be sharded on their last dimension, the candidates, along exactly one dimension of the mesh, "
            f"and have no partial placement; got placements {scores.placements}"
        )
    return DTensorLayout(scores.device_mesh, candidate_dims[0], scores.placements, scores.shape)


def local_part(tensor: Tensor, name: str, layout: DTensorLayout | None, dim: int, sharded: bool = True) -> Tensor:
    """The part of a DTensor that this rank holds; an ordinary tensor as it is.

    The tensor must be laid out as the scores. Its candidates, or slots, are along dimension ``dim``, counted from the
    end; unless ``sharded``, every rank has all of them.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    if layout is None:
        raise TypeError(f"{name} must be an ordinary tensor, as scores; got a DTensor. Pass both as DTensors")
    added = tensor.dim() - dim - (len(layout.shape) - 1)  # batch dimensions that the scores do not have
    expected: list[Placement] = []
    for i, each in enumerate(layout.placements):
        at = tensor.dim() - dim if i == layout.candidate_dim else added + each.dim if isinstance(each, Shard) else None
        if at is not None and at < 0 and name in ("values", "y"):
            # Their gradient would be a sum over ranks outside of the process group of this call.
            raise ValueError(
                f"{name} must have the batch dimensions of scores that are sharded; got shape {tuple(tensor.shape)} "
                f"for scores of shape {tuple(layout.shape)} with placements {layout.placements}. Expand them"
            )
        whole = i == layout.candidate_dim and not sharded
        expected.append(Replicate() if whole or at is None or at < 0 else Shard(at))
    if tensor.device_mesh != layout.mesh or list(tensor.placements) != expected:
        raise ValueError(
            f"{name} must be laid out as scores, with placements {tuple(expected)} on {layout.mesh}; got "
            f"{tensor.placements} on {tensor.device_mesh}. Pass {name}.redistribute(placements=...)"
        )
    out: Tensor = tensor.to_local()
    return out
