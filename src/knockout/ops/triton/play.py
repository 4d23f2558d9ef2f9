"""The rounds of the tournament, in one launch: a program plays some rows, or one, in registers.

A field of at most ``2 half`` entries lies in the middle of its block, best first, between padding: then the opponent of
an entry is found by turning the block around, whatever ``half`` is. Padding is sorted into its place together with the
entries. As the field shrinks, the program goes on with an eighth of the block.

What a round did is written to memory by rank and read by later launches only: for each pair the share of the better
entry, its score and the gap; for each entry the place, that is, the pair of the round before that it came from.
"""

from __future__ import annotations

import triton
import triton.language as tl

from knockout.ops.triton.arithmetic import exact_sum, largest, smallest
from knockout.ops.triton.boost import ADAPTIVE, RELATIVE, logit, mean_gap, number, share_of, width_of
from knockout.ops.triton.entries import (
    BACK,
    FRONT,
    pack,
    pack_leader,
    unpack_leader,
    unpack_place,
    unpack_score,
)
from knockout.ops.triton.round_from_memory import round_from_memory
from knockout.ops.triton.rows import (
    COUNT,
    ROUND,
    SPREAD,
    VALID,
    WANTED,
    played_rounds,
    read_scores,
    scale_of_round,
    slot_count,
)
from knockout.ops.triton.sort import flip, part, sort

_DOWN = tl.constexpr(2.0**-40)


