"""Before any work: what every rank was asked to do, and whether that is the same thing.

Collectives of ranks that want different things hang, or give wrong results. So each call begins with one small message
from every rank to all, also from one that cannot take part: then all of them raise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from knockout.distributed.ranks import RankError, Ranks

LENGTH = 1024  # bytes of a message

Made = TypeVar("Made")


def agree(
    ranks: Ranks,
    call: str,
    attempt: Callable[[], Made],
    same: Callable[[Made], dict[str, Any]],
    own: Callable[[Made], Any],
) -> tuple[Made, list[Any], int]:
    """What this rank makes of its arguments, what all ranks say that may differ between them, and the call's number.

    ``same`` is what must not differ. If it does, or if an attempt fails somewhere, all ranks raise: where it failed,
    that error; elsewhere one that tells of it.
    """
    failure, made, said = None, None, {}
    try:
        made = attempt()
        said = {"call": call, "same": same(made), "own": own(made)}
    except Exception as error:
        failure, said = error, {"call": call, "error": f"{type(error).__name__}: {error}"}
    heard = [_read(each) for each in ranks.gather(_written(said, ranks.device), f"{call}: arguments").cpu()]
    number = ranks.number()
    if failure is not None:
        raise failure
    for rank, each in enumerate(heard):
        if "error" in each:
            raise RankError(f"knockout.distributed.{call}: rank {rank} could not take part: {each['error']}")
    _compare(call, "call", [each["call"] for each in heard])
    for name in dict.fromkeys(name for each in heard for name in each["same"]):
        _compare(call, name, [each["same"].get(name) for each in heard])
    assert made is not None
    return made, [each["own"] for each in heard], number


def _compare(call: str, name: str, values: list[Any]) -> None:
    first = values[0]
    if all(value == first for value in values):
        return
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(json.dumps(value).strip('"'), []).append(rank)
    shown = "; ".join(f"{value} on {_ranks(which)}" for value, which in by_value.items())
    raise ValueError(f"knockout.distributed.{call}: {name} must be the same on all ranks; got {shown}")


def _ranks(which: list[int]) -> str:
    shown = ", ".join(map(str, which[:8])) + (f" and {len(which) - 8} more" if len(which) > 8 else "")
    return f"rank{'s' if len(which) > 1 else ''} {shown}"


def _written(said: dict[str, Any], device: torch.device) -> Tensor:
    text = json.dumps(said, ensure_ascii=False).encode()
    if len(text) > LENGTH and "error" in said:
        # Cut inside of the string, which must still be read, and may have characters that take six bytes each.
        short = said["error"].encode(errors="replace")[: LENGTH // 8].decode(errors="ignore")
        text = json.dumps({**said, "error": f"{short} ..."}, ensure_ascii=False).encode()
    if len(text) > LENGTH:
        raise ValueError(f"the arguments take more than {LENGTH} bytes to describe: {text.decode()}")
    return torch.frombuffer(bytearray(text.ljust(LENGTH)), dtype=torch.uint8).to(device)


def _read(message: Tensor) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(bytes(message.tolist()))
    return said
