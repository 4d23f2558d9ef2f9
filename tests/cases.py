"""What the tests share: the boosts, drawn inputs, and comparisons that say what differs."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from knockout.boost import Base, Boost, Fixed, Power, Relative

BOOSTS: list[Boost] = [
    Relative(0.5),
    Relative(4),
    Relative(16),
    Relative(2, unit=0.01, alpha=1),
    Relative(1, unit=100, alpha=2),
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


def separated(*shape: int, seed: int = 0) -> Tensor:
    """float64 scores at least 0.05 apart, in random places: nothing for rounding to decide."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(*shape, generator=generator, dtype=torch.float64)
    return noise.argsort(dim=-1) * 0.15 + torch.rand(*shape, generator=generator, dtype=torch.float64) * 0.1 - 1.0


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class Watch(TorchDispatchMode):
    """Notes every tensor that is made."""

    def __init__(self, seen: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.seen.extend(x for x in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(x, Tensor))
        return out


def same_bits(one: Tensor, other: Tensor) -> None:
    """Equal to the last bit; NaN equals NaN."""
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
