"""The operator ``tournament_backward``: which kernels run, over what."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from knockout.ops.triton.backward import down, up
from knockout.ops.triton.call import Call, Saved, call_of
from knockout.ops.triton.launch import launch
from knockout.ops.triton.long_rows_backward import down_level

_BLOCK = 4096  # entries that one program has, at most; twice as many if launches would be too many otherwise
_PACKED = 1024  # of a program that goes up several brackets
_PACKED_ROWS = 256  # of a program that goes down from several rows; registers would not do for more
_CHUNK = 2048  # pairs of a long row that a program has


def tournament_backward(
    d_weight: Tensor | None, d_score: Tensor | None, scores: Tensor, mask: Tensor | None, c_tensor: Tensor | None,
    unit_tensor: Tensor | None, member: Tensor, saved: Tensor, k: int, numerator: int, kind: int, alpha: int, c: float,
    unit: float, by_position: bool, counts: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As the schema says."""
    out = torch.zeros_like(scores, memory_format=torch.contiguous_format)
    call = call_of(scores, c_tensor, unit_tensor, k, numerator, kind, alpha, c, unit, True, counts)
    if call.rows == 0 or (d_weight is None and d_score is None):
        return out
    nodes = Saved.of(saved.contiguous(), call)
    difference = scores.new_empty((call.rows, call.leaves), dtype=call.dtype)
    if d_weight is not None and call.rounds:
        _up(call, d_weight.contiguous(), nodes, difference)
    d_score = None if d_score is None else d_score.contiguous()
    _down(call, d_score, nodes, difference, out, d_weight is not None)
    return out


def _up(call: Call, d_weight: Tensor, nodes: Saved, difference: Tensor) -> None:
    """The differences of G of all pairs."""
    level, sums = 0, None
    while level < call.rounds:
        levels = min(_PACKED.bit_length() - 1, call.rounds - level)
        entries = call.rows * (call.leaves >> level)
        result = difference.new_empty(entries >> levels)
        launch(
            up, (triton.cdiv(entries, _PACKED),), _PACKED, d_weight=d_weight, leaf_position=nodes.position,
            sums_in=sums, sums_out=result, node_share=nodes.share, difference=difference, entries=entries,
            leaves=call.leaves, rounds=call.rounds, level=level, **call.strides, LEAVES=_PACKED, LEVELS=levels,
            FIRST=level == 0,
        )  # fmt: skip
        level, sums = level + levels, result


def _down(
    call: Call, d_score: Tensor | None, nodes: Saved, difference: Tensor, out: Tensor, has_d_weight: bool
) -> None:
    """The derivatives of the candidates' scores."""
    block = _BLOCK if call.leaves <= 4 * _BLOCK else 2 * _BLOCK
    slots = min(triton.next_power_of_2(call.k), block)
    levels = 0
    while levels < call.rounds and slots << (levels + 1) <= block:
        levels += 1
    pairs = {
        "node_share": nodes.share, "node_top": nodes.top, "node_gap": nodes.gap, "node_place": nodes.place,
        "difference": difference, "leaf_candidate": nodes.candidate, "state": nodes.state, "out": out,
        "HAS_D_WEIGHT": has_d_weight, **call.strides,
    }  # fmt: skip
    width, chunks = slots << levels, triton.cdiv(call.k, slots)
    rows = max(1, _PACKED_ROWS // width)
    weight, d_entry = difference.new_empty((2, call.rows, call.k << levels))
    of_rows = out.new_empty((call.rows, 2), dtype=torch.float64)
    terms = out.new_empty((call.rows, call.k << levels), dtype=torch.float64)
    launch(
        down, (triton.cdiv(call.rows, rows) * chunks,), rows * width, **call.sizes, **call.boost, **pairs,
        d_score_in=d_score, weight_out=weight, d_score_out=d_entry, row_out=of_rows, terms_out=terms, rows=call.rows,
        rounds=call.rounds, chunks=chunks, ROWS=rows, SLOTS=slots, LEVELS=levels, ALL=levels == call.rounds,
        HAS_D_SCORE=d_score is not None,
    )  # fmt: skip
    for level in range(levels, call.rounds):
        entries = call.k << level
        chunk = min(_CHUNK, triton.next_power_of_2(entries))
        chunks = triton.cdiv(entries, chunk)
        next_weight, next_d_entry = difference.new_empty((2, call.rows, 2 * entries))
        next_of_rows, next_terms = torch.empty_like(of_rows), terms.new_empty((call.rows, 2 * entries))
        launch(
            down_level, (call.rows * chunks,), chunk, **call.sizes, **call.boost, **pairs, weight_in=weight,
            d_score_in=d_entry, row_in=of_rows, terms_in=terms, weight_out=next_weight, d_score_out=next_d_entry,
            row_out=next_of_rows, terms_out=next_terms, rounds=call.rounds, level=level, chunks=chunks, CHUNK=chunk,
            LAST=level == call.rounds - 1,
        )  # fmt: skip
        weight, d_entry, of_rows, terms = next_weight, next_d_entry, next_of_rows, next_terms
