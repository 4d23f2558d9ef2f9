"""What the tests share: boosts, drawn inputs, comparisons, calls recorded, and Python in a new process."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from knockout.boost import Adaptive, Base, Boost, Fixed, Power, Relative

INF, NAN = float("inf"), float("nan")
BOOSTS: list[Boost] = [
    Relative(0.5),
    Relative(4),
    Relative(16),
    Relative(2, unit=0.01, alpha=1),
    Relative(1, unit=100, alpha=2),
    Adaptive(1.5, unit=10),
    Adaptive(3, unit=0.1),
    Adaptive(6, unit=2, alpha=2),
    Adaptive(2, unit=1e3, alpha=1),
    Fixed(3),
    Fixed(2, alpha=1.5),
    Fixed(1, alpha=2),
    Base(20),
    Base(3, alpha=1.5),
    Power(20),
    Power(3, alpha=2),
]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

boosts = st.sampled_from(BOOSTS)
# Ties, near-constant, negative, large: what a scorer may produce.
score = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-4, 4, allow_subnormal=False),
    st.floats(0, 1e-3, allow_subnormal=False),
)

# k as a fraction.
fractions = st.floats(0.001, 0.999) | st.sampled_from([1e-12, 0.1, 0.25, 0.3, 0.5, 0.75, 1 - 2**-40])


def slots(fraction: float, count: int) -> int:
    """ceil(fraction * count), of the fraction cut off after 30 bits; at least one if any candidate is active."""
    return max(math.ceil(Fraction(math.floor(Fraction(fraction) * 2**30), 2**30) * count), min(count, 1))


def separated(*shape: int, seed: int = 0) -> Tensor:
    """float64 scores at least 0.05 apart, in random places: nothing for rounding to decide."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(*shape, generator=generator, dtype=torch.float64)
    return noise.argsort(dim=-1) * 0.15 + torch.rand(*shape, generator=generator, dtype=torch.float64) * 0.1 - 1.0


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def random_mask(*shape: int, kept: float, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < kept


class Watch(TorchDispatchMode):
    """Notes every tensor that is made."""

    def __init__(self, seen: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.seen.extend(x for x in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(x, Tensor))
        return out


# Where the operators of the backends that have any are, in torch.ops.
NAMESPACES = {"cpu": "knockout", "triton": "knockout_triton"}


class RecordOperators(TorchDispatchMode):
    """Notes every call of an operator of the library: which, its arguments, its results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...], tuple[Tensor, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace in NAMESPACES.values():
            # PyTorch leaves out the last arguments that have their default values: here are all of them.
            left_out = tuple(argument.default_value for argument in func._schema.arguments[len(args) :])
            self.calls.append((func, (*args, *left_out), out if isinstance(out, tuple) else (out,)))
        return out

    def names(self) -> list[str]:
        """The operators in the order of their calls, without ``torch.ops`` and the namespace."""
        return [func._opname for func, *_ in self.calls]


def same_bits(one: Tensor, other: Tensor) -> None:
    """Equal to the last bit; NaN equals NaN."""
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """PyTorch with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


ROOT = Path(__file__).parents[1]


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new process; what it printed is in ``stdout`` and ``stderr``. It must succeed."""
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return process
