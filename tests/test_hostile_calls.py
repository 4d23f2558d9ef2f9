"""Operators called with arguments that the library itself would never pass: each is refused by name, none crashes.

The calls run in a process of their own that forks a worker for them, so that a crash fails one test and not the suite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fuzz import calls
from fuzz.calls import Call, calls_of, judge
from fuzz.watch import Done, Task, watch
from knockout.backends import why_not
from knockout.boost import Relative
from knockout.ops.schema import SCHEMAS
from tests.cases import INF, NAN, run_python
from tests.contract.cases import Case

N, K, D = 12, 3, 2
CASE = Case(N, K, Relative(1), kept=0.9, d=D, batches=((2,), (2,), (2,)), seed=1)
HEADER, REFERENCES = 6, 6 + 31 * 6 + 31  # where rounds and references begin in the saved rounds: see saved_rounds.h
LARGEST, SMALLEST = 2**31 - 1, -(2**31)


class Hostile(NamedTuple):
    """A valid call of an operator, one argument of which is changed."""

    operator: str
    argument: str
    change: Callable[[Any], Any]
    refused: bool = True  # or it may also give a result, of the right shape
    by_name: bool = True  # the error names this argument; or any: of two that do not fit, either may be the wrong one


def to(value: Any) -> Callable[[Any], Any]:
    """The argument is this instead."""
    return lambda _: value


def filled(place: int, value: int, dtype: torch.dtype = torch.int32) -> Callable[[Tensor], Tensor]:
    """One number of the last dimension of the tensor, in every row, is this instead."""

    def change(x: Tensor) -> Tensor:
        x = x.to(dtype, copy=True)
        x[..., place] = value
        return x

    return change


def swapped(first: int, second: int) -> Callable[[Tensor], Tensor]:
    """Two numbers of every row change places."""

    def change(x: Tensor) -> Tensor:
        places = list(range(x.shape[-1]))
        places[first], places[second] = places[second], places[first]
        return x[..., places]

    return change


def random_bytes(x: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    count = x.numel() * x.element_size()
    return torch.randint(256, (count,), dtype=torch.uint8, generator=generator).view(x.dtype).reshape(x.shape)


def bytes_as_bool(x: Tensor) -> Tensor:
    return torch.full(x.shape, 7, dtype=torch.uint8).view(torch.bool)


def flipped(place: int) -> Callable[[Tensor], Tensor]:
    """All bits of one byte of the tensor are flipped."""

    def change(x: Tensor) -> Tensor:
        flat = x.contiguous().clone().flatten().view(torch.uint8)
        flat[place] ^= 255
        return flat.view(x.dtype).reshape(x.shape)

    return change


TYPES: dict[str, Callable[[Tensor], Tensor | None]] = {
    "has no dimensions": lambda x: x.flatten()[0],
    "is undefined": lambda _: None,
    "is complex": lambda x: x.to(torch.complex64),
    "is int16": lambda x: x.to(torch.int16),
    "is float8": lambda x: x.to(torch.float8_e4m3fn),
}
SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "is empty": lambda x: x[:0],
    "has a row less": lambda x: x[:-1],
    "has an entry less": lambda x: x[..., :-1],
    "has an entry more": lambda x: torch.cat([x, x[..., :1]], -1),
    "has a dimension more": lambda x: x[None],
    "has a dimension less": lambda x: x[0],
}
ARGUMENTS = {
    "tournament": ["scores", "mask"],
    "tournament_backward": ["d_weight", "d_score", "scores", "mask", "member", "saved"],
    "blend": ["values", "weight", "member", "valid"],
    "spread": ["grad", "weight", "member"],
    "match": ["grad", "values", "member"],
    "topk": ["values", "scores", "mask"],
    "topk_backward": ["grad", "d_score", "values", "scores", "mask", "member", "weight", "saved"],
}
OPTIONAL = {"mask", "d_weight", "d_score", "valid"}
# One row of values is broadcast. How long the saved rounds are depends on the data.
VALID = {
    "blend: values has a row less",
    "blend: values has an entry less",
    "blend: values has an entry more",
    "match: values has a row less",
    "match: member has an entry less",
    "match: member has an entry more",
    "tournament_backward: saved has an entry more",
    "tournament_backward: saved has an entry less",
    "topk: values has an entry less",
    "topk: values has an entry more",
    "topk_backward: saved has an entry more",
    "topk_backward: saved has an entry less",
}

CASES: dict[str, Hostile] = {}
for _operator, _names in ARGUMENTS.items():
    for _name in _names:
        for _what, _change in TYPES.items():
            if _what != "is undefined" or _name not in OPTIONAL:
                CASES[f"{_operator}: {_name} {_what}"] = Hostile(_operator, _name, _change)
        for _what, _change in SHAPES.items():
            _title = f"{_operator}: {_name} {_what}"
            CASES[_title] = Hostile(_operator, _name, _change, refused=_title not in VALID, by_name=False)
        # With one tensor on the device meta the result is there too: what that device has are shapes.
        CASES[f"{_operator}: {_name} is on meta"] = Hostile(_operator, _name, lambda x: x.to("meta"), refused=False)
for _operator in ("tournament", "tournament_backward", "topk", "topk_backward"):
    for _k in (0, -1, N + 1, 2**31, 2**62, -(2**63)):
        CASES[f"{_operator}: k = {_k}"] = Hostile(_operator, "k", to(_k))
    for _number in (-1, 1, 2**30, 2**30 + 1, 2**62):
        CASES[f"{_operator}: numerator = {_number}"] = Hostile(_operator, "numerator", to(_number), _number != 2**30)
    for _name, _least in (("kind", 4), ("alpha", 3)):
        for _number in (-1, _least, 2**40):
            CASES[f"{_operator}: {_name} = {_number}"] = Hostile(_operator, _name, to(_number))
    for _name in ("c", "unit"):
        for _value in (NAN, 0.0, -1.0, INF, -INF):
            CASES[f"{_operator}: {_name} = {_value}"] = Hostile(_operator, _name, to(_value))
    for _value in (NAN, 0.0, -1.0, INF):
        CASES[f"{_operator}: c_tensor holds {_value}"] = Hostile(_operator, "c_tensor", to(torch.tensor(_value)))
    CASES[f"{_operator}: unit_tensor without an adaptive boost"] = Hostile(
        _operator, "unit_tensor", to(torch.tensor(1.0))
    )
    CASES[f"{_operator}: c_tensor has a dimension"] = Hostile(_operator, "c_tensor", to(torch.ones(1)))
    CASES[f"{_operator}: c_tensor is int64"] = Hostile(_operator, "c_tensor", to(torch.tensor(1)))
    CASES[f"{_operator}: mask of bytes"] = Hostile(_operator, "mask", bytes_as_bool, refused=False)
    for _number in (0, -1, K + 1, 2**31, 2**32 + 1, 2**62, -(2**63)):
        CASES[f"{_operator}: a count of {_number}"] = Hostile(_operator, "counts", to(torch.tensor([1, _number])))
    for _what, _counts in {
        "are int32": torch.ones(2, dtype=torch.int32),
        "are float64": torch.ones(2, dtype=torch.float64),
        "are bool": torch.ones(2, dtype=torch.bool),
        "have no dimensions": torch.tensor(1),
        "have a row less": torch.ones(1, dtype=torch.int64),
        "have a row more": torch.ones(3, dtype=torch.int64),
        "have a dimension more": torch.ones(2, 1, dtype=torch.int64),
        "are sparse": torch.ones(2, dtype=torch.int64).to_sparse(),
    }.items():
        CASES[f"{_operator}: counts {_what}"] = Hostile(_operator, "counts", to(_counts))
    _meta = torch.ones(2, dtype=torch.int64, device="meta")
    CASES[f"{_operator}: counts are on meta"] = Hostile(_operator, "counts", to(_meta), refused=False)
    # The saved rounds are those of a call without counts.
    CASES[f"{_operator}: counts of another call"] = Hostile(
        _operator, "counts", to(torch.tensor([3, 1])), _operator.endswith("backward"), by_name=False
    )
for _operator in ("blend", "spread", "match"):
    for _number in (-1, N + 1, LARGEST, SMALLEST):
        CASES[f"{_operator}: member = {_number}"] = Hostile(_operator, "member", filled(0, _number))
    for _number in (2**31, 2**32, 2**62, -(2**62)):
        CASES[f"{_operator}: long member = {_number}"] = Hostile(_operator, "member", filled(0, _number, torch.int64))
    CASES[f"{_operator}: one member twice"] = Hostile(_operator, "member", lambda x: torch.zeros_like(x), refused=False)
for _operator in ("tournament_backward", "topk_backward"):
    CASES[f"{_operator}: k of another tournament"] = Hostile(_operator, "k", to(K + 1), by_name=False)
    for _number in (-1, N + 1, LARGEST, SMALLEST):
        CASES[f"{_operator}: member = {_number}"] = Hostile(_operator, "member", filled(0, _number), False)
for _name, _operator in (
    ("weight", "blend"), ("weight", "spread"), ("weight", "topk_backward"), ("d_weight", "tournament_backward"),
):  # fmt: skip
    CASES[f"{_operator}: {_name} is float16"] = Hostile(_operator, _name, lambda x: x.half())
    CASES[f"{_operator}: {_name} is NaN"] = Hostile(_operator, _name, lambda x: x * NAN, refused=False)
CASES["blend: valid of bytes"] = Hostile("blend", "valid", bytes_as_bool, refused=False)
for _operator in ("spread", "match", "topk_backward"):
    CASES[f"{_operator}: grad is float64"] = Hostile(_operator, "grad", lambda x: x.double(), _operator != "spread")
for _shape in (
    [],
    [N],
    [N, D],
    [-1, N, D],
    [2, -N, D],
    [2, N, -D],
    [3, N, D],
    [1, 2, N, D],
    [2, 2**40, 2**40],
    [0, N, D],
):
    CASES[f"spread: shape = {_shape}"] = Hostile("spread", "shape", to(_shape))
for _shape in ([2, N, 0], [2, N, D + 1], [2, 1, D]):
    CASES[f"spread: shape = {_shape}"] = Hostile("spread", "shape", to(_shape), by_name=False)
for _shape in ([1, N, D], [2, 0, D]):
    CASES[f"spread: shape = {_shape}"] = Hostile("spread", "shape", to(_shape), refused=False)

# Saved rounds are bytes that a caller may change: any of them gives an error or a gradient, whatever they hold.
SAVED: dict[str, Callable[[Tensor], Tensor]] = {
    "of another dtype": lambda x: x.long(),
    "short": lambda x: x[..., :3],
    "without numbers": lambda x: x[..., :0],
    "zeros": lambda x: torch.zeros_like(x),
    "random bytes": random_bytes,
    "in reverse": lambda x: x.flip(-1),
}
for _place, _name in enumerate(("call", "n", "slots", "active", "partial", "nodes")):
    for _number in (-1, LARGEST, SMALLEST):
        SAVED[f"header {_name} = {_number}"] = filled(_place, _number)
for _place, _name in enumerate(("size", "byes", "pairs", "decided", "node", "source")):
    for _number in (-1, 10**6, LARGEST, SMALLEST):
        SAVED[f"first round {_name} = {_number}"] = filled(HEADER + _place, _number)
for _place in range(8):
    for _number in (-1, N, N + 7, LARGEST):
        SAVED[f"reference {_place} = {_number}"] = filled(REFERENCES + _place, _number)
    SAVED[f"references {_place} and {_place + 5} swapped"] = swapped(REFERENCES + _place, REFERENCES + _place + 5)
for _place in range(0, 900, 90):
    SAVED[f"byte {_place} flipped"] = flipped(_place)
for _what, _change in SAVED.items():
    for _operator in ("tournament_backward", "topk_backward"):
        CASES[f"{_operator}: saved {_what}"] = Hostile(_operator, "saved", _change, refused=False)
NAMES = list(CASES)


def call_of(name: str, backend: str) -> Call:
    case = CASES[name]
    valid = calls_of(CASE, "reference" if why_not("cpu") else "cpu", fixed=False)
    call = next(each for each in valid if each.operator == case.operator)
    changed = {case.argument: case.change(call.argument(case.argument))}
    return call.replaced(changed)._replace(reference=backend == "reference" and call.operator in SCHEMAS)


def outcome(backend: str, number: int) -> str:
    """What a call did, with the text of its error."""
    call = call_of(NAMES[number], backend)
    if judge(call) == "a result":
        return json.dumps([backend, NAMES[number], "a result"])
    with pytest.raises(Exception) as caught:  # noqa: PT011, `judge` has seen its type
        call.run()
    return json.dumps([backend, NAMES[number], f"refused: {caught.value}"])


def print_outcomes() -> None:
    """Print all outcomes as JSON, in a process of its own."""
    torch.set_num_threads(1)
    sources = {name: partial(outcome, name) for name in ("cpu", "reference")}
    tasks = (Task(backend, range(i, i + 1)) for backend in sources for i in range(len(NAMES)))
    found: list[Any] = []
    for news in watch(sources, tasks, limit=10):
        if isinstance(news, Done):
            found += [json.loads(each) for each in news.counts if each.startswith("[")]
        else:
            found.append([news.source, NAMES[news.number], f"FAILED: {news.what}"])
    print(json.dumps(found))


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, str], str]:
    printed = run_python("from tests.test_hostile_calls import print_outcomes as run; run()", OMP_NUM_THREADS="1")
    return {(backend, name): what for backend, name, what in json.loads(printed.stdout)}


@pytest.mark.skipif(bool(why_not("cpu")), reason="there are no kernels")
@pytest.mark.parametrize("name", CASES)
def test_an_operator_refuses_what_is_wrong(name: str, outcomes: dict[tuple[str, str], str]) -> None:
    what, case = outcomes["cpu", name], CASES[name]
    if case.refused:
        names = case.argument if case.by_name else "|".join(calls.ARGUMENTS[case.operator])
        assert re.match(rf"refused: .*\b({names})\b", what, re.DOTALL), what
    else:
        assert what.startswith(("refused: ", "a result")), what


@pytest.mark.parametrize("name", CASES)
def test_the_reference_does_not_crash(name: str, outcomes: dict[tuple[str, str], str]) -> None:
    assert outcomes["reference", name].startswith(("refused: ", "a result")), outcomes["reference", name]


@pytest.mark.skipif(bool(why_not("cpu")), reason="there are no kernels")
def test_the_saved_rounds_of_the_case_are_what_the_changes_expect() -> None:
    saved = calls_of(CASE, "cpu", fixed=False)[1].argument("saved")
    _, n, slots, active, partial, nodes = saved[0, :HEADER].tolist()
    assert (n, slots, active, partial) == (N, K, N, 0)
    assert nodes > 0
    size, byes, pairs = saved[0, HEADER : HEADER + 3].tolist()
    assert (size, byes, pairs) == (N, 0, N // 2)
    assert saved[0, REFERENCES : REFERENCES + K].tolist() == [N + nodes - K + slot for slot in range(K)]
