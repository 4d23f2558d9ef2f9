"""What both kernels of the backward pass from the slots to the candidates do: see backward.py."""

from __future__ import annotations

import triton
import triton.language as tl

from knockout.ops.triton.arithmetic import divide, exact_exp, largest, rounded, smallest
from knockout.ops.triton.boost import ADAPTIVE, POWER, RELATIVE, logit, share_slope, width_of, width_slope
from knockout.ops.triton.rows import COUNT, ROUND, SPREAD, VALID, WANTED, played_rounds


@triton.jit
def pair_derivatives(
    d_score, weight, share, top, gap, difference, scale, c, KIND: tl.constexpr, ALPHA: tl.constexpr
):  # fmt: skip
    """Of pairs: the derivatives with respect to the better score, the worse one, and that of the scale by pairs."""
    undecided = share < 1.0
    clamped = gap >= largest(gap)
    d_share = d_score * gap + tl.where(weight != 0.0, weight * difference, 0.0)
    t = logit(top, gap, scale, c, KIND)
    d_t = tl.where(undecided, d_share * share_slope(t, share, ALPHA), 0.0)
    d_gap = -(1.0 - share) * d_score
    d_top = d_score
    d_scale = d_t.to(tl.float64) * 0.0
    if (KIND == RELATIVE) | (KIND == ADAPTIVE):
        d_gap += divide(d_t * c, scale)
        d_scale = -(d_t.to(tl.float64) * t.to(tl.float64)) / scale.to(tl.float64)
        d_scale = tl.where(undecided, d_scale, 0.0)  # the logit of a decided pair may be infinite
    elif KIND == POWER:
        height = exact_exp(tl.minimum(c * top, 40.0))
        d_gap += d_t * height * c * exact_exp(-c * gap)
        d_top += tl.where(c * top <= 40.0, d_t * c * t, 0.0)
    else:
        d_gap += d_t * c
    d_gap = tl.where(undecided & ~clamped, d_gap, 0.0)
    return tl.where(undecided, d_top, d_score) + d_gap, -d_gap, d_scale


@triton.jit
def scale_derivative(
    d_scale, d_spread, to_mean, scale, counted, spread, width, slope, KIND: tl.constexpr
):  # fmt: skip
    """Of a round: what each counted pair gets, what the scale of the round before gets, and the spread so far."""
    none = to_mean < 0.0
    through_mean = tl.where(none, 0.0, to_mean)
    through_floor = tl.where(none, 0.0, (1.0 - to_mean) * 0.5)
    each = through_mean * d_scale
    if KIND == ADAPTIVE:
        spreads = spread > 0.0
        safe = tl.where(spreads, spread, 1.0)
        d_spread += tl.where(spreads, each * scale * (slope - 1.0 / safe), 0.0)
        each = tl.where(spreads, each * (width / safe), 0.0)
    return each / tl.maximum(counted, 1).to(tl.float64), through_floor * d_scale, d_spread


@triton.jit
def row_numbers(
    state, row, inside, state_stride, unit, rounds, KIND: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """Of rows: active candidates, slots, whether valid; spread, width and its slope, in float64, of adaptive boosts."""
    of_row = state + row * state_stride
    count = tl.load(of_row + COUNT, inside, other=0.0).to(tl.int32)
    valid = tl.load(of_row + VALID, inside, other=1.0) != 0.0
    slots = tl.load(state + row * state_stride + WANTED, inside, other=1.0).to(tl.int32)
    spread = tl.zeros([1, 1], tl.float64)
    width = spread
    slope = spread
    if KIND == ADAPTIVE:
        spread = tl.load(of_row + SPREAD, inside, other=0.0)
        as_number = spread.to(NUMBER)
        played = played_rounds(count, slots, rounds)
        width = width_of(as_number, unit, played).to(tl.float64)
        slope = width_slope(as_number, unit, played)
        spread = tl.where(as_number >= smallest(as_number), spread, 0.0)
    return count, slots, valid, spread, width, slope


@triton.jit
def pairs_of_level(
    node_share, node_top, node_gap, node_place, difference, state, d_score, weight, row, at, inside, c, k, rounds, r,
    state_stride, number_stride, integer_stride, KIND: tl.constexpr, ALPHA: tl.constexpr, NUMBER: tl.constexpr,
    HAS_D_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Of pairs of round r: share and place; the derivatives of both scores; what each adds to that of the scale."""
    leaves = (k << rounds).to(tl.int64)
    pair = (leaves - (leaves >> r)) + at
    node = row * number_stride + pair
    share = tl.load(node_share + node, inside, other=1.0)
    top = tl.load(node_top + node, inside, other=0.0)
    gap = tl.load(node_gap + node, inside, other=0.0)
    place = tl.load(node_place + row * integer_stride + pair, inside, other=-1)
    apart = weight * 0.0
    if HAS_D_WEIGHT:
        apart = tl.load(difference + row * leaves + pair, inside, other=0.0)
    scale = tl.full([1, 1], 1.0, NUMBER)
    if (KIND == RELATIVE) | (KIND == ADAPTIVE):
        about_round = state + row * state_stride + ROUND + 2 * r
        scale = tl.load(about_round, tl.max(inside.to(tl.int32), 1, keep_dims=True) > 0, other=1.0).to(NUMBER)
    d_better, d_worse, d_scale = pair_derivatives(d_score, weight, share, top, gap, apart, scale, c, KIND, ALPHA)
    return share, place, d_better, d_worse, d_scale


@triton.jit
def write_scores(
    out, d_score, candidate, side_rank, count, valid, d_spread, row, n, inside, KIND: tl.constexpr
):  # fmt: skip
    """Add what comes through the spread, and write the derivatives of the scores of candidates."""
    if KIND == ADAPTIVE:
        pairs = count // 2
        widest = pairs // 8
        each = (d_spread / tl.maximum(pairs - widest, 1).to(tl.float64)).to(d_score.dtype)
        above = (side_rank >= widest) & (side_rank < pairs)
        below = (side_rank >= count - pairs) & (side_rank < count - widest)
        d_score += tl.where(above, each, 0.0) - tl.where(below, each, 0.0)
    d_score = tl.where(valid, d_score, float("nan"))
    tl.store(
        out + row * n + candidate, rounded(d_score, out.dtype.element_ty), inside & (candidate >= 0) & (candidate < n)
    )
