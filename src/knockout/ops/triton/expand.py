"""The result of a tournament, from what its rounds did: each slot is walked down to its members.

The bracket of a slot is a binary tree with a leaf for every way down, 2^rounds of them: bit r of the number of a leaf
says whether the way goes to the better (0) or the worse entry of the pair in round r. So the leaves of the pair p of
round r are next to each other, and the two entries of a pair are its halves. What the backward pass needs of pairs and
leaves is written in this order, round by round.
"""

from __future__ import annotations

import triton
import triton.language as tl

from knockout.ops.triton.rows import COUNT, VALID, WANTED


@triton.jit(
    do_not_specialize=[
        "rows",
        "n",
        "k",
        "rounds",
        "played",
        "state_stride",
        "number_stride",
        "integer_stride",
    ]
)
def expand(
    order, perm, share, top, gap, final_score, final_leader, slot_place, state, member_out, weight_out, score_out,
    leader_out, filled_out, valid_out, node_share, node_top, node_gap, node_place, leaf_candidate, leaf_position,
    rows, n, k, rounds, played, state_stride, number_stride, integer_stride, SLOTS: tl.constexpr, LEAVES:
    tl.constexpr, NUMBER: tl.constexpr, BY_POSITION: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """Write members, weights, scores and leaders of SLOTS slots, LEAVES leaves at a time.

    ``played`` is the number of rounds that were played: one where ``rounds`` is 0, a round without pairs.
    """
    slot_of_all = (tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS))[:, None]
    row = slot_of_all // k
    slot = (slot_of_all % k).to(tl.int32)
    inside = row < rows
    count = tl.load(state + row * state_stride + COUNT, inside, other=0.0).to(tl.int32)
    valid = tl.load(state + row * state_stride + VALID, inside, other=1.0) != 0.0
    slots = tl.load(state + row * state_stride + WANTED, inside, other=1.0).to(tl.int32)
    filled = inside & (slot < tl.minimum(slots, count))
    root = slot
    if BY_POSITION:
        root = tl.load(slot_place + row * k + slot, filled, other=0)
    score = tl.load(final_score + row * k + root, filled, other=0.0)
    nan = float("nan")
    tl.store(score_out + slot_of_all, tl.where(valid, score, nan), inside)
    leader = tl.load(final_leader + row * k + root, filled, other=-1)
    tl.store(leader_out + slot_of_all, leader.to(tl.int64), inside)
    tl.store(filled_out + slot_of_all, filled.to(tl.int8), inside)
    tl.store(valid_out + row, valid.to(tl.int8), inside & (slot == 0))

    if SAVE:  # the pairs of all rounds are k less than the leaves
        rest = (k << rounds) - k + slot
        tl.store(node_share + row * number_stride + rest, tl.full([SLOTS, 1], 1.0, NUMBER), inside)
        tl.store(node_top + row * number_stride + rest, tl.zeros([SLOTS, 1], NUMBER), inside)
        tl.store(node_gap + row * number_stride + rest, tl.zeros([SLOTS, 1], NUMBER), inside)
        tl.store(node_place + row * integer_stride + rest, tl.full([SLOTS, 1], -1, tl.int32), inside)

    members = 1 << rounds  # at most, of a slot
    full = (k << played).to(tl.int64)
    entries = row * full
    leaves = row * integer_stride + slot * members
    written = tl.zeros([SLOTS, 1], tl.int32)
    for start in range(0, members, LEAVES):
        leaf = start + tl.arange(0, LEAVES)[None, :]
        place = root + tl.zeros([SLOTS, LEAVES], tl.int32)
        weight = tl.full([SLOTS, LEAVES], 1.0, NUMBER)
        alive = filled & (leaf < members)
        for back in range(rounds):
            r = rounds - 1 - back
            half = slots << back
            if back > 0:
                place = tl.load(perm + entries + (full - (full >> r)) + place, alive, other=0)
            at = entries + (full - (full >> r)) + place
            better = tl.load(share + at, alive, other=1.0)
            if SAVE:
                in_row = (full - (full >> r)) + slot * (members >> (r + 1)) + (leaf >> (r + 1))
                node = row * number_stride + in_row
                first = inside & (leaf < members) & ((leaf & ((2 << r) - 1)) == 0)
                tl.store(node_share + node, better, first)
                tl.store(node_top + node, tl.load(top + at, alive, other=0.0), first)
                tl.store(node_gap + node, tl.load(gap + at, alive, other=0.0), first)
                tl.store(node_place + row * integer_stride + in_row, tl.where(alive, place, -1), first)
            to_worse = ((leaf >> r) & 1) != 0
            weight = weight * tl.where(to_worse, 1.0 - better, better)
            place = tl.where(to_worse, 2 * half - 1 - place, place)
            alive = alive & (place < tl.minimum(count, 2 * half))
        candidate = tl.load(order + entries + place, alive, other=0)
        is_member = alive & (weight != 0.0) & (valid | (leaf == 0))
        one = is_member.to(tl.int32)
        position = written + tl.cumsum(one, 1) - one
        out = slot_of_all * members + position
        tl.store(member_out + out, candidate, is_member)
        tl.store(weight_out + out, tl.where(valid, weight, nan), is_member)
        if SAVE:
            here = inside & (leaf < members)
            tl.store(leaf_candidate + leaves + leaf, tl.where(alive, candidate, -1), here)
            tl.store(leaf_position + leaves + leaf, tl.where(is_member, position, -1), here)
        written += tl.sum(one, 1, keep_dims=True)
    for start in range(0, members, LEAVES):
        position = start + tl.arange(0, LEAVES)[None, :]
        empty = inside & (position >= written) & (position < members)
        out = slot_of_all * members + position
        tl.store(member_out + out, n + tl.zeros([SLOTS, LEAVES], tl.int32), empty)
        tl.store(weight_out + out, tl.where(valid, 0.0, nan) + tl.zeros([SLOTS, LEAVES], NUMBER), empty)
