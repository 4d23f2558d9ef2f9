"""Which backend runs a call, and a process without the C++ kernels."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

import knockout
from knockout import backends
from knockout.backends import NAMES, chosen_for, force, why_not
from knockout.boost import Relative
from knockout.ops import choice
from knockout.ops.choice import BACKENDS
from knockout.ops.schema import SCHEMAS
from tests.cases import RecordOperators, randn, run_python, same_bits, separated
from tests.contract.cases import CASES, run
from tests.contract.test_opcheck import FEW, calls_of, check_operator

# Triton's kernels run in its interpreter, if it is installed.
ALL = ["reference", "cpu", *(["triton"] if find_spec("triton") else [])]


@pytest.fixture(autouse=True)
def _automatic() -> Any:
    with force("auto"):
        yield


def test_the_kernels_are_there() -> None:
    assert NAMES == ("reference", "cpu", "triton")
    assert {name: why_not(name) for name in ("reference", "cpu")} == {"reference": "", "cpu": ""}
    assert backends.available() == ALL


# --- forced ---------------------------------------------------------------------------------------


def test_force_names_the_choices_and_ends_with_its_block() -> None:
    with (
        pytest.raises(ValueError, match="backend must be one of 'auto', 'reference', 'cpu', 'triton'; got 'fast'"),
        force("fast"),
    ):
        pass
    with force("reference"):
        assert backends.available() == ["reference"]
        assert "knockout.backends.force" in why_not("cpu")
        with force("auto"), force("cpu"):
            assert backends.available() == ["cpu"]
        assert backends.available() == ["reference"]
        with pytest.raises(KeyError), force("cpu"):
            raise KeyError
        assert backends.available() == ["reference"]
    assert backends.available() == ALL


def test_why_not_names_the_choices() -> None:
    with pytest.raises(ValueError, match="name must be one of 'reference', 'cpu', 'triton'; got 'fast'"):
        why_not("fast")
    assert why_not("native") == ""


def test_the_best_backend_is_chosen_for_each_device() -> None:
    assert chosen_for("cpu") == "cpu"
    assert chosen_for("meta") == "reference"
    with force("reference"):
        assert chosen_for("cpu") == "reference"


def test_blocks_of_two_threads_may_end_in_any_order() -> None:
    entered, left = threading.Event(), threading.Event()
    found: list[str] = []

    def first() -> None:
        with force("reference"):
            entered.set()
            assert left.wait(60)
        found.append(chosen_for("cpu"))

    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(60)
    with force("cpu"):
        found.append(chosen_for("cpu"))
    # The block that began last has ended, that of the other thread has not.
    found.append(chosen_for("cpu"))
    left.set()
    thread.join()
    assert found == ["cpu", "reference", "cpu"]
    assert backends.available() == ALL


def test_a_block_that_began_first_may_end_first() -> None:
    first, second = force("reference"), force("cpu")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert backends.available() == ["cpu"]
    second.__exit__(None, None, None)
    assert backends.available() == ALL


def test_a_block_may_end_in_the_middle_of_the_end_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = force("reference"), force("cpu")

    class Interrupted(list[Any]):
        """Ends the first block after the last block was looked up, as another thread may do."""

        armed = False

        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            if self.armed:
                self.armed = False
                first.__exit__(None, None, None)
            return found

    blocks = Interrupted(choice._blocks)
    monkeypatch.setattr(choice, "_blocks", blocks)
    first.__enter__()
    second.__enter__()
    blocks.armed = True
    second.__exit__(None, None, None)
    assert not blocks.armed
    assert backends.available() == ALL


def test_an_interrupt_ends_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    update, calls = choice._update, []

    def interrupted() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        update()

    monkeypatch.setattr(choice, "_update", interrupted)
    with pytest.raises(KeyboardInterrupt), force("reference"):
        pass
    assert chosen_for("cpu") == "cpu"


# --- what a backend refuses -----------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class OwnBoost(Relative):
    """A boost that only the reference knows, with the results of ``Relative``."""


def test_a_boost_of_ones_own_runs_in_the_reference_only() -> None:
    scores = separated(3, 20)
    with RecordOperators() as record:
        out = knockout.select(scores, 4, OwnBoost(1.0))
    assert record.names() == []
    same_bits(out.scores, knockout.select(scores, 4, Relative(1.0)).scores)
    with force("cpu"), pytest.raises(RuntimeError, match=r"cpu backend is forced.*boosts of knockout\.boost.*OwnBoost"):
        knockout.select(scores, 4, OwnBoost(1.0))


def test_nested_torch_func_runs_in_the_reference_only() -> None:
    scores = separated(20)

    def loss(scores: Tensor) -> Tensor:
        return knockout.select(scores, 4, Relative(0.7)).scores.exp().sum()

    def norm(scores: Tensor) -> Tensor:
        gradient: Tensor = torch.func.grad(loss)(scores)
        return gradient.square().sum()

    second = torch.func.grad(norm)(scores)
    required = scores.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(required), required, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(first.square().sum(), required)[0])
    with force("cpu"), pytest.raises(RuntimeError, match=r"cpu backend is forced.*differentiates more than once"):
        torch.func.grad(norm)(scores)
    with force("cpu"):
        torch.func.grad(loss)(scores)


def test_tensors_on_another_device_run_in_the_reference_only() -> None:
    scores = torch.empty(3, 9, device="meta")
    assert knockout.select(scores, 2).indices.is_meta
    with force("cpu"), pytest.raises(RuntimeError, match=r"cpu backend is forced.*CPU tensors.*on meta"):
        knockout.select(scores, 2)


def test_more_candidates_than_32_bits_can_count_run_in_the_reference_only() -> None:
    assert BACKENDS["cpu"].refuses(torch.empty(1).expand(2**30 - 1), None) == ""
    assert "2**30 candidates" in BACKENDS["cpu"].refuses(torch.empty(1).expand(2**30), None)


# --- one backend from the forward pass to the last gradient ---------------------------------------


def forward() -> tuple[tuple[Tensor, Tensor], Tensor]:
    arguments = randn(3, 20, 2).requires_grad_(), separated(3, 20).requires_grad_()
    out = knockout.topk(*arguments, 4, Relative(1))
    return arguments, out.values.square().sum() + out.scores.square().sum()


def test_gradients_of_the_reference_are_computed_by_the_reference() -> None:
    with RecordOperators() as record:
        with force("reference"):
            arguments, loss = forward()
            expected = torch.autograd.grad(loss, arguments, retain_graph=True)
        found = torch.autograd.grad(loss, arguments)
    assert record.names() == []
    for one, other in zip(found, expected, strict=True):
        same_bits(one, other)


def test_gradients_of_the_kernels_are_computed_by_the_kernels() -> None:
    with RecordOperators() as record, force("cpu"):
        arguments, loss = forward()
        expected = torch.autograd.grad(loss, arguments, retain_graph=True)
    assert record.names() == ["topk", "topk_backward"]
    with RecordOperators() as record, force("reference"):
        found = torch.autograd.grad(loss, arguments)
    assert record.names() == ["topk_backward"]
    for one, other in zip(found, expected, strict=True):
        same_bits(one, other)


def test_a_selection_keeps_its_backend() -> None:
    values, scores = randn(20, 2), separated(20)
    with force("reference"):
        selection = knockout.select(scores, 4)
    with RecordOperators() as record:
        selection.apply(values)
    assert record.names() == []
    selection = knockout.select(scores, 4)
    with RecordOperators() as record, force("reference"):
        selection.apply(values)
    assert record.names() == ["blend"]


# --- the environment variable and the old names ---------------------------------------------------

SHOW = "import torch, knockout; print(knockout.backends.available(), knockout.backends.chosen_for('cpu'))"


@pytest.mark.parametrize(("value", "name"), [("reference", "reference"), ("native", "cpu")])
def test_the_environment_variable_forces_a_backend(value: str, name: str) -> None:
    assert run_python(SHOW, KNOCKOUT_BACKEND=value).stdout.strip() == f"['{name}'] {name}"


def test_the_environment_variable_is_checked() -> None:
    with pytest.raises(
        AssertionError, match="KNOCKOUT_BACKEND must be one of 'auto', 'reference', 'cpu', 'triton'; got 'fast'"
    ):
        run_python(SHOW, KNOCKOUT_BACKEND="fast")


def test_the_old_name_of_the_module_works_and_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match=r"use knockout\.backends\.why_not\('cpu'\)"):
        assert knockout.native.available()
    with pytest.warns(DeprecationWarning, match=r"use knockout\.backends\.why_not\('cpu'\)"):
        assert knockout.native.why_not() == ""
    for old, name in (("native", "cpu"), ("reference", "reference")):
        with pytest.warns(DeprecationWarning, match=r"use knockout\.backends\.force"):
            block = knockout.native.force(old)
        with block:
            assert backends.available() == [name]
    assert backends.available() == ALL


# --- a process without the kernels ----------------------------------------------------------------

HIDE = "import sys; sys.modules['knockout.ops.cpu._C'] = None; from tests.test_backends import {function} as run; run()"


def small() -> dict[str, Any]:
    """A small selection and its gradient, as numbers, and what warnings it gave."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            scores = torch.tensor([0.5, 3.0, 2.5, 0.25], requires_grad=True)
            out = knockout.topk(torch.eye(4), scores, 2, boost=1.0)
            (gradient,) = torch.autograd.grad(out.values.square().sum(), scores)
    numbers = [out.indices.tolist(), out.scores.tolist(), out.values.tolist(), gradient.tolist()]
    return {"numbers": numbers, "warnings": [str(each.message) for each in caught]}


