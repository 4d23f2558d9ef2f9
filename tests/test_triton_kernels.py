"""What is special to the Triton kernels: how many launches they take, and where they can be used.

In these tests Triton's interpreter runs them: see interpreter.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import _disable_current_modes

import knockout
from evals.gpu.calls import CountLaunches
from knockout import backends, no_gradient
from knockout.backends import force
from knockout.boost import Adaptive, Fixed, Power, Relative
from knockout.ops.choice import BACKENDS
from knockout.ops.triton import backend as triton_backend
from tests.cases import run_python
from tests.contract.cases import ONE_ROW, Case, drawn_cases
from tests.contract.test_agreement import agree

pytestmark = pytest.mark.skipif(bool(triton_backend._missing), reason=triton_backend._missing)

CELLS = [(64, 8), (1024, 64), (4096, 64), (16384, 2), (16384, 64), (16384, 2048)]


class _Launches(CountLaunches):
    """Counts our kernels, which do not run, with the operators of PyTorch."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "knockout_triton":
            return super().__torch_dispatch__(func, types, args, kwargs)
        module = func._opname if func._opname.startswith("tournament") else "gather"
        with self:  # what an operator does is not dispatched here by itself
            return getattr(import_module(f"knockout.ops.triton.{module}"), func._opname)(*args)

    def launch(self, kernel: Any, _grid: tuple[int, ...], _elements: int, arguments: Mapping[str, Any]) -> None:
        self.launches.append((kernel.__name__, 0))
        if "member_out" in arguments:  # the operators that follow check the members of CPU tensors
            with _disable_current_modes():
                arguments["member_out"].zero_()

    @property
    def names(self) -> list[str]:
        return [name.partition(".")[0] for name, _ in self.launches]


