"""The weighted gather and its two derivatives, in plain PyTorch: what they compute is in ops/autograd/gather.py.

All three run on ``embedding_bag``, which gathers, weighs and adds in one pass on every device: ten times faster than
gather + multiply + sum, or than scatter_add, at n = 16384 (``python -m benchmarks gather``). Its own autograd is not
used: it has no second derivative.

``embedding_bag`` cannot skip a member, so padding is given a weight of 0 and a value row that the slot reads anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from knockout.dtypes import computing_dtype
from knockout.torch_private import embedding_bag_weight_gradient


def blend(values: Tensor, weight: Tensor, member: Tensor, valid: Tensor | None, hard: bool) -> Tensor:
    """Weighted sums (*batch, k, d) of values (*rows, n, d), or with ``hard`` the leaders' value rows."""
    member, real = _members(member, values.shape[-2])
    rows, table = _rows(member, real, values), _table(values)
    if hard and table.shape[0]:
        blended = table[rows[..., 0]]
    else:
        blended = weighted_sums(table, torch.where(real, weight, 0.0), rows)
    # An empty slot holds zeros, whatever was looked up for it; so does a hard one whose leader is padding.
    filled = real[..., :1] if hard else real.any(dim=-1, keepdim=True)
    blended = torch.where(filled, blended, 0.0)
    if valid is not None:
        blended = torch.where(valid.unsqueeze(-1), blended, torch.nan)
    return blended.to(values.dtype)


def spread(grad: Tensor, weight: Tensor, member: Tensor, shape: Sequence[int]) -> Tensor:
    """The gradient of the values, of this shape (*rows, n, d), from that of the result (*batch, k, d)."""
    batch, k, m, n = weight.shape[:-2], weight.shape[-2], weight.shape[-1], shape[-2]
    # Seen from the candidates: which slot is each one in, with which weight? One more column takes the padding.
    # Candidates in no slot get the row of zeros below the gradients of all slots.
    place = _members(member, n)[0].flatten(-2)
    slot = torch.arange(k, device=member.device).repeat_interleave(m) + _offsets(batch, k, member.device)
    slot = torch.full((*batch, n + 1), math.prod(batch) * k, device=member.device).scatter(-1, place, slot)
    share = weight.new_zeros(*batch, n + 1).scatter(-1, place, weight.flatten(-2))
    table = pad(_table(grad), (0, 0, 0, 1))
    # A value row that several batch entries share gets the sum of their parts: they go last, and are summed as a bag.
    shared = [dim for dim, size in enumerate(shape[:-2]) if size == 1]
    last = list(range(-len(shared), 0))
    bags = (*shape[:-1], math.prod([batch[dim] for dim in shared]))
    share, slot = (x[..., :n].movedim(shared, last).reshape(bags) for x in (share, slot))
    return weighted_sums(table, share, slot).to(grad.dtype)


def match(grad: Tensor, values: Tensor, member: Tensor, float64: bool) -> Tensor:
    """The gradient of the weights (*batch, k, m); 0 for padding."""
    dtype = torch.float64 if float64 else torch.float32
    member, real = _members(member, values.shape[-2])
    rows, table = _rows(member, real, values), _aligned(_table(values))
    if table.numel() == 0 or rows.numel() == 0:
        return values.new_zeros(rows.shape, dtype=dtype)
    bag = torch.arange(math.prod(rows.shape[:-1]), device=rows.device).repeat_interleave(rows.shape[-1])
    dots = embedding_bag_weight_gradient(_aligned(_table(grad)), table, rows.flatten(), bag)
    return torch.where(real, dots.reshape(rows.shape), 0.0).to(dtype)


def weighted_sums(table: Tensor, weight: Tensor, rows: Tensor) -> Tensor:
    """Weighted sums (..., d) of rows (..., m) of a table (any, d)."""
    shape = (*rows.shape[:-1], table.shape[-1])
    if table.numel() == 0 or rows.numel() == 0:
        return table.new_zeros(shape)
    bags = (math.prod(rows.shape[:-1]), rows.shape[-1])
    weight = weight.to(table.dtype).reshape(bags).contiguous()
    return embedding_bag(rows.reshape(bags), table, mode="sum", per_sample_weights=weight).reshape(shape)


def _members(member: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Members as int64, n for all padding; and where they are candidates. Numbers out of range are padding, too.

    The first step is a copy: ``embedding_bag`` does not check all indices, and another thread might change them.
    """
    member = member.clamp(-1, n).long()
    real = (member >= 0) & (member < n)
    return torch.where(real, member, n), real


def _offsets(batch: Sequence[int], step: int, device: torch.device) -> Tensor:
    """0, step, 2 step, ... (*batch, 1): where the rows of each batch entry start in a flat table."""
    return (torch.arange(math.prod(batch), device=device) * step).reshape(*batch, 1)


def _rows(member: Tensor, real: Tensor, values: Tensor) -> Tensor:
    """Members (*batch, k, m) as rows of the flat table of values; padding, as another member of the same slot."""
    n = values.shape[-2]
    member = torch.where(real, member, member.amin(dim=-1, keepdim=True).clamp(max=n - 1))
    return member + _offsets(values.shape[:-2], n, member.device).unsqueeze(-1)


def _table(values: Tensor) -> Tensor:
    """(..., d) as contiguous rows (rows, d), half types as float32."""
    values = values.to(computing_dtype(values.dtype))
    return values.reshape(math.prod(values.shape[:-1]), values.shape[-1]).contiguous()


def _aligned(table: Tensor) -> Tensor:
    """Rows padded to a multiple of four numbers: a dot product may round by how its rows are aligned in memory."""
    odd = -table.shape[-1] % 4
    return pad(table, (0, odd)) if odd else table
