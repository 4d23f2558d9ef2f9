"""The derivative of the tournament where the brackets of a row do not fit into one program: see backward.py."""

from __future__ import annotations

import triton
import triton.language as tl

from knockout.ops.triton.arithmetic import exact_parts, smallest
from knockout.ops.triton.boost import ADAPTIVE, RELATIVE, number
from knockout.ops.triton.derivatives import pairs_of_level, row_numbers, scale_derivative, write_scores
from knockout.ops.triton.rows import ROUND, round_numbers, row_and_part


@triton.jit
def _sum_in_memory(terms, entries, count, CHUNK: tl.constexpr):
    """The sum (1, 1) of all terms of a row, as by ``exact_sum``."""
    largest_term = tl.zeros([1, 1], tl.float64)
    for start in range(0, entries, CHUNK):
        at = start + tl.arange(0, CHUNK)[None, :]
        x = tl.load(terms + at, at < entries, other=0.0)
        largest_term = tl.maximum(largest_term, tl.max(tl.abs(x), 1, keep_dims=True))
    coarse = tl.zeros([1, 1], tl.float64)
    fine = tl.zeros([1, 1], tl.float64)
    for start in range(0, entries, CHUNK):
        at = start + tl.arange(0, CHUNK)[None, :]
        coarse_part, fine_part = exact_parts(tl.load(terms + at, at < entries, other=0.0), largest_term, count)
        coarse += coarse_part
        fine += fine_part
    return (0.0 + coarse) + fine


@triton.jit(
    do_not_specialize=[
        "c_bits", "unit_bits", "n", "k", "rounds", "level", "chunks", "state_stride", "number_stride",
        "integer_stride",
    ]
)  # fmt: skip
def down_level(
    weight_in, d_score_in, row_in, terms_in, node_share, node_top, node_gap, node_place, difference, leaf_candidate,
    state, out, weight_out, d_score_out, row_out, terms_out, c_tensor, unit_tensor, c_bits, unit_bits, n, k,
    rounds, level, chunks, state_stride, number_stride, integer_stride, CHUNK: tl.constexpr, LAST:
    tl.constexpr, KIND: tl.constexpr, ALPHA: tl.constexpr, NUMBER: tl.constexpr,
    HAS_D_WEIGHT: tl.constexpr, C_TENSOR: tl.constexpr, UNIT_TENSOR: tl.constexpr,
):  # fmt: skip
    """One level of ``down``, a chunk of the pairs of a row.

    The derivative of the round's scale is the sum of what the launch before has written for each pair: every program
    adds it up by itself.
    """
    row, chunk = row_and_part(chunks)
    one = tl.zeros([1, 1], tl.int32)
    c = number(c_bits, c_tensor, C_TENSOR, NUMBER)
    unit = tl.maximum(number(unit_bits, unit_tensor, UNIT_TENSOR, NUMBER), smallest(c))
    count, slots, valid, spread, width, slope = row_numbers(
        state, row + one, one == 0, state_stride, unit, rounds, KIND, NUMBER
    )  # fmt: skip
    r = rounds - 1 - level
    at = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
    nodes = k << level
    inside = at < nodes
    weight = tl.load(weight_in + row * nodes + at, inside, other=0.0)
    d_score = tl.load(d_score_in + row * nodes + at, inside, other=0.0)
    share, place, d_better, d_worse, _ = pairs_of_level(
        node_share, node_top, node_gap, node_place, difference, state, d_score, weight, row + one, at, inside, c, k,
        rounds, r, state_stride, number_stride, integer_stride, KIND, ALPHA, NUMBER, HAS_D_WEIGHT,
    )  # fmt: skip
    d_before = tl.load(row_in + 2 * row + one)
    d_spread = tl.load(row_in + 2 * row + 1 + one)
    half, pairs, byes, widest = round_numbers(count, slots, rounds, r, KIND)
    if (KIND == RELATIVE) | (KIND == ADAPTIVE):
        total = d_before + _sum_in_memory(terms_in + row * nodes, nodes, pairs, CHUNK)
        about_round = state + row * state_stride + ROUND + 2 * r + one
        each, through_floor, spread_so_far = scale_derivative(
            total, d_spread, tl.load(about_round + 1), tl.load(about_round), pairs - widest, spread, width, slope, KIND
        )  # fmt: skip
        d_before = tl.where(pairs > 0, through_floor, d_before)
        d_spread = tl.where(pairs > 0, spread_so_far, d_spread)
        counts = (place >= byes + widest) & (pairs > 0)
        d_better += tl.where(counts, each.to(NUMBER), 0.0)
        d_worse -= tl.where(counts, each.to(NUMBER), 0.0)
    d_score = tl.reshape(tl.join(d_better, d_worse), [1, 2 * CHUNK])
    at = chunk * 2 * CHUNK + tl.arange(0, 2 * CHUNK)[None, :]
    inside = at < 2 * nodes
    if LAST:
        if KIND == ADAPTIVE:
            d_spread += d_before * 2.0 * width * slope * (spread > 0.0).to(tl.float64)
        rank = tl.reshape(tl.join(place, 2 * half - 1 - place), [1, 2 * CHUNK])
        candidate = tl.load(leaf_candidate + row * integer_stride + at, inside, other=-1)
        write_scores(out, d_score, candidate, rank, count, valid, d_spread, row, n, inside, KIND)
    else:
        weight = tl.reshape(tl.join(weight * share, weight * (1.0 - share)), [1, 2 * CHUNK])
        tl.store(d_score_out + row * 2 * nodes + at, d_score, inside)
        tl.store(weight_out + row * 2 * nodes + at, weight, inside)
        tl.store(row_out + 2 * row + one, d_before, chunk + one == 0)
        tl.store(row_out + 2 * row + 1 + one, d_spread, chunk + one == 0)
        _, _, _, _, d_scale = pairs_of_level(
            node_share, node_top, node_gap, node_place, difference, state, d_score, weight, row + one, at, inside, c,
            k, rounds, r - 1, state_stride, number_stride, integer_stride, KIND, ALPHA, NUMBER, HAS_D_WEIGHT,
        )  # fmt: skip
        tl.store(terms_out + row * 2 * nodes + at, d_scale, inside)
