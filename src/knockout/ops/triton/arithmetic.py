"""Arithmetic with the same bits as the reference: see reference/exact.py. Kernels run without fused multiply-add."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widened(x, NUMBER: tl.constexpr):
    """Numbers of any type as NUMBER, at least as wide. (Triton's interpreter has no subnormal numbers of bfloat16.)"""
    if x.dtype == tl.bfloat16:
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True).to(NUMBER)
    else:
        return x.to(NUMBER)


@triton.jit
def rounded(x, TYPE: tl.constexpr):
    """Numbers rounded to the nearest of another type, to the even one of two: which the interpreter does not do."""
    if TYPE == tl.bfloat16:
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return tl.where(x == x, nearest, 0x7FC0).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(TYPE)


@triton.jit
def divide(x, y):
    """x / y, correctly rounded: the ordinary division of float32 may be off by two units in the last place."""
    if x.dtype == tl.float32:
        return tl.div_rn(x, y)
    else:
        return x / y


@triton.jit
def lower(x, most):
    """The lower of both, or NaN if one is NaN, which ``tl.minimum`` by itself would leave out."""
    return tl.minimum(x, most, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest(x):
    """The largest finite number of the type of x."""
    if x.dtype == tl.float32:
        return tl.full([1, 1], 3.4028234663852886e38, tl.float32)
    else:
        return tl.full([1, 1], 1.7976931348623157e308, tl.float64)


@triton.jit
def smallest(x):
    """The smallest normal number of the type of x."""
    if x.dtype == tl.float32:
        return tl.full([1, 1], 1.1754943508222875e-38, tl.float32)
    else:
        return tl.full([1, 1], 2.2250738585072014e-308, tl.float64)


@triton.jit
def exact_sqrt(x):
    """The square root of a number from 1 to 2, by Newton's method."""
    root = x * 0.4142135623730951 + 0.5897
    for _ in tl.static_range(2 if x.dtype == tl.float32 else 3):
        root = (root + divide(x, root)) * 0.5
    return root


@triton.jit
def _split(x):
    """2^m and e^r - 1, where x = m ln 2 + r; in the degree and with the constants of the reference."""
    if x.dtype == tl.float32:
        x = lower(tl.maximum(x, -87.33654475055310898657, propagate_nan=tl.PropagateNan.ALL), 88.02969193111305429598)
        rounder: tl.constexpr = 12582912.0
        m = (x * 1.44269504088896340736 + rounder) - rounder
        r = (x - m * 0.693359375) - m * -2.12194440054690583e-4
        series = r * 0.0 + 1.0 / 5040.0
        series = series * r + 1.0 / 720.0
        series = series * r + 1.0 / 120.0
        series = series * r + 1.0 / 24.0
        series = series * r + 1.0 / 6.0
        series = series * r + 0.5
        power = ((m.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    else:
        x = lower(tl.maximum(x, -708.39641853226410621678, propagate_nan=tl.PropagateNan.ALL), 709.08956571282405153382)
        wide_rounder: tl.constexpr = 6755399441055744.0
        m = (x * 1.44269504088896340736 + wide_rounder) - wide_rounder
        r = (x - m * 6.93145751953125e-1) - m * 1.42860682030941723e-6
        series = r * 0.0 + 1.0 / 6227020800.0
        series = series * r + 1.0 / 479001600.0
        series = series * r + 1.0 / 39916800.0
        series = series * r + 1.0 / 3628800.0
        series = series * r + 1.0 / 362880.0
        series = series * r + 1.0 / 40320.0
        series = series * r + 1.0 / 5040.0
        series = series * r + 1.0 / 720.0
        series = series * r + 1.0 / 120.0
        series = series * r + 1.0 / 24.0
        series = series * r + 1.0 / 6.0
        series = series * r + 0.5
        power = ((m.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    return power, r + (r * r) * series


@triton.jit
def exact_exp(x):
    """e^x, as in the reference."""
    power, rest = _split(x)
    return power * rest + power


@triton.jit
def exact_expm1(x):
    """e^x - 1, as in the reference."""
    power, rest = _split(x)
    return power * rest + (power - 1.0)


@triton.jit
def exact_sum(x, count):
    """Sums (rows, 1) of float64 x (rows, block), of which at most ``count`` (rows, 1) are not 0, in any order."""
    coarse, fine = exact_parts(x, tl.max(tl.abs(x), 1, keep_dims=True), count)
    return (0.0 + coarse) + fine


@triton.jit
def exact_parts(x, largest_term, count):
    """The two sums that ``exact_sum`` adds; of a part of a row, too, whose largest term is known."""
    room = 4.0 * count.to(tl.float64)
    shift = largest_term * room
    on_grid = (x + shift) - shift
    rest = x - on_grid
    shift = shift * (room * 2.220446049250313e-16)
    fine = (rest + shift) - shift
    return tl.sum(on_grid, 1, keep_dims=True), tl.sum(fine, 1, keep_dims=True)
