"""The operator ``tournament``: rounds are played, then slots are walked down to their members."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from knockout.ops.triton.call import NUMBERS, Saved, call_of
from knockout.ops.triton.expand import expand
from knockout.ops.triton.launch import launch
from knockout.ops.triton.rounds import Played, play_rounds


def tournament(
    scores: Tensor, mask: Tensor | None, c_tensor: Tensor | None, unit_tensor: Tensor | None, k: int, numerator: int,
    kind: int, alpha: int, c: float, unit: float, by_position: bool, save: bool, fixed: bool,
    counts: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As the schema says; shapes never depend on data."""
    batch, new = scores.shape[:-1], scores.new_empty
    call = call_of(scores, c_tensor, unit_tensor, k, numerator, kind, alpha, c, unit, save, counts)
    members = 1 << call.rounds
    member = new((*batch, k, members), dtype=torch.int32)
    weight = new(member.shape, dtype=call.dtype)
    score = new((*batch, k), dtype=call.dtype)
    leader = new((*batch, k), dtype=torch.int64)
    filled = new((*batch, k), dtype=torch.bool)
    valid = new((*batch, 1), dtype=torch.bool)
    saved = new((*batch, call.saved_length), dtype=torch.int32)
    if save and call.dtype == torch.float64 and call.leaves % 2:
        saved[..., -1:].zero_()  # padding: see saved_length
    if call.rows == 0:
        return member, weight, score, leader, filled, valid, saved
    parts = Saved.of(saved, call) if save else None
    state = parts.state if parts else new(call.rows * call.state_stride, dtype=torch.float64)
    played = Played.empty(call, scores, state, save)
    play_rounds(call, scores.contiguous(), None if mask is None else mask.contiguous(), played, by_position, save)

    leaves = min(members, 1024)
    slots = max(1, 1024 // leaves)
    nodes = parts or Saved(*(state,) * 7)  # nothing is written to these
    launch(
        expand, (triton.cdiv(call.rows * k, slots),), slots * leaves, **call.sizes, **call.strides, **played._asdict(),
        member_out=member, weight_out=weight, score_out=score, leader_out=leader, filled_out=filled.view(torch.int8),
        valid_out=valid.view(torch.int8), node_share=nodes.share, node_top=nodes.top, node_gap=nodes.gap,
        node_place=nodes.place, leaf_candidate=nodes.candidate, leaf_position=nodes.position, rows=call.rows,
        rounds=call.rounds, played=call.played, SLOTS=slots, LEAVES=leaves, NUMBER=NUMBERS[call.dtype],
        BY_POSITION=by_position, SAVE=save,
    )  # fmt: skip
    return member, weight, score, leader, filled, valid, saved