def small_without_kernels() -> None:
    """Print it."""
    print(json.dumps(small() | {"available": backends.available()}))


def everything_without_kernels() -> None:
    """Print what a process without the kernels does, and how its operators behave."""
    found = small() | {"available": backends.available(), "why not": why_not("cpu"), "differ": {}, "opcheck": {}}
    # From here on the library calls torch.ops.knockout.*, which have no kernel for CPU tensors.
    type(BACKENDS["cpu"]).refuses = lambda *_: ""  # type: ignore[method-assign]
    for name, case in CASES.items():
        with force("reference"):
            expected = run(case)
        with force("cpu"):
            operators = run(case)
        found["differ"][name] = [
            field
            for field, one, other in zip(expected._fields, operators, expected, strict=True)
            if not torch.equal(one.nan_to_num(nan=9e9), other.nan_to_num(nan=9e9))
        ]
    with force("cpu"):
        calls = [call for i in (1, 3, 6) for call in calls_of(FEW[i])]
        for name in SCHEMAS:
            found["opcheck"][name] = error_of(partial(check_operator, name, calls))
        with torch.inference_mode():
            backward = next(args for name, args in calls if name == "tournament_backward")
            found["inference mode"] = error_of(lambda: torch.ops.knockout.tournament_backward(*backward))
    print(json.dumps(found))


