"""The agreement at the start of each call: every rank tells all others which arguments it got.

Collectives hang or give wrong results if the ranks want different things. So each call starts with one small message
from every rank to all others, also from a rank whose arguments are bad: then all ranks raise an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from knockout.distributed.ranks import RankError, Ranks

LENGTH = 1024  # bytes of a message

Prepared = TypeVar("Prepared")


def agree(
    ranks: Ranks,
    call: str,
    prepare: Callable[[], Prepared],
    must_match: Callable[[Prepared], dict[str, Any]],
    may_differ: Callable[[Prepared], Any],
) -> tuple[Prepared, list[Any], int]:
    """Run ``prepare`` on each rank, and exchange descriptions of the results.

    If ``prepare`` fails on a rank, all ranks raise: that rank its own error, the others a ``RankError`` with its text.
    If the values of ``must_match`` differ between ranks, all ranks raise a ``ValueError``.

    Returns:
        What ``prepare`` returned, ``may_differ`` of all ranks, and the number of the call.
    """
    failure, prepared, message = None, None, {}
    try:
        prepared = prepare()
        message = {"call": call, "must match": must_match(prepared), "may differ": may_differ(prepared)}
    except Exception as error:
        failure, message = error, {"call": call, "error": f"{type(error).__name__}: {error}"}
    gathered = ranks.all_gather(_encode(message, ranks.device), f"{call}: arguments").cpu()
    messages, number = [_decode(each) for each in gathered], ranks.next_call_number()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # or this frame and the error's traceback would keep each other, and the caller's group, alive
    for rank, each in enumerate(messages):
        if "error" in each:
            raise RankError(f"knockout.distributed.{call}: rank {rank} failed with {each['error']}")
    _check_equal(call, "call", [each["call"] for each in messages])
    for name in dict.fromkeys(name for each in messages for name in each["must match"]):
        _check_equal(call, name, [each["must match"].get(name) for each in messages])
    assert prepared is not None
    return prepared, [each["may differ"] for each in messages], number


def _check_equal(call: str, name: str, values: list[Any]) -> None:
    first = values[0]
    if all(value == first for value in values):
        return
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(json.dumps(value).strip('"'), []).append(rank)
    shown = "; ".join(f"{value} on {_list_ranks(ranks)}" for value, ranks in by_value.items())
    raise ValueError(f"knockout.distributed.{call}: {name} must be the same on all ranks; got {shown}")


def _list_ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _encode(message: dict[str, Any], device: torch.device) -> Tensor:
    text = json.dumps(message, ensure_ascii=False).encode()
    if len(text) > LENGTH and "error" in message:
        # Shorten the error before it is encoded: the message must stay valid JSON, in which an escaped character of the
        # error takes up to six bytes.
        short = message["error"].encode(errors="replace")[: LENGTH // 8].decode(errors="ignore")
        text = json.dumps({**message, "error": f"{short} ..."}, ensure_ascii=False).encode()
    if len(text) > LENGTH:
        raise ValueError(f"the arguments take more than {LENGTH} bytes to describe: {text.decode()}")
    return torch.frombuffer(bytearray(text.ljust(LENGTH)), dtype=torch.uint8).to(device)


def _decode(encoded: Tensor) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(bytes(encoded.tolist()))
    return message
