"""The true top k by score as a Selection, at the cost of ``torch.topk``. Ties are broken by the lower index.

``torch.topk`` does not say which of equal scores it takes, and that may depend on the length of the row: a mask would
no longer mean deletion. On the CPU the scores that it found tell whether there are ties; only then something is done
about them. Where no number can be looked at, the index becomes a part of what is compared. While a program is exported
it is ``torch.topk`` alone, which every runtime has. (The one of ONNX takes the lower index by itself.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from knockout.candidates import invalidate
from knockout.dtypes import computing_dtype
from knockout.ops.choice import choose
from knockout.plan import HardPlan
from knockout.quota import Quota
from knockout.selection import Selection
from knockout.selection_tensors import Origin
from knockout.tracing import is_exporting, is_readable


class Best(NamedTuple):
    """The best candidates of each row, best first."""

    score: Tensor  # (*batch, k) in the computing dtype
    place: Tensor  # (*batch, k) int64
    valid: Tensor  # (*batch, 1) bool: False for a row with a NaN or +inf score
    filled: Tensor | None  # (*batch, k) bool: which slots have a candidate; None if all have one, in valid rows


def hard_selection(
    scores: Tensor, quota: Quota, mask: Tensor | None, by_position: bool = False, origin: Origin | None = None
) -> Selection:
    """The top k of scores (..., n) without gradient and a mask (..., n), both already checked."""
    backend, n = choose(scores), scores.shape[-1]
    score, index, valid, filled = _best(scores, quota, mask)
    if by_position:  # empty slots last
        place = (index if filled is None else torch.where(filled, index, n)).argsort(dim=-1)
        score, index = score.gather(-1, place), index.gather(-1, place)
        filled = None if filled is None else filled.gather(-1, place)
    if filled is None:
        filled, weight = torch.ones_like(index, dtype=torch.bool), torch.ones_like(score)
        member = leader = index
    else:
        member, leader = torch.where(filled, index, n), torch.where(filled, index, -1)
        weight = invalidate(filled.to(score.dtype), valid)
        score = invalidate(torch.where(filled, score, 0.0), valid)
    plan = HardPlan(n, valid, member.unsqueeze(-1), weight.unsqueeze(-1), score, hard=True, backend=backend)
    return Selection(plan, leader, filled, scores.dtype, origin)


def _best(scores: Tensor, quota: Quota, mask: Tensor | None) -> Best:
    """The true top k. Inactive candidates rank as -inf."""
    dtype = computing_dtype(scores.dtype)
    key = scores if scores.dtype == dtype else scores.to(dtype)  # to() is slow even if nothing changes
    if mask is not None:
        key = torch.where(mask, key, -torch.inf)
    if is_readable(key) and (found := _by_what_is_found(key, quota)):
        return found
    valid = (key < torch.inf).all(dim=-1, keepdim=True)
    key = torch.where(valid | (key == -torch.inf), key, 0.0)  # all equal in an invalid row
    score, index = key.topk(quota.k, dim=-1) if is_exporting() else _lower_index_first(key, quota.k)
    return Best(score, index, valid, _filled(score, key, quota))


def _by_what_is_found(key: Tensor, quota: Quota) -> Best | None:
    """The top k of rows that are all valid, or None: ties are only looked for among the best k + 1 scores."""
    k, n = quota.k, key.shape[-1]
    found, place = key.topk(min(k + 1, n), dim=-1)  # NaN comes first
    score, index = found.narrow(-1, 0, k).contiguous(), place.narrow(-1, 0, k).contiguous()
    valid = found.narrow(-1, 0, 1) < torch.inf
    if found.shape[-1] > 1 and found.numel():
        least, most = found.diff(dim=-1).aminmax()
        if most.item() < 0 and least.item() > -torch.inf and not quota.varies:
            return Best(score, index, valid, None)  # all of them differ, and are finite
    if not valid.all():
        return None
    last = score[..., -1]
    if k < n and (tied := (found[..., k] == last) & (last != -torch.inf)).any():
        # Between a candidate that is in and one that is not.
        score[tied], index[tied] = _lower_index_first(key[tied], k)
    if not (score[..., 1:] < score[..., :-1]).all():  # maybe between two that are both in
        index = index.sort(dim=-1).values
        score, place = key.gather(-1, index).sort(dim=-1, descending=True, stable=True)
        index = index.gather(-1, place)
    return Best(score, index, valid, _filled(score, key, quota))


def _lower_index_first(key: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``key.topk(k)`` of keys (..., n) without NaN, in which the lower index comes first among equals."""
    if key.dtype == torch.float32:
        # Floats as integers of the same order: those of negative ones run backwards. (-0.0 + 0.0 is 0.0.)
        bits = (key + 0.0).view(torch.int32)
        bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        last_first = torch.arange(key.shape[-1], device=key.device).flip(-1)
        index = (bits.long() * 2**32 + last_first).topk(k, dim=-1).indices
    else:  # there is no room for the index beside 64 bits
        index = key.sort(dim=-1, descending=True, stable=True).indices[..., :k].contiguous()
    return key.gather(-1, index), index


def _filled(score: Tensor, key: Tensor, quota: Quota) -> Tensor:
    return quota.filled(key != -torch.inf) if quota.varies else score != -torch.inf
