"""How kernels are launched: with how many warps, and without fused multiply-add, which would change the last bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from triton.runtime.driver import driver

from knockout.ops.triton.backend import interpreted

_ELEMENTS = 4  # of a block, for each thread; with more, registers would not do for what belongs to them
_THREADS = 256  # of a program, at most: then each may have 255 registers

Launcher = Callable[[Any, tuple[int, ...], int, Mapping[str, Any]], None]


def warps_of(elements: int, warp_size: int) -> int:
    """The number of warps of a program that works on so many elements."""
    return max(1, min(elements // _ELEMENTS, _THREADS) // warp_size)


def options_for(elements: int, backend: str, warp_size: int) -> dict[str, Any]:
    """The options to compile a kernel with, whose programs work on so many elements, for a GPU of "cuda" or "hip"."""
    options: dict[str, Any] = {"enable_fp_fusion": False, "num_warps": warps_of(elements, warp_size)}
    if backend == "cuda":
        options["maxnreg"] = 255  # all there are: NVIDIA's compiler would rather spill some than use more than 128
    return options


def launch(kernel: Any, grid: tuple[int, ...], elements: int, **arguments: Any) -> None:
    """Launch a kernel whose programs work on ``elements`` entries each."""
    _launcher(kernel, grid, elements, arguments)


def _run(kernel: Any, grid: tuple[int, ...], elements: int, arguments: Mapping[str, Any]) -> None:
    if interpreted():
        import numpy  # which the interpreter computes with; it warns of NaN and infinity

        with numpy.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            kernel[grid](**arguments)
    else:
        device = next(each.device for each in arguments.values() if isinstance(each, Tensor))
        with torch.get_device_module(device).device(device):  # or it would be launched on the current one
            target = driver.active.get_current_target()
            kernel[grid](**arguments, **options_for(elements, target.backend, target.warp_size))


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
