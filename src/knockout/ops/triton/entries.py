"""Entries of a field as integers that sort from best to worst.

A key holds the score and the leader, the candidate that an entry is named after: the lower leader comes first among
equal scores. A place is where the entry came from. For float32 and few candidates all three fit into one int64;
otherwise, WIDE, the key has a payload, another int64.
"""

from __future__ import annotations

import triton
import triton.language as tl

FRONT = tl.constexpr(-(2**63))  # the keys of padding, before and after all entries
BACK = tl.constexpr(2**63 - 1)
NARROW = 2**16  # candidates at most, and places


@triton.jit
def pack(score, leader, place, WIDE: tl.constexpr):
    """Keys and payloads from finite scores, leaders and places (int32)."""
    score = tl.where(score == 0.0, 0.0, score)  # zeros of either sign are equal
    leader = leader.to(tl.int64)
    place = place.to(tl.int64)
    if score.dtype == tl.float32:
        bits = score.to(tl.int32, bitcast=True)
        bits = ~(bits ^ ((bits >> 31) & 0x7FFFFFFF))
        key = bits.to(tl.int64) << 32
        if WIDE:
            return key | leader, place
        else:
            return key | (leader << 16) | place, tl.zeros([1, 1], tl.int64)
    else:
        wide_bits = score.to(tl.int64, bitcast=True)
        return ~(wide_bits ^ ((wide_bits >> 63) & 0x7FFFFFFFFFFFFFFF)), (leader << 32) | place


@triton.jit
def pack_leader(leader, place, WIDE: tl.constexpr):
    """Keys and payloads that sort by the leader alone."""
    if WIDE:
        return leader.to(tl.int64), place.to(tl.int64)
    else:
        return (leader.to(tl.int64) << 16) | place.to(tl.int64), tl.zeros([1, 1], tl.int64)


@triton.jit
def unpack_score(key, NUMBER: tl.constexpr):
    """The scores of keys made by ``pack``."""
    if NUMBER == tl.float32:
        bits = ~(key >> 32).to(tl.int32)
        return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    else:
        wide_bits = ~key
        return (wide_bits ^ ((wide_bits >> 63) & 0x7FFFFFFFFFFFFFFF)).to(tl.float64, bitcast=True)


@triton.jit
def unpack_leader(key, payload, NUMBER: tl.constexpr, WIDE: tl.constexpr):
    """The leaders of keys made by ``pack``."""
    if NUMBER == tl.float64:
        return (payload >> 32).to(tl.int32)
    elif WIDE:
        return (key & 0xFFFFFFFF).to(tl.int32)
    else:
        return ((key >> 16) & 0xFFFF).to(tl.int32)


@triton.jit
def unpack_place(key, payload, WIDE: tl.constexpr):
    """The places of keys made by ``pack`` or ``pack_leader``."""
    if WIDE:
        return (payload & 0xFFFFFFFF).to(tl.int32)
    else:
        return (key & 0xFFFF).to(tl.int32)
