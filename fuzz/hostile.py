"""Calls of the operators with wrong arguments."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from torch import Tensor

from fuzz.calls import ARGUMENTS, Call, calls_of, judge, read_argument, write_argument
from fuzz.kind import Draw, Kind
from fuzz.mutations import BY_NAME, changes_of
from fuzz.public import drawn_case
from knockout.backends import why_not
from knockout.ops.schema import SCHEMAS

CHANGES = 50  # of the calls of one case: to draw and play a case takes longer than most wrong calls


class Hostile(Kind[Call]):
    """A valid call of an operator in which some arguments were changed."""

    name = "hostile"
    block = CHANGES

    def draw(self, seed: int, number: int) -> Call:
        draw = self.drawing(seed, number)
        calls = _valid_calls(seed, number // CHANGES)
        place = draw.choices(range(len(calls)), weights=[3, 5, 2, 2, 2, 3, 5][: len(calls)])[0]
        call = calls[place]
        call = call._replace(reference=draw.chance(0.1) and call.operator in SCHEMAS)
        # Now and then the arguments are those of another call.
        other = _valid_calls(seed, number // CHANGES + 1)[place] if draw.chance(0.1) else None
        for _ in range(draw.choice([1, 1, 1, 2, 2, 3, 5])):
            call = _changed(draw, call, other)
        return call

    def run(self, case: Call) -> str:
        outcome = judge(case)
        return f"{case.operator}{' of the reference' if case.reference else ''}: {outcome}"

    def write(self, case: Call) -> Any:
        return {
            "operator": case.operator,
            "reference": case.reference,
            "arguments": [write_argument(each) for each in case.arguments],
        }

    def read(self, written: Any) -> Call:
        arguments = tuple(read_argument(each) for each in written["arguments"])
        return Call(written["operator"], arguments, written["reference"])

    def describe(self, case: Call) -> str:
        return f"{case.operator}{' of the reference' if case.reference else ''}, {'; '.join(case.changes)}"


@lru_cache(2)
def _valid_calls(seed: int, number: int) -> list[Call]:
    draw = Draw(f"hostile:{seed}:case:{number}")
    case = drawn_case(draw, draw.choice([2, 9, 9, 40, 40, 150]))
    backend = "reference" if why_not("cpu") else "cpu"
    return calls_of(case, backend, fixed=draw.chance(0.2))


def _changed(draw: Draw, call: Call, other: Call | None) -> Call:
    """The call with one argument changed."""
    names = ARGUMENTS[call.operator]
    # Half of all changes are of the arguments that lead to other memory.
    leading = [name for name in names if name in BY_NAME or name in ("shape", "k")]
    name = draw.pick(names, leading)
    place = names.index(name)
    if isinstance(call.arguments[place], Tensor) and call.arguments[place].numel() > 2**24:
        return call  # to change more entries than memory could hold would take for ever
    if other is not None:
        what, value = "of another call", other.arguments[place]
    else:
        changes = changes_of(name, call.arguments[place])
        if call.reference:
            # These never reach a Python function: PyTorch checks types by the schema.
            changes = {what: each for what, each in changes.items() if what not in ("None", "wrong type")}
        what = draw.choice(list(changes))
        try:
            value = changes[what](draw, call.arguments[place], call)
        except Exception:  # it does not fit what earlier changes have made of the argument
            return call
    arguments = (*call.arguments[:place], value, *call.arguments[place + 1 :])
    return call._replace(arguments=arguments, changes=(*call.changes, f"{name}: {what}"))
