"""How kernels are launched: with how many warps, and without fused multiply-add, which would change the last bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from triton.runtime.driver import driver

from knockout.ops.triton.backend import interpreted

OPTIONS = {"enable_fp_fusion": False}
_ELEMENTS = 4  # of a block, for each thread; with more, registers would not do for what belongs to them
_THREADS = 256  # of a program, at most: then each may have 255 registers

Launcher = Callable[[Any, tuple[int, ...], int, Mapping[str, Any]], None]


def warps_of(elements: int, warp_size: int) -> int:
    """The number of warps of a program that works on so many elements."""
    return max(1, min(elements // _ELEMENTS, _THREADS) // warp_size)


def launch(kernel: Any, grid: tuple[int, ...], elements: int, **arguments: Any) -> None:
    """Launch a kernel whose programs work on blocks of so many elements."""
    _launcher(kernel, grid, elements, arguments)


def _run(kernel: Any, grid: tuple[int, ...], elements: int, arguments: Mapping[str, Any]) -> None:
    if interpreted():
        import numpy  # which the interpreter computes with; it warns of NaN and infinity

        with numpy.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            kernel[grid](**arguments)
    else:
        warp_size = driver.active.get_current_target().warp_size
        kernel[grid](**arguments, num_warps=warps_of(elements, warp_size), **OPTIONS)


_launcher: Launcher = _run


@contextmanager
def intercepted(launcher: Launcher) -> Iterator[None]:
    """Call this with all launches of the process instead, until the block ends: to count or compile kernels."""
    global _launcher
    _launcher = launcher
    try:
        yield
    finally:
        _launcher = _run
