"""Wrong arguments of the public functions: each raises a TypeError or ValueError that names an argument, or works."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import knockout
from fuzz.kind import MEMORY_MISSING, Draw, Kind, ViolationError
from knockout.boost import Base, Fixed, Power, Relative

N, K, D = 10, 3, 4


def _scores() -> Tensor:
    return torch.linspace(-1, 1, 2 * N).reshape(2, N)


def _values() -> Tensor:
    return torch.linspace(-1, 1, 2 * N * D).reshape(2, N, D)


NUMBERS: dict[str, Any] = {
    "zero": 0, "one": 1, "minus one": -1, "n": N, "n + 1": N + 1, "2**31": 2**31, "2**63": 2**63, "10**400": 10**400,
    "half": 0.5, "1.0": 1.0, "zero as a float": 0.0, "1e-300": 1e-300, "below one": 1 - 2**-53, "1e308": 1e308,
    "NaN": math.nan, "inf": math.inf, "-inf": -math.inf, "True": True, "complex": 1j, "a Fraction": Fraction(1, 3),
    "int64 of NumPy": np.int64(2), "float16 of NumPy": np.float16(0.5),
}  # fmt: skip
OBJECTS: dict[str, Any] = {
    "None": None, "a string": "score", "bytes": b"1", "an empty list": [], "a list": [1.0, 2.0], "a dict": {},
    "a set": {1}, "a type": Tensor, "a function": len, "an object": object(), "a range": range(3),
}  # fmt: skip
TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "without dimensions": lambda x: x.flatten()[0],
    "empty": lambda x: x[:0],
    "without candidates": lambda x: x[:, :0],
    "cut": lambda x: x[:, :-1],
    "three rows": lambda x: torch.cat([x, x[:1]]),
    "one row": lambda x: x[0],
    "one more dimension": lambda x: x[None, None],
    "transposed": lambda x: x.transpose(0, 1),
    "flat": lambda x: x.flatten(),
    "expanded to nothing": lambda x: x[:1].expand(0, *x.shape[1:]),
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "sparse rows": lambda x: x.reshape(len(x), -1).to_sparse_csr(),
    "nested": lambda x: torch.nested.nested_tensor([x, x[:1]]),
    "quantized": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
    "complex": lambda x: x.to(torch.complex64),
    "conjugate": lambda x: x.to(torch.complex64).conj(),
    "imaginary part of a conjugate": lambda x: torch.complex(x.float(), x.float()).conj().imag,
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "int64": lambda x: x.long(),
    "int8": lambda x: x.to(torch.int8),
    "uint16": lambda x: x.to(torch.uint8).to(torch.uint16),
    "bool": lambda x: x > 0,
    "float16": lambda x: x.half(),
    "float64": lambda x: x.double(),
    "NumPy": lambda x: x.numpy(),
    "list": lambda x: x.tolist(),
    "list of tensors": lambda x: list(x),
    "generator of tensors": lambda x: (each for each in x),
    "with a gradient": lambda x: x.clone().requires_grad_() if x.is_floating_point() else x,
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=x.is_floating_point()),
    "zero tensor": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
    "NaN": lambda x: torch.full_like(x, math.nan) if x.is_floating_point() else x,
    "-inf": lambda x: torch.full_like(x, -math.inf) if x.is_floating_point() else x,
    "huge, expanded": lambda x: x[:1, :1].expand(2**40, *x.shape[1:]),
}


def _boosts() -> dict[str, Callable[[], Any]]:
    """Boosts of wrong numbers; making one is a part of the call."""
    made: dict[str, Callable[[], Any]] = {"the type": lambda: Relative}
    kinds: list[Callable[..., Any]] = [Relative, Fixed, Base, Power]
    for kind in kinds:
        for what, value in {**NUMBERS, **OBJECTS}.items():
            made[f"{kind.__name__}({what})"] = partial(kind, value)
            made[f"{kind.__name__}(2, alpha={what})"] = partial(kind, 2.0, alpha=value)
    for what, value in {**NUMBERS, **OBJECTS}.items():
        made[f"Relative(2, unit={what})"] = partial(Relative, 2.0, unit=value)
    for what, change in TENSORS.items():
        made[f"Relative(tensor, {what})"] = partial(_relative_of, change)
    for what in ("NaN", "inf", "zero as a float", "minus one", "1e308", "1e-300"):
        for dtype in (torch.float16, torch.float32, torch.float64):
            made[f"Fixed(tensor of {what}, {dtype})"] = partial(_fixed_of, NUMBERS[what], dtype)
    return made


def _relative_of(change: Callable[[Tensor], Any]) -> Relative:
    return Relative(change(_scores()))


def _fixed_of(number: float, dtype: torch.dtype) -> Fixed:
    return Fixed(torch.tensor(number).to(dtype))


BOOSTS = _boosts()
CALLS: dict[str, dict[str, Callable[[], Any]]] = {
    "select": {"scores": _scores, "k": lambda: K},
    "topk": {"values": _values, "scores": _scores, "k": lambda: K},
    "apply": {"values": _values},
}
OPTIONS = ("boost", "mask", "order", "hard", "max_k")


class WrongCall(NamedTuple):
    """A call of a function, and what is passed for which argument; the others are right."""

    function: str
    arguments: dict[str, str]


class Misuse(Kind[WrongCall]):
    """Public functions called with wrong arguments."""

    name = "misuse"

    def draw(self, seed: int, number: int) -> WrongCall:
        draw = self.drawing(seed, number)
        function = draw.choice(list(CALLS))
        names = [*CALLS[function], *(OPTIONS if function != "apply" else ())]
        changed = draw.sample(names, draw.choice([1, 1, 1, 2, 3]) if len(names) > 3 else 1)
        return WrongCall(function, {name: _drawn(draw, name) for name in changed})

    def run(self, case: WrongCall) -> str:
        try:
            given = {name: make() for name, make in CALLS[case.function].items()}
            given |= {name: _made(name, what) for name, what in case.arguments.items()}
            if case.arguments.get("k") in TENSORS:
                given.setdefault("max_k", K)
            if case.function == "apply":
                result: Any = knockout.select(_scores(), K).apply(**given)
            else:
                result = getattr(knockout, case.function)(**given)
                result = (result.scores, result.indices, result.mask, *_more(result))
            assert all(isinstance(each, Tensor) for each in result)
        except (TypeError, ValueError) as error:
            names = (*OPTIONS, "values", "scores", "chunk", "k", "c", "b", "unit", "alpha")
            if not any(re.search(rf"\b{name}\b", str(error)) for name in names):
                raise ViolationError(f"an error that names no argument: {error}") from error
            return f"{case.function}: refused"
        except RuntimeError as error:
            if not MEMORY_MISSING.search(str(error)):
                raise
            return f"{case.function}: too large"
        return f"{case.function}: a result"

    def write(self, case: WrongCall) -> Any:
        return [case.function, case.arguments]

    def read(self, written: Any) -> WrongCall:
        return WrongCall(*written)


def _more(result: Any) -> tuple[Tensor, ...]:
    return (result.mass(), result.perplexity()) if isinstance(result, knockout.Selection) else (result.values,)


def _drawn(draw: Draw, name: str) -> str:
    if name == "boost" and draw.chance(0.8):
        return draw.choice(list(BOOSTS))
    if name in ("scores", "values", "mask") and draw.chance(0.8):
        return draw.choice(list(TENSORS))
    if name == "k" and draw.chance(0.5):
        return draw.choice([each for each in TENSORS if each != "huge, expanded"])  # to read so many counts takes hours
    return draw.choice([*NUMBERS, *OBJECTS])


def _made(name: str, what: str) -> Any:
    if name == "boost" and what in BOOSTS:
        return BOOSTS[what]()
    if name in ("scores", "values", "mask", "k") and what in TENSORS:
        counts = torch.tensor([[1, K], [K, 0]])
        whole = {"scores": _scores(), "values": _values(), "mask": _scores() > -0.5, "k": counts}[name]
        return TENSORS[what](whole)
    return {**NUMBERS, **OBJECTS}[what]
