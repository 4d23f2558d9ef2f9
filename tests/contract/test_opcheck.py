"""The operators as PyTorch sees them: their schemas, output shapes and dispatch keys pass torch.library.opcheck.

The reference runs as operators only where no kernels are: tests/test_backends.py checks it in a process without them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from knockout.backends import chosen_for
from knockout.boost import Fixed, Power
from knockout.ops.choice import BACKENDS
from knockout.ops.schema import FUSED, SCHEMAS
from tests.cases import INF, NAMESPACES
from tests.contract.cases import BATCHES, OTHERS, Case, run, run_topk

FEW = [
    Case(9, 2),
    Case(9, 2, kept=0.5, hard=True, order="position"),
    Case(9, 2, dtype=torch.float16, values_dtype=torch.bfloat16, memory="transposed"),
    Case(9, 2, dtype=torch.float64, values_dtype=torch.float16, batches=BATCHES[2], kept=0.5),
    Case(9, 9, Power(20), values_dtype=torch.float64, batches=BATCHES[4], special=-INF),
    Case(9, 2, Fixed(3), batches=BATCHES[-1]),
    Case(9, 0.3, kept=0.5),
    Case(9, 4, counted=True, batches=BATCHES[2]),
    Case(9, 4, counted=True),
]
Call = tuple[str, tuple[Any, ...]]


def calls_of(case: Case) -> list[Call]:
    """The calls of operators that a case makes: which, and with which arguments."""
    calls: list[Call] = []
    backend = BACKENDS[chosen_for("cpu")]

    def recording(name: str, operator: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls.append((name, tuple(x.detach() if isinstance(x, Tensor) else x for x in args)))
            return operator(*args)

        return call

    names = [name for name in (*SCHEMAS, *FUSED) if getattr(backend, name) is not None]
    try:
        for name in names:
            setattr(backend, name, recording(name, getattr(backend, name)))
        run(case)
        run_topk(case)
        scores, values, mask, _ = case.inputs()
        case.select(scores, mask)  # without gradient: nothing is saved
        case.topk(values, scores, mask)
    finally:
        for name in names:
            delattr(backend, name)
    return calls


def check_operator(name: str, calls: list[Call]) -> None:
    """Check all calls of one operator, at least one."""
    backend = chosen_for("cpu")
    operator = getattr(getattr(torch.ops, NAMESPACES[backend]), name).default
    assert getattr(BACKENDS[backend], name) is operator
    own = [args for called, args in calls if called == name]
    assert own
    for args in own:
        torch.library.opcheck(operator, args)
        if name == "tournament":
            *rest, _, counts = args
            torch.library.opcheck(operator, (*rest, True, counts))  # with shapes that do not depend on data


@pytest.mark.parametrize("backend", OTHERS, indirect=True)
@pytest.mark.parametrize("case", FEW, ids=range(len(FEW)))
def test_opcheck(case: Case) -> None:
    calls = calls_of(case)
    for name in SCHEMAS:
        check_operator(name, calls)


@pytest.mark.parametrize("backend", ["cpu"], indirect=True)
@pytest.mark.parametrize("case", [FEW[0], FEW[2], FEW[5], FEW[6], FEW[8]], ids=range(5))
def test_opcheck_of_topk_in_one(case: Case) -> None:
    calls = calls_of(case)
    for name in FUSED:
        check_operator(name, calls)
