"""What concerns a whole row: its state in memory, active candidates, slots, and the numbers of its rounds."""

from __future__ import annotations

import triton
import triton.language as tl

from knockout.ops.triton.arithmetic import largest, smallest, widened
from knockout.ops.triton.boost import ADAPTIVE, softened

# What is kept of a row in ``state``, float64: four numbers, and two for each round.
COUNT = tl.constexpr(0)  # active candidates
VALID = tl.constexpr(1)
SPREAD = tl.constexpr(2)  # of an adaptive boost
WANTED = tl.constexpr(3)  # slots that it plays for
ROUND = tl.constexpr(4)  # of each round: the scale, and how much of its derivative goes to the mean gap; -1 for nothing


@triton.jit
def row_and_part(parts):
    """The row, int64, and the part of it that a program works on, if each row has so many parts."""
    program = tl.program_id(0)  # the other axes of a grid are short
    return (program // parts).to(tl.int64), program % parts


@triton.jit
def slot_count(
    count, row, inside, k, numerator, counts, FRACTION: tl.constexpr, COUNTS: tl.constexpr
):  # fmt: skip
    """How many slots a row with so many active candidates plays for, int32: see quota.py."""
    if COUNTS:
        wanted = tl.load(counts + row, inside, other=1)  # that is in range, if nobody has looked
        return tl.minimum(tl.maximum(wanted, 1), k).to(tl.int32)
    elif FRACTION:
        return ((count.to(tl.int64) * numerator + (2**30 - 1)) >> 30).to(tl.int32)
    else:
        return count * 0 + k


@triton.jit
def read_scores(scores, mask, row, column, inside, n, NUMBER: tl.constexpr, HAS_MASK: tl.constexpr):
    """Scores, 0 where inactive, and which candidates are active."""
    at = row * n + column
    score = widened(tl.load(scores + at, inside, other=0.0), NUMBER)
    active = inside & (score != float("-inf"))
    if HAS_MASK:
        active = active & (tl.load(mask + at, inside, other=0) != 0)
    return tl.where(active, score, 0.0), active


@triton.jit
def played_rounds(count, slots, rounds):
    """The number of rounds of a row that have pairs."""
    played = count * 0
    for r in range(rounds):
        played += (count > (slots << r)).to(tl.int32)
    return played


@triton.jit
def scale_of_round(mean, pairs, scale, spread, width, KIND: tl.constexpr):
    """The scale of a round, and how much of its derivative goes to the mean gap: see ``ScaleSource`` of the kernels."""
    if KIND == ADAPTIVE:
        mean = softened(mean, spread, width)
    floor = tl.maximum(scale * 0.5, smallest(scale))
    to_mean = tl.where(mean > floor, 1.0, tl.where(mean == floor, 0.5, 0.0))
    narrowed = tl.maximum(mean, floor)
    to_mean = tl.where((narrowed == largest(mean)) & (mean >= floor), -1.0, to_mean)
    return tl.where(pairs > 0, narrowed, scale), to_mean


@triton.jit
def round_numbers(count, slots, rounds, r, KIND: tl.constexpr):
    """Of a round: half, pairs, byes, and the widest pairs, which do not count for the mean gap."""
    half = slots << (rounds - 1 - r)
    pairs = tl.maximum(tl.minimum(count, 2 * half) - half, 0)
    widest = pairs // 8 if KIND == ADAPTIVE else pairs * 0
    return half, pairs, half - pairs, widest
