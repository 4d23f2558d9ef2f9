"""What can be wrong with an argument of an operator: tables of changes, by the type of the argument and by its name.

A change is a function of random choices, the argument, and the call that it belongs to. It gives the new argument, and
must not write to the old one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fuzz.calls import Call, is_floating
from fuzz.kind import Draw

Change = Callable[[Draw, Any, Call], Any]

INF, NAN = math.inf, math.nan
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip
INTEGERS = [0, 1, 2, 3, -1, -2, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63)]
FLOATS = [NAN, INF, -INF, 0.0, -0.0, -1.0, 1e-45, 5e-324, 1e-30, 1e-3, 1e30, 3.5e38, 1e300, 1.7e308]


def _bytes(tensor: Tensor) -> Tensor:
    """A copy of a tensor, and its bytes."""
    return tensor.contiguous().clone().reshape(-1).view(torch.uint8)


def _from_bytes(flat: Tensor, like: Tensor) -> Tensor:
    return flat.view(like.dtype).reshape(like.shape)


def _is_bytes(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.layout == torch.strided and tensor.numel() > 0 and not tensor._is_zerotensor()


def _flip_bytes(draw: Draw, x: Tensor, call: Call) -> Tensor:
    if not _is_bytes(x):
        return x
    flat = _bytes(x)
    for _ in range(draw.choice([1, 1, 2, 5, 40])):
        flat[draw.randrange(len(flat))] = draw.randrange(256)
    return _from_bytes(flat, x)


def _random_bytes(draw: Draw, x: Tensor, call: Call) -> Tensor:
    if not _is_bytes(x):
        return x
    flat = torch.frombuffer(bytearray(draw.randbytes(x.numel() * x.element_size())), dtype=torch.uint8).clone()
    return _from_bytes(flat, x)


def _set_some(draw: Draw, x: Tensor, call: Call) -> Tensor:
    """Extreme values in some places."""
    if not _is_bytes(x) or x.dtype.is_complex or x.dtype not in DTYPES or x.element_size() == 1:
        return x
    flat = x.contiguous().clone().reshape(-1)
    if x.is_floating_point():
        value: float = draw.choice(FLOATS)
    else:
        limits, n = torch.iinfo(x.dtype), _candidates(call)
        value = draw.choice([-1, 0, n - 1, n, n + 1, 2 * n, limits.min, limits.max, draw.randrange(-3, 2 * n + 9)])
        value = min(max(value, limits.min), limits.max)
    for _ in range(draw.choice([1, 1, 2, 5, len(flat)])):
        flat[draw.randrange(len(flat))] = value
    return flat.reshape(x.shape)


def _candidates(call: Call) -> int:
    """About how many candidates there are."""
    for value in call.arguments[::-1]:
        if isinstance(value, list) and len(value) > 1 and isinstance(value[-2], int):
            return int(min(max(value[-2], 1), 2**20))
    sizes: list[int] = [size for each in call.arguments if is_floating(each) for size in each.shape]
    return min(max([1, *sizes]), 2**20)


def _of_another_argument(draw: Draw, x: Tensor, call: Call) -> Any:
    return draw.choice([each for each in call.arguments if isinstance(each, Tensor)] or [x])


def _cut(draw: Draw, x: Tensor, call: Call) -> Tensor:
    if not x.dim():
        return x
    dim = draw.randrange(x.dim())
    return x.narrow(dim, 0, draw.randrange(x.shape[dim]) if x.shape[dim] else 0)


def _lengthen(draw: Draw, x: Tensor, call: Call) -> Tensor:
    if not x.dim() or not _is_bytes(x):
        return x
    dim = draw.randrange(x.dim())
    return torch.cat([x, x.narrow(dim, 0, draw.randint(1, x.shape[dim]))], dim)


def _transpose(draw: Draw, x: Tensor, call: Call) -> Tensor:
    return x.transpose(draw.randrange(x.dim()), draw.randrange(x.dim())) if x.dim() else x


def _expand(draw: Draw, x: Tensor, call: Call) -> Tensor:
    if not x.dim() or 0 in x.shape:
        return x
    dim = draw.randrange(x.dim())
    return x.narrow(dim, 0, 1).expand(
        [draw.choice([size, 2, 7]) if i == dim else size for i, size in enumerate(x.shape)]
    )


def _overlap(draw: Draw, x: Tensor, call: Call) -> Tensor:
    """Entries that share memory with their neighbors."""
    if not _is_bytes(x) or not x.dim():
        return x
    return x.contiguous().as_strided(x.shape, [draw.choice([0, 1]) if size > 1 else 1 for size in x.shape])


def _strided(draw: Draw, x: Tensor, call: Call) -> Tensor:
    if x.layout != torch.strided:
        return x
    return torch.stack([x, x], dim=-1)[..., 1]


def _huge(draw: Draw, x: Tensor, call: Call) -> Tensor:
    """More entries than memory could hold, all of them the same."""
    if not x.dim() or 0 in x.shape or call.reference:
        return x
    dim, size = draw.randrange(x.dim()), draw.choice([2**30, 2**31, 2**40])
    return x.narrow(dim, 0, 1).expand([size if i == dim else each for i, each in enumerate(x.shape)])


def _other_dtype(draw: Draw, x: Tensor, call: Call) -> Tensor:
    return x.to(draw.choice(DTYPES))


def _same_bytes(draw: Draw, x: Tensor, call: Call) -> Tensor:
    """The same memory as numbers of another dtype."""
    if not _is_bytes(x):
        return x
    fitting = [each for each in DTYPES if each.itemsize == x.dtype.itemsize and each != torch.bool]
    return x.view(draw.choice(fitting))


def _sparse(draw: Draw, x: Tensor, call: Call) -> Tensor:
    return x.to_sparse() if _is_bytes(x) and x.dim() else x


def _negative(draw: Draw, x: Tensor, call: Call) -> Tensor:
    return torch._neg_view(x) if is_floating(x) and _is_bytes(x) else x


TENSOR: dict[str, Change] = {
    "without dimensions": lambda draw, x, call: x.reshape(-1)[0] if x.numel() and _is_bytes(x) else x.new_empty(()),
    "empty": lambda draw, x, call: x.new_empty(0),
    "without entries": lambda draw, x, call: x[..., :0] if x.dim() else x,
    "cut": _cut,
    "lengthened": _lengthen,
    "first": lambda draw, x, call: x[0] if x.dim() and len(x) else x,
    "one more dimension": lambda draw, x, call: x.unsqueeze(draw.randint(-1, 0)),
    "flattened": lambda draw, x, call: x.flatten() if _is_bytes(x) else x,
    "transposed": _transpose,
    "expanded": _expand,
    "huge": _huge,
    "overlapping": _overlap,
    "strided": _strided,
    "other dtype": _other_dtype,
    "same bytes, other dtype": _same_bytes,
    "meta": lambda draw, x, call: x.to("meta"),
    "sparse": _sparse,
    "negative view": _negative,
    "zero tensor": lambda draw, x, call: torch._efficientzerotensor(x.shape, dtype=x.dtype),
    "None": lambda draw, x, call: None,
    "another argument": _of_another_argument,
    "extreme values": _set_some,
    "flipped bytes": _flip_bytes,
    "random bytes": _random_bytes,
}


# What saved rounds hold is in saved_rounds.h: refs of candidates and nodes, then shares and scores.
def _set_field(draw: Draw, x: Tensor, call: Call) -> Tensor:
    if not _is_bytes(x) or not x.dim():
        return x
    flat, n = x.contiguous().clone().reshape(-1, x.shape[-1]), _candidates(call)
    row = flat[draw.randrange(len(flat))]
    place = draw.pick(range(6), range(6, 24), range(6, 192), range(len(row)))  # header, first rounds, all rounds, all
    value = draw.pick([-1, 0, 1, n, 2**31 - 1, -(2**31)], range(-3, 3 * n), [2**20, 2**28])
    if place < len(row):
        row[place] = value if row.dtype == torch.int32 else 1
    return flat.reshape(x.shape)


def _shuffle(draw: Draw, x: Tensor, call: Call) -> Tensor:
    """Entries in another order: a part of them, or all."""
    if not _is_bytes(x):
        return x
    flat = x.contiguous().clone().reshape(-1)
    first = draw.choice([0, draw.randrange(len(flat))])
    places = list(range(first, len(flat)))
    draw.shuffle(places)
    flat[first:] = flat[places].clone()
    return flat.reshape(x.shape)


def _references(draw: Draw, x: Tensor, call: Call) -> Tensor:
    """Random references, some of them out of range, some of them cycles."""
    if not _is_bytes(x) or x.dtype not in (torch.int32, torch.int64):
        return x
    flat = x.contiguous().clone().reshape(-1)
    start = min(draw.choice([0, 6, 192]), len(flat) - 1)
    limit = draw.choice([1, 2, 1]) * _candidates(call) + draw.choice([0, 0, 2])
    for place in range(start, len(flat)):
        if draw.chance(0.3):
            flat[place] = draw.randrange(-1 if draw.chance(0.1) else 0, max(limit, 1))
    return flat.reshape(x.shape)


def _bytes_as_bool(draw: Draw, x: Tensor, call: Call) -> Tensor:
    """A bool tensor whose bytes are neither 0 nor 1."""
    memory = bytearray(draw.randbytes(max(x.numel(), 1)))
    return torch.frombuffer(memory, dtype=torch.uint8).clone()[: x.numel()].view(torch.bool).reshape(x.shape)


def _like_scores(draw: Draw, x: Any, call: Call) -> Any:
    """A mask where there was none."""
    scores = call.argument("scores")
    return _bytes_as_bool(draw, scores, call) if isinstance(scores, Tensor) else x


def _counts(draw: Draw, x: Any, call: Call) -> Any:
    """Counts for the rows of the scores, most of them in range."""
    scores, k = call.argument("scores"), call.argument("k")
    if not isinstance(scores, Tensor) or not scores.dim() or not isinstance(k, int) or not 0 < k < 2**31:
        return x
    counts = torch.full(scores.shape[:-1], 1 + draw.randrange(k), dtype=torch.int64)
    if counts.numel():
        counts.view(-1)[draw.randrange(counts.numel())] = draw.pick([1, k], INTEGERS)
    return counts


REFERENCES: dict[str, Change] = {"shuffled": _shuffle, "random references": _references}
BY_NAME: dict[str, dict[str, Change]] = {
    "saved": {"a field": _set_field, "another field": _set_field, **REFERENCES},
    "member": REFERENCES,
    "mask": {"bytes as bool": _bytes_as_bool},
    "counts": {"other counts": _counts},
    "valid": {"bytes as bool": _bytes_as_bool},
}


def _without(draw: Draw, x: list[int], call: Call) -> list[int]:
    place = draw.randrange(len(x)) if x else 0
    return x[:place] + x[place + 1 :]


def _one_size(draw: Draw, x: list[int], call: Call) -> list[int]:
    if not x:
        return x
    place = draw.randrange(len(x))
    return [*x[:place], draw.pick(INTEGERS, [x[place] - 1, x[place] + 1, 2 * x[place]]), *x[place + 1 :]]


def _shuffled_list(draw: Draw, x: list[int], call: Call) -> list[int]:
    return draw.sample(x, len(x))


LIST: dict[str, Change] = {
    "empty": lambda draw, x, call: [],
    "a size less": _without,
    "a size more": lambda draw, x, call: [draw.choice([0, 1, 2]), *x],
    "another size": _one_size,
    "shuffled": _shuffled_list,
}
WRONG_TYPES = [None, "1", 1.5, [1], True]
NUMBER: dict[type, dict[str, Change]] = {
    bool: {"the other": lambda draw, x, call: not x},
    int: {
        "another": lambda draw, x, call: draw.pick(INTEGERS, [x - 1, x + 1, 2 * x], [_candidates(call)]),
        "a fraction": lambda draw, x, call: draw.choice([2**29, 2**30 - 1, 2**30 + 1, 2**28, 12345]),
        "wrong type": lambda draw, x, call: draw.choice(WRONG_TYPES),
    },
    float: {
        "another": lambda draw, x, call: draw.choice(FLOATS),
        "wrong type": lambda draw, x, call: draw.choice(WRONG_TYPES),
    },
}


def changes_of(name: str, value: Any) -> dict[str, Change]:
    """The changes that fit an argument."""
    if isinstance(value, Tensor):
        own = BY_NAME.get(name, {})
        return {**TENSOR, **own}
    if isinstance(value, list):
        return LIST
    if value is None:
        if name == "mask":
            return {"bytes as bool": _like_scores}
        if name == "counts":
            return {"counts": _counts}
        return {"a tensor": lambda draw, x, call: _of_another_argument(draw, torch.ones(()), call)}
    return NUMBER.get(type(value), {"zero": lambda draw, x, call: 0})  # the type was changed before