@triton.jit
def spread_of(score, rank, count, NUMBER: tl.constexpr):
    """The spread (rows, 1) of the scores of a row, best first: see ``_spread`` of boost.py."""
    pairs = count // 2
    widest = pairs // 8
    scaled = score.to(tl.float64) * _DOWN
    middle = tl.sum(tl.where(rank == (count - 1) // 2, scaled, 0.0), 1, keep_dims=True)
    counted = (rank >= widest) & (rank < count - widest)
    distance = tl.where(rank < pairs, scaled - middle, tl.where(rank >= count - pairs, middle - scaled, 0.0))
    total = exact_sum(tl.where(counted, distance, 0.0), count - 2 * widest)
    mean = total / tl.maximum(pairs - widest, 1).to(tl.float64) * 2.0**40
    limit = largest(tl.zeros([1, 1], NUMBER))
    return tl.minimum(mean, limit.to(tl.float64)).to(NUMBER)


@triton.jit
def _play_in_block(
    key, payload, scale, spread, at, first, row, inside_rows, count, slots, c, unit, order, perm, share_out, top_out,
    gap_out, final_score, final_leader, slot_place, state, k, rounds, state_stride, NEXT: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, NUMBER: tl.constexpr, WIDE: tl.constexpr, BY_POSITION: tl.constexpr,
    SAVE: tl.constexpr,
):  # fmt: skip
    """Play from round ``at`` on, as long as the field does not fit into a block of NEXT columns."""
    BLOCK: tl.constexpr = key.shape[1]
    column = tl.arange(0, BLOCK)[None, :]
    full = k << rounds  # the size of a full field
    entries = full.to(tl.int64) * row
    total = rounds + (1 if BY_POSITION else 0)
    while (at < total) & ((k << tl.maximum(rounds - at, 0)) > NEXT):
        key, payload = sort(key, payload, WIDE)
        place = unpack_place(key, payload, WIDE)
        if at == rounds:  # the slots by the position of their leaders
            tl.store(slot_place + row * k + column, place, inside_rows & (column < k))
        else:
            half = slots << tl.maximum(rounds - 1 - at, 0)
            rank = column - (BLOCK // 2 - half)
            size = tl.minimum(count, 2 * half)
            active = (rank >= 0) & (rank < size)
            score = tl.where(active, unpack_score(key, NUMBER), 0.0)
            leader = unpack_leader(key, payload, NUMBER, WIDE)
            in_field = inside_rows & (rank >= 0) & (rank < 2 * half)
            if at == 0:
                tl.store(order + entries + rank, leader, in_field)
                if KIND == ADAPTIVE:
                    spread = spread_of(score, rank, count, NUMBER)
                    scale = 2.0 * width_of(spread, unit, played_rounds(count, slots, rounds))
                    tl.store(state + row * state_stride + SPREAD, spread.to(tl.float64), inside_rows)
            if at > first:
                tl.store(perm + entries + (full - (full >> (at - 1))) + rank, place, in_field)

            # Pairs: the better entry is in the left half of the block.
            worse = tl.where(active, unpack_score(flip(key), NUMBER), 0.0)
            better = (column < BLOCK // 2) & (rank >= 0)
            pairs = tl.maximum(size - half, 0)
            byes = half - pairs
            real = better & (2 * half - 1 - rank < size)
            gap = tl.minimum(tl.where(real, score - worse, 0.0), largest(score))
            if (KIND == RELATIVE) | (KIND == ADAPTIVE):
                widest = pairs // 8 if KIND == ADAPTIVE else pairs * 0
                pair = tl.where(column < BLOCK // 2, rank, 2 * half - 1 - rank)
                counted = active & (pair >= byes + widest) & (pairs > 0)
                scaled = score.to(tl.float64) * _DOWN
                middle = tl.sum(tl.where(column == BLOCK // 2 - 1, scaled, 0.0), 1, keep_dims=True)
                distance = tl.where(column < BLOCK // 2, scaled - middle, middle - scaled)
                mean = mean_gap(tl.where(counted, distance, 0.0), pairs - widest, NUMBER)
                width = width_of(spread, unit, played_rounds(count, slots, rounds)) if KIND == ADAPTIVE else scale
                scale, to_mean = scale_of_round(mean, pairs, scale, spread, width, KIND)
                about_round = state + row * state_stride + ROUND + 2 * at
                tl.store(about_round, scale.to(tl.float64), inside_rows)
                tl.store(about_round + 1, to_mean.to(tl.float64), inside_rows)
            else:
                nothing = tl.zeros([key.shape[0], 1], tl.float64)
                tl.store(state + row * state_stride + ROUND + 2 * at, nothing, inside_rows)
                tl.store(state + row * state_stride + ROUND + 2 * at + 1, nothing, inside_rows)
            share = share_of(logit(score, gap, scale, c, KIND), ALPHA)
            share = tl.where(real & ~(share >= 1.0), share, 1.0)
            blend = score - (1.0 - share) * gap
            pair_at = entries + (full - (full >> at)) + rank
            winners = inside_rows & better
            tl.store(share_out + pair_at, share, winners)
            if SAVE:
                tl.store(top_out + pair_at, score, winners)
                tl.store(gap_out + pair_at, gap, winners)
            if at == rounds - 1:
                tl.store(final_score + row * k + rank, blend, winners)
                tl.store(final_leader + row * k + rank, tl.where(active, leader, -1), winners)

            # The winners are at the end of the left half. They will be sorted to the middle of the next block: this
            # one, or the last NEXT columns of the left half.
            fits = (k << tl.maximum(rounds - at - 1, 0)) <= NEXT
            center = tl.where(fits, NEXT // 2, BLOCK // 2)
            key, payload = pack(blend, leader, rank, WIDE)
            front = center - half // 2
            if BY_POSITION:
                if at == rounds - 1:
                    key, payload = pack_leader(leader, rank, WIDE)
                    front = half * 0
            free = tl.where(rank < 0, column - tl.where(fits, BLOCK // 2 - NEXT, 0), column - half)  # before this one
            stays = better & active
            padding = tl.where(((rank < 0) | (column >= BLOCK // 2)) & (free < front), FRONT, BACK)
            key = tl.where(stays, key, padding)
        at += 1
    return key, payload, scale, spread, at


@triton.jit(
    do_not_specialize=[
        "c_bits", "unit_bits", "scale_bits", "rows", "n", "k", "numerator", "rounds", "first", "state_stride"
    ]
)  # fmt: skip
def play(
    scores, mask, keys, payloads, order, perm, share_out, top_out, gap_out, final_score, final_leader, slot_place,
    state, counts, c_tensor, unit_tensor, c_bits, unit_bits, scale_bits, rows, n, k, numerator, rounds, first,
    state_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr, ALPHA: tl.constexpr, NUMBER:
    tl.constexpr, WIDE: tl.constexpr, HAS_MASK: tl.constexpr, FRACTION: tl.constexpr, COUNTS: tl.constexpr,
    BY_POSITION: tl.constexpr, SAVE: tl.constexpr, C_TENSOR: tl.constexpr, UNIT_TENSOR: tl.constexpr, RESUME:
    tl.constexpr,
):  # fmt: skip
    """Play all rounds of ROWS rows; or, to RESUME, those from ``first`` on, of a field that is ranked in memory."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    inside_rows = row < rows
    column = tl.arange(0, BLOCK)[None, :]
    c = number(c_bits, c_tensor, C_TENSOR, NUMBER)
    unit = tl.maximum(number(unit_bits, unit_tensor, UNIT_TENSOR, NUMBER), smallest(c))
    of_row = state + row * state_stride
    if RESUME:
        # One row: its first round here is played from memory, where its field is ranked; it may have 2 BLOCK entries.
        rank = column + tl.zeros([ROWS, BLOCK], tl.int32)
        blend, leader, active, count, half, scale, spread = round_from_memory(
            keys, payloads, share_out, top_out, gap_out, final_score, final_leader, state, c, unit, scale_bits,
            tl.program_id(0).to(tl.int64), rank, 0, k, rounds, first, state_stride, BLOCK, KIND, ALPHA,
            NUMBER, SAVE,
        )  # fmt: skip
        slots = tl.load(of_row + WANTED).to(tl.int32)
        key, payload = pack(blend, leader, rank, WIDE)
        front = BLOCK // 2 - half // 2
        if BY_POSITION:
            if first == rounds - 1:
                key, payload = pack_leader(leader, rank, WIDE)
                front = half * 0
        key = tl.where(active, key, tl.where((rank >= half) & (rank - half < front), FRONT, BACK))
        at = first + 1
    else:
        score, active = read_scores(
            scores, mask, row, column, inside_rows & (column < n), n, NUMBER, HAS_MASK
        )  # fmt: skip
        finite = tl.abs(score) <= largest(score)  # not a NaN either
        valid = tl.sum((active & ~finite).to(tl.int32), 1, keep_dims=True) == 0
        score = tl.where(valid & active, score, 0.0)  # the scores of an invalid row count as equal
        count = tl.sum(active.to(tl.int32), 1, keep_dims=True)
        slots = slot_count(count, row, inside_rows, k, numerator, counts, FRACTION, COUNTS)
        tl.store(of_row + WANTED, slots.to(tl.float64), inside_rows)
        tl.store(of_row + COUNT, count.to(tl.float64), inside_rows)
        tl.store(of_row + VALID, valid.to(tl.float64), inside_rows)
        if KIND != ADAPTIVE:
            tl.store(of_row + SPREAD, tl.zeros([ROWS, 1], tl.float64), inside_rows)
        scale = (tl.zeros([ROWS, 1], tl.int64) + scale_bits).to(tl.float64, bitcast=True).to(NUMBER)
        spread = tl.zeros([ROWS, 1], NUMBER)
        candidate = column + tl.zeros([ROWS, BLOCK], tl.int32)
        key, payload = pack(score, candidate, candidate, WIDE)
        idle = (~active).to(tl.int32)
        before = tl.cumsum(idle, 1) - idle
        front = BLOCK // 2 - (slots << tl.maximum(rounds - 1, 0))
        key = tl.where(active, key, tl.where(before < front, FRONT, BACK))
        at = first
    key, payload, scale, spread, at = _play_in_block(
        key, payload, scale, spread, at, first, row, inside_rows, count, slots, c, unit, order, perm, share_out,
        top_out, gap_out, final_score, final_leader, slot_place, state, k, rounds, state_stride,
        BLOCK // 8 if BLOCK >= 256 else 0, KIND, ALPHA, NUMBER, WIDE, BY_POSITION, SAVE,
    )  # fmt: skip
    if BLOCK >= 256:
        key = part(key, 3, BLOCK // 8)
        if WIDE:
            payload = part(payload, 3, BLOCK // 8)
        key, payload, scale, spread, at = _play_in_block(
            key, payload, scale, spread, at, first, row, inside_rows, count, slots, c, unit, order, perm, share_out,
            top_out, gap_out, final_score, final_leader, slot_place, state, k, rounds, state_stride,
            BLOCK // 64 if BLOCK >= 2048 else 0, KIND, ALPHA, NUMBER, WIDE, BY_POSITION, SAVE,
        )  # fmt: skip
    if BLOCK >= 2048:
        key = part(key, 3, BLOCK // 64)
        if WIDE:
            payload = part(payload, 3, BLOCK // 64)
        _play_in_block(
            key, payload, scale, spread, at, first, row, inside_rows, count, slots, c, unit, order, perm, share_out,
            top_out, gap_out, final_score, final_leader, slot_place, state, k, rounds, state_stride,
            0, KIND, ALPHA, NUMBER, WIDE, BY_POSITION, SAVE,
        )  # fmt: skip