def error_of(call: Callable[[], Any]) -> str:
    """The error that a call raises, as text; empty if it raises none."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.fixture(scope="module")
def without_kernels() -> Any:
    return json.loads(run_python(HIDE.format(function="everything_without_kernels"), KNOCKOUT_BACKEND="auto").stdout)


def test_without_the_kernels_the_reference_runs(without_kernels: Any) -> None:
    assert without_kernels["available"] == [name for name in ALL if name != "cpu"]
    assert "cannot be loaded (import of knockout.ops.cpu._C halted" in without_kernels["why not"]
    with force("reference"):
        assert without_kernels["numbers"] == small()["numbers"]


def test_without_the_kernels_there_is_one_warning(without_kernels: Any) -> None:
    (warning,) = without_kernels["warnings"]
    for words in ("plain PyTorch", without_kernels["why not"], "pip install", "KNOCKOUT_BACKEND=reference"):
        assert words in warning


def test_without_the_kernels_there_is_no_warning_if_the_reference_is_forced() -> None:
    process = run_python(HIDE.format(function="small_without_kernels"), KNOCKOUT_BACKEND="reference")
    found = json.loads(process.stdout)
    assert found["available"] == ["reference"]
    assert found["warnings"] == []
    assert process.stderr == ""
    with force("reference"):
        assert found["numbers"] == small()["numbers"]


def test_without_the_kernels_the_operators_compute_the_result_of_the_reference(without_kernels: Any) -> None:
    assert without_kernels["differ"] == {name: [] for name in CASES}


BELOW_AUTOGRAD = pytest.mark.xfail(
    reason="the default implementation of tournament_backward differentiates by torch.autograd, which PyTorch disables "
    "for operators under a TorchDispatchMode and in inference mode"
)

OPERATORS = [pytest.param(name, marks=BELOW_AUTOGRAD if name == "tournament_backward" else ()) for name in SCHEMAS]


@pytest.mark.parametrize("name", OPERATORS)
def test_without_the_kernels_the_operators_pass_opcheck(without_kernels: Any, name: str) -> None:
    assert without_kernels["opcheck"][name] == ""


@BELOW_AUTOGRAD
def test_without_the_kernels_the_backward_operator_runs_in_inference_mode(without_kernels: Any) -> None:
    assert without_kernels["inference mode"] == ""


def test_with_the_kernels_there_is_no_warning() -> None:
    assert small()["warnings"] == []
