"""The derivative of the tournament, in two passes over the brackets of the slots: see csrc/backward.h for the formulas.

Upwards, from the leaves: G of an entry is the sum over its members of the member's weight in the entry times the
derivative with respect to the member's weight in the slot. Only the difference of G between the two entries of a pair
is kept. Downwards, from the slots: the weight of each entry in its slot, and the derivative with respect to its score.

Pairs and leaves are in the order of expand.py, where the two entries of a pair are next to each other: the passes need
no indices.
"""

from __future__ import annotations

import triton
import triton.language as tl

from knockout.ops.triton.arithmetic import exact_sum, smallest
from knockout.ops.triton.boost import ADAPTIVE, RELATIVE, number
from knockout.ops.triton.derivatives import pairs_of_level, row_numbers, scale_derivative, write_scores
from knockout.ops.triton.rows import ROUND, round_numbers, row_and_part


@triton.jit(do_not_specialize=["entries", "leaves", "rounds", "level", "number_stride", "integer_stride"])
def up(
    d_weight, leaf_position, sums_in, sums_out, node_share, difference, entries, leaves, rounds, level,
    number_stride, integer_stride, LEAVES: tl.constexpr, LEVELS: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Go up LEVELS levels from ``level``, from LEAVES of the ``entries`` of this level of all rows.

    A row has k slots with 2^rounds ``leaves``, so no bracket of LEVELS levels lies in two rows.
    """
    at = tl.program_id(0).to(tl.int64) * LEAVES + tl.arange(0, LEAVES)
    if FIRST:
        position = tl.load(leaf_position + at // leaves * integer_stride + at % leaves, at < entries, other=-1)
        member = ((at >> rounds) << rounds) + position
        g = tl.load(d_weight + member, (position >= 0) & (position < (1 << rounds)), other=0.0)
    else:
        g = tl.load(sums_in + at, at < entries, other=0.0)
    for i in tl.static_range(LEVELS):
        better, worse = tl.split(tl.reshape(g, [LEAVES >> (i + 1), 2]))
        pair = tl.program_id(0).to(tl.int64) * (LEAVES >> (i + 1)) + tl.arange(0, LEAVES >> (i + 1))
        inside = pair < (entries >> (i + 1))
        in_row = leaves >> (level + i + 1)
        node = (leaves - (leaves >> (level + i))) + pair % in_row
        share = tl.load(node_share + pair // in_row * number_stride + node, inside, other=1.0)
        tl.store(difference + pair // in_row * leaves + node, better - worse, inside)
        rest = 1.0 - share
        g = share * better + tl.where(rest != 0.0, rest * worse, 0.0)
    last: tl.constexpr = LEAVES >> LEVELS
    out = tl.program_id(0).to(tl.int64) * last + tl.arange(0, last)
    tl.store(sums_out + out, g, out < (entries >> LEVELS))


@triton.jit(
    do_not_specialize=[
        "c_bits",
        "unit_bits",
        "rows",
        "n",
        "k",
        "rounds",
        "chunks",
        "state_stride",
        "number_stride",
        "integer_stride",
    ]
)
def down(
    d_score_in, node_share, node_top, node_gap, node_place, difference, leaf_candidate, state, out, weight_out,
    d_score_out, row_out, terms_out, c_tensor, unit_tensor, c_bits, unit_bits, rows, n, k, rounds, chunks,
    state_stride, number_stride, integer_stride, ROWS: tl.constexpr, SLOTS: tl.constexpr, LEVELS: tl.constexpr, ALL:
    tl.constexpr, KIND: tl.constexpr, ALPHA: tl.constexpr, NUMBER: tl.constexpr, HAS_D_SCORE: tl.constexpr,
    HAS_D_WEIGHT: tl.constexpr, C_TENSOR: tl.constexpr, UNIT_TENSOR: tl.constexpr,
):  # fmt: skip
    """Go down LEVELS levels from the slots of ROWS rows; or no level, from one chunk of SLOTS slots of a row.

    If these are ALL levels, write the derivatives of the candidates' scores; otherwise write what ``down_level`` goes
    on with: weights and derivatives of the entries; of each row, the derivatives of the scale and the spread; of the
    pairs of the next level, what they add to that of their scale.
    """
    first_row, chunk = row_and_part(chunks)
    row = (first_row * ROWS + tl.arange(0, ROWS))[:, None]
    in_rows = row < rows
    c = number(c_bits, c_tensor, C_TENSOR, NUMBER)
    unit = tl.maximum(number(unit_bits, unit_tensor, UNIT_TENSOR, NUMBER), smallest(c))
    count, slots, valid, spread, width, slope = row_numbers(
        state, row, in_rows, state_stride, unit, rounds, KIND, NUMBER
    )  # fmt: skip
    at = chunk * SLOTS + tl.arange(0, SLOTS)[None, :]
    in_slots = in_rows & (at < k) & (at < tl.minimum(slots, count))
    if HAS_D_SCORE:
        d_score = tl.load(d_score_in + row * k + at, in_slots, other=0.0)
    else:
        d_score = tl.zeros([ROWS, SLOTS], NUMBER)
    weight = tl.where(in_slots, 1.0, tl.zeros([ROWS, SLOTS], NUMBER))
    rank = at + tl.zeros([ROWS, SLOTS], tl.int32)  # of the leaves at last: where they are in the ranked row
    d_before = tl.zeros([ROWS, 1], tl.float64)  # of the scale of the round, by the rounds after it
    d_spread = tl.zeros([ROWS, 1], tl.float64)
    for level in tl.static_range(LEVELS):
        r = rounds - 1 - level
        at = tl.arange(0, SLOTS << level)[None, :]
        inside = in_rows & (at < (k << level))
        share, place, d_better, d_worse, d_scale = pairs_of_level(
            node_share, node_top, node_gap, node_place, difference, state, d_score, weight, row, at, inside, c, k,
            rounds, r, state_stride, number_stride, integer_stride, KIND, ALPHA, NUMBER, HAS_D_WEIGHT,
        )  # fmt: skip
        half, pairs, byes, widest = round_numbers(count, slots, rounds, r, KIND)
        if (KIND == RELATIVE) | (KIND == ADAPTIVE):
            total = d_before + exact_sum(d_scale, pairs)
            about_round = state + row * state_stride + ROUND + 2 * r
            scale = tl.load(about_round, in_rows, other=1.0)
            to_mean = tl.load(about_round + 1, in_rows, other=0.0)
            each, through_floor, spread_so_far = scale_derivative(
                total, d_spread, to_mean, scale, pairs - widest, spread, width, slope, KIND
            )  # fmt: skip
            d_before = tl.where(pairs > 0, through_floor, d_before)
            d_spread = tl.where(pairs > 0, spread_so_far, d_spread)
            counts = (place >= byes + widest) & (pairs > 0)
            d_better += tl.where(counts, each.to(NUMBER), 0.0)
            d_worse -= tl.where(counts, each.to(NUMBER), 0.0)
        d_score = tl.reshape(tl.join(d_better, d_worse), [ROWS, SLOTS << (level + 1)])
        weight = tl.reshape(tl.join(weight * share, weight * (1.0 - share)), [ROWS, SLOTS << (level + 1)])
        if ALL and KIND == ADAPTIVE and level == LEVELS - 1:
            rank = tl.reshape(tl.join(place, 2 * half - 1 - place), [ROWS, SLOTS << (level + 1)])
    at = chunk * SLOTS + tl.arange(0, SLOTS << LEVELS)[None, :]
    inside = in_rows & (at < (k << LEVELS))
    if ALL:
        if KIND == ADAPTIVE:
            d_spread += d_before * 2.0 * width * slope * (spread > 0.0).to(tl.float64)
        candidate = tl.load(leaf_candidate + row * integer_stride + at, inside, other=-1)
        write_scores(out, d_score, candidate, rank, count, valid, d_spread, row, n, inside, KIND)
    else:
        tl.store(d_score_out + row * (k << LEVELS) + at, d_score, inside)
        tl.store(weight_out + row * (k << LEVELS) + at, weight, inside)
        first = in_rows & (row * 0 + chunk == 0)
        tl.store(row_out + 2 * row, d_before, first)
        tl.store(row_out + 2 * row + 1, d_spread, first)
        _, _, _, _, d_scale = pairs_of_level(
            node_share, node_top, node_gap, node_place, difference, state, d_score, weight, row, at, inside, c, k,
            rounds, rounds - 1 - LEVELS, state_stride, number_stride, integer_stride, KIND, ALPHA, NUMBER, HAS_D_WEIGHT,
        )  # fmt: skip
        tl.store(terms_out + row * (k << LEVELS) + at, d_scale, inside)
