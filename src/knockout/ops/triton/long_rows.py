"""Rounds of fields that do not fit into one program: a round is one launch over the whole device, and its ranking more.

Every program computes what concerns its whole row (how many candidates are active, the mean gap) by itself: it reads
the row once more instead of waiting for another launch. The first field is ranked in chunks; later ones are blended and
ranked in chunks. Then every entry finds its rank by a binary search in all other chunks of its row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from knockout.ops.triton.arithmetic import largest, smallest
from knockout.ops.triton.boost import number
from knockout.ops.triton.entries import BACK, pack, unpack_leader, unpack_place
from knockout.ops.triton.round_from_memory import round_from_memory
from knockout.ops.triton.rows import COUNT, SPREAD, VALID, WANTED, read_scores, row_and_part, slot_count
from knockout.ops.triton.sort import sort


@triton.jit(do_not_specialize=["n", "k", "numerator", "width", "chunks", "state_stride"])
def enter(
    scores, mask, keys, payloads, state, counts, n, k, numerator, width, chunks, state_stride, CHUNK: tl.constexpr,
    NUMBER: tl.constexpr, HAS_MASK: tl.constexpr, FRACTION: tl.constexpr, COUNTS: tl.constexpr, SORT: tl.constexpr,
):  # fmt: skip
    """Keys of a chunk of the candidates of a row; ranked, to SORT."""
    row, chunk = row_and_part(chunks)
    lane = tl.arange(0, CHUNK)[None, :]
    count = tl.zeros([1, 1], tl.int32)
    wrong = tl.zeros([1, 1], tl.int32)
    for start in range(0, n, CHUNK):
        column = start + lane
        score, active = read_scores(scores, mask, row, column, column < n, n, NUMBER, HAS_MASK)
        count += tl.sum(active.to(tl.int32), 1, keep_dims=True)
        wrong += tl.sum((active & ~(tl.abs(score) <= largest(score))).to(tl.int32), 1, keep_dims=True)
    valid = wrong == 0
    one = tl.zeros([1, 1], tl.int32)
    at = state + row * state_stride + one
    tl.store(at + COUNT, count.to(tl.float64), chunk + one == 0)
    tl.store(at + VALID, valid.to(tl.float64), chunk + one == 0)
    slots = slot_count(count, row + one, one == 0, k, numerator, counts, FRACTION, COUNTS)
    tl.store(at + WANTED, slots.to(tl.float64), chunk + one == 0)
    tl.store(at + SPREAD, tl.zeros([1, 1], tl.float64), chunk + one == 0)  # the first round may write another one
    column = chunk * CHUNK + lane
    score, active = read_scores(scores, mask, row, column, column < n, n, NUMBER, HAS_MASK)
    key, payload = pack(tl.where(valid, score, 0.0), column, column, True)
    key = tl.where(active, key, BACK)
    if SORT:
        key, payload = sort(key, payload, True)
    tl.store(keys + row * width + column, key, column < width)
    tl.store(payloads + row * width + column, payload, column < width)


@triton.jit(do_not_specialize=["chunks", "field", "places_length", "places_from"])
def merge(
    keys, payloads, keys_out, payloads_out, places, chunks, field, places_length, places_from, CHUNK: tl.constexpr,
    PART: tl.constexpr, NUMBER: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Rank PART entries of a row of sorted chunks, and put them where they belong.

    Their places are written too; or their leaders, of the FIRST field.
    """
    row, part = row_and_part(chunks * (CHUNK // PART))
    own = part * PART // CHUNK
    of_row = row * chunks * CHUNK
    index = part * PART + tl.arange(0, PART)
    key = tl.load(keys + of_row + index)
    payload = tl.load(payloads + of_row + index)
    rank = index - own * CHUNK
    for chunk in range(chunks):
        if chunk != own:
            low = tl.zeros([PART], tl.int32)
            high = tl.full([PART], CHUNK, tl.int32)
            while tl.max(high - low, 0) > 0:
                searching = low < high
                middle = (low + high) // 2
                at = of_row + chunk * CHUNK + middle
                other = tl.load(keys + at, searching, other=0)
                other_payload = tl.load(payloads + at, searching, other=0)
                less = (other < key) | ((other == key) & (other_payload < payload))
                low = tl.where(searching & less, middle + 1, low)
                high = tl.where(searching & ~less, middle, high)
            rank += low
    inside = rank < field
    tl.store(keys_out + row * field + rank, key, inside)
    tl.store(payloads_out + row * field + rank, payload, inside)
    place = unpack_leader(key, payload, NUMBER, True) if FIRST else unpack_place(key, payload, True)
    tl.store(places + row * places_length + places_from + rank, place, inside & (key != BACK))


@triton.jit(
    do_not_specialize=[
        "c_bits", "unit_bits", "scale_bits", "n", "k", "rounds", "at", "width", "chunks",
        "state_stride",
    ]
)  # fmt: skip
def play_round(
    keys, payloads, keys_out, payloads_out, share_out, top_out, gap_out, final_score, final_leader, state, c_tensor,
    unit_tensor, c_bits, unit_bits, scale_bits, n, k, rounds, at, width, chunks, state_stride, CHUNK: tl.constexpr,
    KIND: tl.constexpr, ALPHA: tl.constexpr, NUMBER: tl.constexpr, SAVE: tl.constexpr, C_TENSOR: tl.constexpr,
    UNIT_TENSOR: tl.constexpr, SORT: tl.constexpr,
):  # fmt: skip
    """Round ``at``, of a chunk of the pairs of a row; keys of the next field, ranked, to SORT."""
    row, chunk = row_and_part(chunks)
    c = number(c_bits, c_tensor, C_TENSOR, NUMBER)
    unit = tl.maximum(number(unit_bits, unit_tensor, UNIT_TENSOR, NUMBER), smallest(c))
    rank = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
    blend, leader, active, _, _, _, _ = round_from_memory(
        keys, payloads, share_out, top_out, gap_out, final_score, final_leader, state, c, unit, scale_bits, row, rank,
        chunk, k, rounds, at, state_stride, CHUNK, KIND, ALPHA, NUMBER, SAVE,
    )  # fmt: skip
    if at < rounds - 1:
        key, payload = pack(blend, leader, rank, True)
        key = tl.where(active, key, BACK)
        payload = tl.where(active, payload, rank.to(tl.int64))
        if SORT:
            key, payload = sort(key, payload, True)
        tl.store(keys_out + row * width + rank, key, rank < width)
        tl.store(payloads_out + row * width + rank, payload, rank < width)
