"""A round of a field that is ranked in memory: any number of its pairs at a time."""

from __future__ import annotations

import triton
import triton.language as tl

from knockout.ops.triton.arithmetic import largest
from knockout.ops.triton.boost import ADAPTIVE, RELATIVE, logit, share_of, width_of
from knockout.ops.triton.entries import unpack_leader, unpack_score
from knockout.ops.triton.rows import COUNT, ROUND, SPREAD, WANTED, played_rounds, round_numbers, scale_of_round

_DOWN = tl.constexpr(2.0**-40)
_UP = tl.constexpr(2.0**40)


@triton.jit
def _score_at(keys, rank, NUMBER: tl.constexpr):
    """A score of a ranked row, scaled down, (1, 1)."""
    return unpack_score(tl.load(keys + rank), NUMBER).to(tl.float64) * _DOWN


@triton.jit
def _mean_distance(
    keys, first, last, middle_rank, left_end, right_start, count, pairs, CHUNK: tl.constexpr, NUMBER: tl.constexpr
):  # fmt: skip
    """The mean gap (1, 1) of pairs: distances from the middle, of ranks [first, left_end) and [right_start, last].

    As ``exact_sum``, in chunks: the farthest scores are at the ends, so the grids are known beforehand.
    """
    middle = _score_at(keys, tl.maximum(middle_rank, 0), NUMBER)
    farthest = tl.maximum(
        _score_at(keys, first, NUMBER) - middle, middle - _score_at(keys, tl.maximum(last, 0), NUMBER)
    )
    room = 4.0 * count.to(tl.float64)
    shift = farthest * room
    fine_shift = shift * (room * 2.220446049250313e-16)
    coarse = tl.zeros([1, 1], tl.float64)
    fine = tl.zeros([1, 1], tl.float64)
    for start in range(0, tl.max(last, None) + 1, CHUNK):
        rank = start + tl.arange(0, CHUNK)[None, :]
        counted = (rank >= first) & (rank <= last) & ((rank < left_end) | (rank >= right_start))
        score = unpack_score(tl.load(keys + rank, counted, other=0), NUMBER).to(tl.float64) * _DOWN
        distance = tl.where(counted, tl.where(rank < left_end, score - middle, middle - score), 0.0)
        on_grid = (distance + shift) - shift
        coarse += tl.sum(on_grid, 1, keep_dims=True)
        fine += tl.sum(((distance - on_grid) + fine_shift) - fine_shift, 1, keep_dims=True)
    mean = ((0.0 + coarse) + fine) / tl.maximum(pairs, 1).to(tl.float64) * _UP
    limit = largest(tl.zeros([1, 1], NUMBER)).to(tl.float64)
    return tl.where(pairs > 0, tl.minimum(mean, limit), 0.0).to(NUMBER)


@triton.jit
def round_from_memory(
    keys, payloads, share_out, top_out, gap_out, final_score, final_leader, state, c, unit, scale_bits, row, rank,
    chunk, k, rounds, at, state_stride, CHUNK: tl.constexpr, KIND: tl.constexpr, ALPHA: tl.constexpr,
    NUMBER: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """Play the pairs with these ranks (1, CHUNK) of one row in round ``at``; write what they did, and all results.

    What concerns the whole row is computed by every program, and written by that of ``chunk`` 0. Returns blends,
    leaders and which are active; of the row, active candidates and half, the scale and the spread.
    """
    full = (k << rounds).to(tl.int64)
    keys += row * (full >> at)
    payloads += row * (full >> at)
    state += row * state_stride
    one = tl.zeros([1, 1], tl.int32)
    writer = one + chunk == 0
    count = tl.load(state + COUNT + one).to(tl.int32)
    slots = tl.load(state + WANTED + one).to(tl.int32)
    half, pairs, byes, widest = round_numbers(count, slots, rounds, at, KIND)
    size = tl.minimum(count, 2 * half)
    scale = tl.full([1, 1], 1.0, NUMBER)
    spread = tl.zeros([1, 1], NUMBER)
    if (KIND == RELATIVE) | (KIND == ADAPTIVE):
        width = spread
        if KIND == ADAPTIVE:
            if at == 0:
                all_pairs = count // 2
                all_widest = all_pairs // 8
                spread = _mean_distance(
                    keys, all_widest, count - 1 - all_widest, (count - 1) // 2, all_pairs, count - all_pairs,
                    count - 2 * all_widest, all_pairs - all_widest, CHUNK, NUMBER,
                )  # fmt: skip
                tl.store(state + SPREAD + one, spread.to(tl.float64), writer)
            else:
                spread = tl.load(state + SPREAD + one).to(NUMBER)
            width = width_of(spread, unit, played_rounds(count, slots, rounds))
        if at == 0:
            if KIND == ADAPTIVE:
                scale = 2.0 * width
            else:
                scale = (tl.zeros([1, 1], tl.int64) + scale_bits).to(tl.float64, bitcast=True).to(NUMBER)
        else:
            scale = tl.load(state + ROUND + 2 * (at - 1) + one).to(NUMBER)
        mean = _mean_distance(
            keys, byes + widest, size - 1 - widest, half - 1, half, half, 2 * (pairs - widest), pairs - widest, CHUNK,
            NUMBER,
        )  # fmt: skip
        scale, to_mean = scale_of_round(mean, pairs, scale, spread, width, KIND)
        tl.store(state + ROUND + 2 * at + one, scale.to(tl.float64), writer)
        tl.store(state + ROUND + 2 * at + 1 + one, to_mean.to(tl.float64), writer)
    else:
        tl.store(state + ROUND + 2 * at + one, tl.zeros([1, 1], tl.float64), writer)
        tl.store(state + ROUND + 2 * at + 1 + one, tl.zeros([1, 1], tl.float64), writer)

    winner = rank < half
    active = winner & (rank < size)
    other = 2 * half - 1 - rank
    real = winner & (other < size)
    key = tl.load(keys + rank, active, other=0)
    payload = tl.load(payloads + rank, active, other=0)
    score = tl.where(active, unpack_score(key, NUMBER), 0.0)
    worse = tl.where(real, unpack_score(tl.load(keys + other, real, other=0), NUMBER), 0.0)
    leader = unpack_leader(key, payload, NUMBER, True)
    gap = tl.minimum(tl.where(real, score - worse, 0.0), largest(score))
    share = share_of(logit(score, gap, scale, c, KIND), ALPHA)
    share = tl.where(real & ~(share >= 1.0), share, 1.0)
    blend = score - (1.0 - share) * gap
    pair_at = row * full + (full - (full >> at)) + rank
    tl.store(share_out + pair_at, share, winner)
    if SAVE:
        tl.store(top_out + pair_at, score, winner)
        tl.store(gap_out + pair_at, gap, winner)
    if at == rounds - 1:
        tl.store(final_score + row * k + rank, blend, winner)
        # Empty slots come last by the position of leaders, too.
        tl.store(final_leader + row * k + rank, tl.where(active, leader, 0x7FFFFFFF), rank < k)
    return blend, leader, active, count, half, scale, spread
