"""Where the tensors of a call lie in memory: freed, not aligned, or changed between two calls."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from knockout.backends import force
from knockout.boost import Fixed, Relative
from knockout.ops.schema import FUSED, SCHEMAS
from tests.cases import NAN, RecordOperators, same_bits
from tests.contract.cases import ONE_ROW, Case, run, run_topk

CASES = {
    "float32": Case(40, 5, 1.0, kept=0.8),
    "float64": Case(40, 5, 1.0, torch.float64, torch.float64, kept=0.8),
    "half types": Case(40, 5, 1.0, torch.float16, torch.bfloat16),
    "counts": Case(40, 5, 1.0, kept=0.8, counted=True),
}


@pytest.fixture(autouse=True)
def _cpu() -> Iterator[None]:
    with force("cpu"):
        yield


def calls_of(case: Case) -> RecordOperators:
    """All calls of operators that a case makes, in both directions."""
    record = RecordOperators()
    with record:
        run(case)
        run_topk(case)
    assert set(record.names()) == {*SCHEMAS, *FUSED}
    return record


def at_odd_address(x: Tensor) -> Tensor:
    """The same numbers, one byte behind an aligned address."""
    raw = torch.zeros(x.nbytes + 1, dtype=torch.uint8)
    raw[1:] = x.contiguous().flatten().view(torch.uint8)
    return torch.frombuffer(raw.numpy(), dtype=x.dtype, offset=1, count=x.numel()).view(x.shape)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tensors_need_not_be_aligned(case: Case) -> None:
    for operator, args, expected in calls_of(case).calls:
        moved = [at_odd_address(x) if isinstance(x, Tensor) else x for x in args]
        assert any(isinstance(x, Tensor) and x.data_ptr() % 2 for x in moved)
        out = operator(*moved)
        for one, other in zip(out if isinstance(out, tuple) else (out,), expected, strict=True):
            same_bits(one, other)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_tensor_whose_memory_was_freed_is_refused(case: Case) -> None:
    tried = []
    for operator, args, _ in calls_of(case).calls:
        names = [argument.name for argument in operator._schema.arguments]
        for place, (name, x) in enumerate(zip(names, args, strict=True)):
            if not isinstance(x, Tensor) or x.numel() == 0:
                continue
            freed = x.clone()
            freed.untyped_storage().resize_(0)
            with pytest.raises(RuntimeError, match=f"knockout: {name} must have its elements in memory"):
                operator(*args[:place], freed, *args[place + 1 :])
            tried.append(name)
    assert len(tried) >= 15
    assert ("counts" in tried) == case.counted


def test_saved_rounds_of_another_call_are_refused() -> None:
    case = Case(40, 5, 1.0)
    others = [case._replace(boost=2.0), case._replace(order="position"), case._replace(seed=1), Case(40, 0.125, 1.0)]
    (own,) = (call for call in calls_of(case).calls if call[0]._opname == "tournament_backward")
    operator, args, _ = own
    saved = [argument.name for argument in operator._schema.arguments].index("saved")
    for other in others:
        (theirs,) = (call for call in calls_of(other).calls if call[0]._opname == "tournament_backward")
        assert theirs[1][saved].shape[:-1] == args[saved].shape[:-1]
        with pytest.raises(RuntimeError, match=r"knockout: (saved|member) must be what tournament"):
            operator(*args[:saved], theirs[1][saved], *args[saved + 1 :])


class Saved:
    """The saved rounds of a call with one row, and where their parts are: see saved_rounds.h."""

    def __init__(self, case: Case) -> None:
        ((self.operator, self.args, (self.expected,)),) = (
            call for call in calls_of(case).calls if call[0]._opname == "tournament_backward"
        )
        self.place = [argument.name for argument in self.operator._schema.arguments].index("saved")
        self.saved: Tensor = self.args[self.place]
        numbers = self.saved.tolist()
        _, self.n, self.slots, self.active, self.partial, self.nodes = numbers[:6]
        self.rounds = (self.active - 1).bit_length() - (self.slots - 1).bit_length() + 1
        while self.rounds and self.slots << (self.rounds - 1) >= self.active:
            self.rounds -= 1
        self.first_node = [numbers[6 + 6 * r + 4] for r in range(self.rounds)]
        self.root = 6 + 31 * 6 + 31
        self.order = self.root + self.slots
        self.pairs = len(numbers) - 2 * self.nodes
        self.ordered = self.pairs - self.order

    def run(self, saved: Tensor) -> Tensor:
        out: Tensor = self.operator(*self.args[: self.place], saved, *self.args[self.place + 1 :])
        return out

    def changes(self) -> dict[str, tuple[int, int]]:
        """What is wrong, the place of a number, and the number to put there."""
        found = {}

        def change(what: str, place: int, *numbers: int) -> None:
            for number in numbers:
                found[f"{what} is {number}, not {int(self.saved[place])}"] = place, number

        def by(place: int, *steps: int) -> list[int]:
            return [int(self.saved[place]) + step for step in steps]

        for place, name in enumerate(("call", "n", "slots", "active", "partial", "nodes")):
            change(name, place, *by(place, -1, 1), -2, 2**31 - 1, -(2**31))
        for r in range(self.rounds):
            for i, name in enumerate(("size", "byes", "pairs", "decided", "node")):
                # How many pairs of a partial round are blended is not known; how many are decided is not used.
                known = r >= self.partial or name not in ("decided", "node")
                wrong = [*by(6 + 6 * r + i, -1, 1)] if known else []
                change(f"{name} of round {r}", 6 + 6 * r + i, *wrong, -1, *([2**30] if known or name == "node" else []))
            change(f"source of round {r}", 6 + 6 * r + 5, -1, 4)
        end = self.n + self.nodes
        for slot in (0, self.slots - 1):
            change(f"root {slot}", self.root + slot, -1, end, 2**31 - 1, int(self.saved[self.root + 1 - slot % 2]))
        for i in (0, self.ordered - 1) if self.ordered else ():
            change(f"order {i}", self.order + i, -1, end, -(2**31))
        for name, own, other in (("better", 0, 1), ("worse", 1, 0)):
            for node in (0, self.nodes // 2, self.nodes - 1):
                own_round = max(first for first in self.first_node if first <= node)
                place = self.pairs + 2 * node
                change(
                    f"{name} of node {node}", place + own, -1, self.n + own_round, end, int(self.saved[place + other])
                )
        return found


def _error_of(saved: Saved, changed: Tensor) -> str:
    try:
        saved.run(changed)
    except RuntimeError as error:
        return str(error)
    return "no error"


ROWS = {
    "full rounds": Case(40, 5, 1.0, batches=ONE_ROW),
    "decided pairs": Case(400, 5, 4.0, batches=ONE_ROW),
    "partial rounds": Case(4000, 5, Fixed(40, alpha=1.5), batches=ONE_ROW, scores="uniform"),
    "inactive candidates": Case(40, 2, 1.0, batches=ONE_ROW, kept=0.5),
}


@pytest.mark.parametrize("case", ROWS.values(), ids=ROWS)
def test_saved_rounds_that_were_changed_are_refused(case: Case) -> None:
    saved = Saved(case)
    assert (saved.partial > 0) == (case.n == 4000)
    assert saved.nodes > saved.slots
    assert (saved.ordered > 0) == (case.boost == 4.0)
    same_bits(saved.run(saved.saved), saved.expected)
    longer = torch.cat([saved.saved, saved.saved])
    same_bits(saved.run(longer), saved.expected)
    for length in (0, 5, 6, 192, 223, len(saved.saved) - 1):
        with pytest.raises(RuntimeError, match=r"knockout: saved"):
            saved.run(saved.saved[:length])
    for what, (place, number) in saved.changes().items():
        changed = saved.saved.clone()
        changed[place] = number
        assert re.match("knockout: (saved|member)", _error_of(saved, changed)), what


def test_saved_rounds_of_an_invalid_row() -> None:
    cases = (Case(40, 5, 1.0, batches=ONE_ROW, special=NAN, seed=seed) for seed in range(99))
    saved = Saved(next(case for case in cases if case.inputs().scores.isnan().any()))
    assert saved.active == -1
    assert len(saved.saved) == 6
    assert saved.run(saved.saved).isnan().all()
    with pytest.raises(RuntimeError, match=r"knockout: saved"):
        saved.run(saved.saved[:5])


def test_members_of_another_call_are_refused() -> None:
    saved = Saved(ROWS["full rounds"])
    place = [argument.name for argument in saved.operator._schema.arguments].index("member")
    member = saved.args[place]
    for number in (-1, saved.n + 1, int(member[1, 0]), saved.n):
        changed = member.clone()
        changed[0, 0] = number
        with pytest.raises(RuntimeError, match="knockout: member"):
            saved.operator(*saved.args[:place], changed, *saved.args[place + 1 :])


@pytest.mark.parametrize(
    "case",
    [CASES["float32"], Case(40, 5, Relative(torch.tensor(1.0)), kept=0.8), CASES["counts"]],
    ids=["c", "c_tensor", "counts"],
)
def test_one_tensor_on_the_meta_device_is_refused(case: Case) -> None:
    """It must not give memory to which nothing was written."""
    for operator, args, _ in calls_of(case).calls:
        tensors = [place for place, x in enumerate(args) if isinstance(x, Tensor)]
        for place in tensors:
            moved = [x.to("meta") if i == place else x for i, x in enumerate(args)]
            with pytest.raises(ValueError, match=r"knockout: \w+ must be on (cpu|meta), as other arguments"):
                operator(*moved)
        on_meta = operator(*(x.to("meta") if isinstance(x, Tensor) else x for x in args))
        assert all(x.is_meta for x in (on_meta if isinstance(on_meta, tuple) else (on_meta,)))