@pytest.fixture(autouse=True)
def _no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows without a gradient: only CPU tensors are looked at for it, and that launches kernels."""
    monkeypatch.setattr(no_gradient, "_warned", True)


def launches(backend: str, n: int, k: int, mask: bool = False, **options: Any) -> tuple[list[str], list[str]]:
    """The kernels that ``topk`` launches, and those that it launches with its backward pass."""
    from knockout.ops.triton.launch import intercepted

    g = torch.Generator().manual_seed(0)
    values = torch.randn(2, n, 8, generator=g).requires_grad_()
    scores = torch.randn(2, n, generator=g, dtype=options.pop("dtype", torch.float32)).requires_grad_()
    masks = torch.rand(2, n, generator=g) < 0.5 if mask else None
    gradient = torch.ones(2, k, 8)
    with force(backend), _Launches() as mode, intercepted(mode.launch):
        out = knockout.topk(values, scores, k, mask=masks, **options)
        forward = mode.names
        torch.autograd.grad(out.values, (values, scores), gradient)
    return forward, mode.names


@pytest.mark.parametrize(("n", "k"), CELLS)
def test_few_launches_where_the_reference_has_hundreds(n: int, k: int) -> None:
    forward, both = launches("triton", n, k, boost=Relative(4))
    assert len(forward) <= 8, forward
    assert len(both) <= 16, both
    before = launches("reference", n, k, boost=Relative(4))
    assert len(before[0]) > 300
    assert len(before[1]) > 600


OPTIONS: list[dict[str, Any]] = [
    {},
    {"mask": True, "boost": Adaptive(2), "dtype": torch.float64},
    {"order": "position", "boost": Fixed(2)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_few_launches_for_every_k(options: dict[str, Any]) -> None:
    for n in (4097, 8191, 16383, 16384):
        for power in range(n.bit_length()):
            for k in {2**power, 2**power + 1, 3 * 2**power // 2}:
                if k <= n:
                    forward, both = launches("triton", n, k, **options)
                    # torch.sort is one operator of PyTorch, but more than one launch.
                    assert len(forward) <= 8, (n, k, forward)
                    assert len(both) <= 16, (n, k, both)


def test_a_kernel_is_launched_for_several_small_rows() -> None:
    from knockout.ops.triton.launch import intercepted

    grids: dict[str, int] = {}

    def launch(kernel: Any, grid: tuple[int, ...], _elements: int, _arguments: Mapping[str, Any]) -> None:
        grids[kernel.__name__] = grid[0]

    with force("triton"), intercepted(launch):
        knockout.select(torch.zeros(640, 64), 8)
    assert grids == {"play": 40, "expand": 40}


@given(case=drawn_cases(st.integers(1, 40)))
@settings(max_examples=30, deadline=None)
def test_drawn_cases(case: Case) -> None:
    with force("triton"):
        agree(case)


@pytest.mark.slow
@given(case=drawn_cases(st.integers(1, 300) | st.integers(300, 4096)))
@settings(max_examples=300, deadline=None)
def test_drawn_cases_with_more_candidates(case: Case) -> None:
    with force("triton"):
        agree(case)


LONG = [
    Case(4500, 3, None, batches=ONE_ROW, order="position"),  # two rounds in memory, of which one in the last launch
    Case(4500, 3, Power(20), torch.float64, batches=ONE_ROW, kept=0.9),  # keys with payloads
    Case(
        4500, 4400, Relative(2, alpha=1), torch.bfloat16, batches=ONE_ROW, order="position"
    ),  # no launch of all rounds
]


@pytest.mark.parametrize("case", LONG, ids=["position", "float64", "large k"])
def test_long_rows(case: Case) -> None:
    with force("triton"):
        agree(case)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_torch_sorts(dtype: torch.dtype) -> None:
    with force("triton"):
        agree(Case(70_000, 300, Adaptive(4), dtype, batches=ONE_ROW, kept=0.99, order="position"))


# --- where it can be used -------------------------------------------------------------------------


def test_it_takes_cpu_tensors_only_if_it_is_forced() -> None:
    assert backends.chosen_for("cpu") == "cpu"
    with force("triton"):
        assert backends.chosen_for("cpu") == "triton"


def test_without_the_interpreter_it_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    backend = BACKENDS["triton"]
    assert "it takes tensors on a GPU" in backend.refuses(torch.zeros(3), None)
    if not (torch.cuda.is_available() or torch.xpu.is_available()):
        assert "PyTorch sees no GPU here" in backend.why_not()
        assert backends.available() == ["reference", "cpu"]


def test_without_triton_the_library_works_and_says_why_not() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, knockout\n"
        "print(knockout.backends.why_not('triton'), knockout.select(torch.zeros(9), 2).indices.tolist())"
    )
    assert run_python(code, KNOCKOUT_BACKEND="auto").stdout.startswith("Triton is not installed")


def test_a_forced_backend_runs_a_script() -> None:
    code = "import torch, knockout; print(knockout.select(torch.arange(5.0), 2, boost=100.0).indices.tolist())"
    assert run_python(code, KNOCKOUT_BACKEND="triton", TRITON_INTERPRET="1").stdout.strip() == "[4, 3]"


def test_more_candidates_than_32_bits_can_count_are_refused() -> None:
    assert BACKENDS["triton"].refuses(torch.empty(1).expand(2**29 - 1), None) == ""
    assert "2**29 candidates" in BACKENDS["triton"].refuses(torch.empty(1).expand(2**29), None)


def test_kernels_are_launched_on_the_device_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    from knockout.ops.triton import launch

    on: list[torch.device] = []

    class Device:
        """What PyTorch has for a kind of devices, as far as a launch needs it."""

        @staticmethod
        @contextmanager
        def device(device: torch.device) -> Iterator[None]:
            on.append(device)
            yield
            on.pop()

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda **arguments: launched.append((list(on), grid, arguments["num_warps"]))

    from triton.backends.compiler import GPUTarget

    launched: list[Any] = []
    target = SimpleNamespace(active=SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 80, 32)))
    monkeypatch.setattr(launch, "driver", target)
    monkeypatch.setattr(launch, "interpreted", lambda: False)
    monkeypatch.setattr(torch, "get_device_module", lambda _: Device)
    launch.launch(Kernel(), (3,), 1024, mask=None, scores=torch.zeros(2, device="meta"), n=5)
    assert launched == [([torch.device("meta")], (3,), 8)]


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_a_c_on_the_device_that_is_nan_gives_nan(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the reference: a number on a device is not looked at, so it cannot be refused."""
    from knockout.ops.triton import call

    made = call.call_of

    def on_the_device(scores: torch.Tensor, _c: Any, unit: Any, *more: Any) -> Any:
        return made(scores, None, unit, *more)._replace(c_tensor=torch.tensor(float("nan")))

    monkeypatch.setattr("knockout.ops.triton.tournament.call_of", on_the_device)
    for n, k in ((16, 4), (5000, 1000)):
        with force("triton"):
            picked = knockout.select(torch.linspace(0.0, 1.0, n), k, Relative(4.0, alpha=alpha))
        assert picked.scores.isnan().all()


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_a_logit_that_is_infinite_decides_a_pair(alpha: float) -> None:
    scores = torch.tensor([3e38, 1.0, -3e38, 2e38])
    with force("triton"):
        picked = knockout.select(scores, 1, Fixed(100.0, alpha=alpha))
    assert picked.weights().tolist() == [[1.0, 0.0, 0.0, 0.0]]
