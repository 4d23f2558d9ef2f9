"""Which kernels play the rounds of a tournament, over what."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from knockout.ops.triton import long_rows
from knockout.ops.triton.call import NUMBERS, Call
from knockout.ops.triton.entries import NARROW
from knockout.ops.triton.launch import launch
from knockout.ops.triton.play import play

_BLOCK = 2048  # entries that one program plays with; registers would not do for more
_FEW_LAUNCHES = 2**15  # entries of a full field, for n up to 16384
_PACKED = 1024  # of a program that plays several rows
_CHUNK = 2048  # entries of a long row that are ranked together
_MERGED = 2**16  # entries of a row that are ranked by kernels of ours; longer rows, by torch.sort


class Played(NamedTuple):
    """What the rounds did: see play.py. Freed once the result is there."""

    order: Tensor
    perm: Tensor
    share: Tensor
    top: Tensor
    gap: Tensor
    final_score: Tensor
    final_leader: Tensor
    slot_place: Tensor
    state: Tensor

    @staticmethod
    def empty(call: Call, like: Tensor, state: Tensor, save: bool) -> Played:
        """Memory for the rounds of a call."""
        order, perm = like.new_empty((2, call.rows, call.full), dtype=torch.int32)
        numbers = like.new_empty((3 if save else 1, call.rows, call.full), dtype=call.dtype)
        share, top, gap = numbers.expand(3, -1, -1)
        final_score = like.new_empty((call.rows, call.k), dtype=call.dtype)
        final_leader, slot_place = like.new_empty((2, call.rows, call.k), dtype=torch.int32)
        return Played(order, perm, share, top, gap, final_score, final_leader, slot_place, state)


class Field(NamedTuple):
    """A ranked field of long rows: see entries.py."""

    keys: Tensor  # (rows, entries)
    payloads: Tensor


def play_rounds(call: Call, scores: Tensor, mask: Tensor | None, played: Played, by_position: bool, save: bool) -> None:
    """All rounds. Those of a field too long for one program first; then one launch for the rest."""
    mask = None if mask is None else mask.view(torch.uint8)
    wide = call.dtype == torch.float64 or max(call.n, call.full) > NARROW
    first, field = 0, None
    if call.full > _BLOCK:
        field = _enter(call, scores, mask, played)
        while first < call.played and call.k << (call.played - first) > _most(call):
            field = _play_round(call, field, first, played, save)
            first += 1
    if first == call.played:
        if by_position:
            played.slot_place.copy_(played.final_leader.argsort(dim=-1))
        return
    # A field in memory is twice as long as the block: its pairs are blended as they are read.
    block = max(16, triton.next_power_of_2(call.k << (call.played - first)) // (1 if field is None else 2))
    rows = max(1, _PACKED // block) if field is None else 1
    launch(
        play, (triton.cdiv(call.rows, rows),), rows * block, **call.sizes, **call.quota, **call.boost, scores=scores,
        mask=mask, keys=field and field.keys, payloads=field and field.payloads, order=played.order, perm=played.perm,
        share_out=played.share, top_out=played.top, gap_out=played.gap, final_score=played.final_score,
        final_leader=played.final_leader, slot_place=played.slot_place, state=played.state, scale_bits=call.scale,
        rows=call.rows, rounds=call.played, first=first, ROWS=rows, BLOCK=block, WIDE=wide, HAS_MASK=mask is not None,
        BY_POSITION=by_position, SAVE=save, RESUME=field is not None,
    )  # fmt: skip


def _most(call: Call) -> int:
    """The entries of a ranked field that one program goes on with.

    For n up to 16384, all that one round leaves, though registers do not do for more than two blocks: eight launches
    are to be enough.
    """
    return max(2 * _BLOCK, call.full // 2) if call.full <= _FEW_LAUNCHES else 2 * _BLOCK


def _chunk(entries: int) -> int:
    return int(min(_CHUNK, triton.next_power_of_2(entries)))


def _enter(call: Call, scores: Tensor, mask: Tensor | None, played: Played) -> Field:
    """The field before the first round."""
    merged = call.full <= _MERGED
    chunk = _chunk(call.n)
    width = triton.cdiv(call.n, chunk) * chunk if merged else call.full
    keys, payloads = scores.new_empty((2, call.rows, width), dtype=torch.int64)
    launch(
        long_rows.enter, (call.rows * triton.cdiv(width, chunk),), chunk, scores=scores, mask=mask, keys=keys,
        payloads=payloads, state=played.state, **call.quota, **call.sizes, width=width, chunks=triton.cdiv(width,
        chunk), CHUNK=chunk, NUMBER=NUMBERS[call.dtype], HAS_MASK=mask is not None, SORT=merged,
    )  # fmt: skip
    return _ranked(call, Field(keys, payloads), chunk, call.full, merged, played.order, 0, first=True)


def _play_round(call: Call, field: Field, at: int, played: Played, save: bool) -> Field:
    """One round, and the field after it."""
    entries = call.k << (call.played - at)
    merged = entries // 2 <= _MERGED
    chunk = _chunk(entries // 2)
    width = triton.cdiv(entries // 2, chunk) * chunk if merged else entries // 2
    keys, payloads = field.keys.new_empty((2, call.rows, width))
    launch(
        long_rows.play_round, (call.rows * triton.cdiv(width, chunk),), chunk, **call.sizes, **call.boost,
        keys=field.keys, payloads=field.payloads, keys_out=keys, payloads_out=payloads, share_out=played.share,
        top_out=played.top, gap_out=played.gap, final_score=played.final_score, final_leader=played.final_leader,
        state=played.state, scale_bits=call.scale, rounds=call.played, at=at, width=width,
        chunks=triton.cdiv(width, chunk), CHUNK=chunk, SAVE=save, SORT=merged,
    )  # fmt: skip
    if at == call.played - 1:
        return Field(keys, payloads)
    start = call.full - (call.full >> at)
    return _ranked(call, Field(keys, payloads), chunk, entries // 2, merged, played.perm, start, first=False)


def _ranked(
    call: Call, field: Field, chunk: int, entries: int, merged: bool, places: Tensor, start: int, first: bool
) -> Field:
    """Rank a field of ``entries``, from sorted chunks or from any order, and write the places from ``start`` on."""
    if not merged:
        return _ranked_by_torch(call, field, entries, places, start, first)
    keys, payloads = field.keys.new_empty((2, call.rows, entries))
    width = field.keys.shape[1]
    part = min(1024, chunk)
    launch(
        long_rows.merge, (call.rows * (width // part),), part, keys=field.keys, payloads=field.payloads, keys_out=keys,
        payloads_out=payloads, places=places, chunks=width // chunk, field=entries, places_length=call.full,
        places_from=start, CHUNK=chunk, PART=part, NUMBER=NUMBERS[call.dtype], FIRST=first,
    )  # fmt: skip
    return Field(keys, payloads)


def _ranked_by_torch(call: Call, field: Field, entries: int, places: Tensor, start: int, first: bool) -> Field:
    """The same by ``torch.sort``, for rows that are longer still."""
    if call.dtype == torch.float32:  # all keys differ, and the payload of an entry is where it stands
        keys, index = field.keys.sort(dim=-1)
        payloads = index
        place = keys & 0xFFFFFFFF if first else index
    else:
        by_leader = field.payloads.argsort(dim=-1)
        keys, index = field.keys.gather(-1, by_leader).sort(dim=-1, stable=True)
        payloads = field.payloads.gather(-1, by_leader.gather(-1, index))
        place = payloads >> 32 if first else payloads & 0xFFFFFFFF
    places[:, start : start + entries].copy_(place)
    return Field(keys, payloads)
