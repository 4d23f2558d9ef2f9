"""The boosts: scales, logits and shares of the pairs of a round, and their slopes. See knockout/boost.py.

KIND and ALPHA are those of ops/boost_code.py. Numbers of a row have shape (rows, 1).
"""

from __future__ import annotations

import triton
import triton.language as tl

from knockout.ops.triton.arithmetic import (
    divide,
    exact_exp,
    exact_expm1,
    exact_sqrt,
    exact_sum,
    largest,
    lower,
    smallest,
    widened,
)

RELATIVE = tl.constexpr(0)
POWER = tl.constexpr(2)
ADAPTIVE = tl.constexpr(3)

_DOWN = tl.constexpr(2.0**-40)  # sums of the largest numbers stay finite
_UP = tl.constexpr(2.0**40)
_FAR = tl.constexpr(2.0**40)


@triton.jit
def number(bits, pointer, FROM_TENSOR: tl.constexpr, NUMBER: tl.constexpr):
    """A number of a boost (1, 1): the bits of a float64, or from a tensor, which may be of any type."""
    if FROM_TENSOR:
        x = widened(tl.load(pointer + tl.zeros([1, 1], tl.int32)), NUMBER)
        return lower(x, largest(x))
    else:
        return (tl.zeros([1, 1], tl.int64) + bits).to(tl.float64, bitcast=True).to(NUMBER)


@triton.jit
def mean_gap(distance, count, NUMBER: tl.constexpr):
    """The mean gap (rows, 1) of ``count`` pairs, from the scaled distances of their scores from the middle."""
    total = exact_sum(distance, 2 * count)
    mean = total / tl.maximum(count, 1).to(tl.float64) * _UP
    limit = largest(tl.zeros([1, 1], NUMBER))
    return tl.minimum(mean, limit.to(tl.float64)).to(NUMBER)


@triton.jit
def width_of(spread, unit, rounds):
    """The scale of a round of an adaptive boost whose mean gap is the spread of the row."""
    x = tl.minimum(divide(spread, unit), _FAR)
    width = tl.maximum(spread * divide(3.0 + x, 1.0 + 3.0 * x), divide(unit, unit * 0.0 + 10.0)) * rounds.to(x.dtype)
    return tl.minimum(tl.maximum(width, smallest(x)), largest(x) * 0.25)


@triton.jit
def width_slope(spread, unit, rounds):
    """d width / d spread, relative to the width, in float64."""
    limit = largest(spread).to(tl.float64) * 0.25
    g = spread.to(tl.float64)
    u = unit.to(tl.float64)
    x = tl.minimum(g / u, _FAR)
    width = g * ((3.0 + x) / (1.0 + 3.0 * x))
    slope = tl.where(x < _FAR, (3.0 + 2.0 * x + 3.0 * x * x) / ((1.0 + 3.0 * x) * (1.0 + 3.0 * x)), 1.0 / 3.0)
    flat = (width < u / 10.0) | (width * rounds.to(tl.float64) > limit)
    return tl.where(flat, 0.0, slope / tl.where(flat, 1.0, width))


@triton.jit
def softened(mean, spread, width):
    """The mean gap of a round as a part of the spread, of which the scale would be the width: of an adaptive boost."""
    spreads = spread >= smallest(spread)
    mean = width * divide(mean, tl.where(spreads, spread, 1.0))
    return tl.where(spreads, tl.minimum(mean, largest(mean)), 0.0)


@triton.jit
def logit(better, gap, scale, c, KIND: tl.constexpr):
    """How decisive each pair is, at least 0."""
    if (KIND == RELATIVE) | (KIND == ADAPTIVE):
        return c * divide(gap, scale)
    elif KIND == POWER:
        return exact_exp(tl.minimum(c * better, 40.0)) * -exact_expm1(-c * gap)
    else:
        return c * gap


@triton.jit
def share_of(t, ALPHA: tl.constexpr):
    """The share of the better entry, from 1/2 to 1."""
    if ALPHA == 0:
        return divide(tl.zeros_like(t) + 1.0, 1.0 + exact_exp(-t))  # not t * 0: t may be infinite
    elif ALPHA == 1:
        t = lower(t, 2.0)
        return lower(0.5 + t * 0.25 * exact_sqrt(2.0 - t * t * 0.25), 1.0)
    else:
        return lower(0.5 + t * 0.5, 1.0)


@triton.jit
def share_slope(t, share, ALPHA: tl.constexpr):
    """d share / d t, where the share is below 1."""
    if ALPHA == 0:
        return share * (1.0 - share)
    elif ALPHA == 1:
        t = tl.minimum(t, 2.0)
        return divide(1.0 - t * t * 0.25, 2.0 * exact_sqrt(2.0 - t * t * 0.25))
    else:
        return t * 0.0 + 0.5
