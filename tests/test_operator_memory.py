"""Where the tensors of a call lie in memory: freed, not aligned, or changed between two calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from knockout.backends import force
from tests.cases import RecordOperators, same_bits
from tests.contract.cases import Case, run

CASES = {
    "float32": Case(40, 5, 1.0, kept=0.8),
    "float64": Case(40, 5, 1.0, torch.float64, torch.float64, kept=0.8),
    "half types": Case(40, 5, 1.0, torch.float16, torch.bfloat16),
}


@pytest.fixture(autouse=True)
def _cpu() -> Iterator[None]:
    with force("cpu"):
        yield


def calls_of(case: Case) -> RecordOperators:
    """All calls of operators that a case makes, in both directions."""
    with RecordOperators() as record:
        run(case)
    assert set(record.names()) == {"tournament", "tournament_backward", "blend", "spread", "match"}
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
    tried = 0
    for operator, args, _ in calls_of(case).calls:
        names = [argument.name for argument in operator._schema.arguments]
        for place, (name, x) in enumerate(zip(names, args, strict=True)):
            if not isinstance(x, Tensor) or x.numel() == 0:
                continue
            freed = x.clone()
            freed.untyped_storage().resize_(0)
            with pytest.raises(RuntimeError, match=f"knockout: {name} must have its elements in memory"):
                operator(*args[:place], freed, *args[place + 1 :])
            tried += 1
    assert tried >= 15


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
