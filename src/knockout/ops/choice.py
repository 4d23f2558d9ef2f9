"""Which backend runs a call: decided here, once a call, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from knockout.boost import Boost
from knockout.checks import check_choice
from knockout.ops.backend import Backend
from knockout.ops.cpu.backend import CPU
from knockout.ops.reference.backend import Reference
from knockout.ops.triton.backend import Triton
from knockout.torch_private import is_exporting_to_onnx
from knockout.warning import warn_user

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Reference(), CPU(), Triton())}
NAMES = tuple(BACKENDS)
_BEST_FIRST = tuple(reversed(BACKENDS.items()))
_CHOICES = ("auto", *NAMES)
_OLD_NAMES = {"native": "cpu"}

_ENVIRONMENT = os.environ.get("KNOCKOUT_BACKEND") or "auto"
_ENVIRONMENT = _OLD_NAMES.get(_ENVIRONMENT, _ENVIRONMENT)


class _Forced:
    """A block of ``force``. Compared by identity: blocks of several threads may end in any order."""

    def __init__(self, name: str) -> None:
        self.name = name


_blocks = [_Forced(_ENVIRONMENT)]  # those that have not ended; the first one never ends
_forced = _ENVIRONMENT  # the name of the last block: torch.compile guards a string better than a list
_warned = False


def choose(scores: Tensor, boost: Boost | None = None, warn: bool = True) -> str:
    """The name of the backend for a call: the best one that does not refuse it, or the one that is forced.

    ``boost`` is None where there is no tournament. A forced backend that refuses the call raises a RuntimeError. If the
    kernels are missing for CPU tensors, the first call warns, unless ``warn`` is False.
    """
    if boost is not None and is_exporting_to_onnx():
        raise RuntimeError(
            "a soft choice cannot be exported to ONNX, which has no operators for it: make the layers with "
            "hard_eval=True, or export within `with knockout.nn.evaluate_hard(model):`, after model.eval()"
        )
    forced = _forced  # read once: another thread may change it
    if forced != "auto":
        check_choice(forced, "the environment variable KNOCKOUT_BACKEND", _CHOICES)
        if reason := BACKENDS[forced].refuses(scores, boost):
            raise RuntimeError(f"the {forced} backend is forced, but cannot be used: {reason}")
        return forced
    for name, backend in _BEST_FIRST:
        if backend.takes_by_itself(scores) and not backend.refuses(scores, boost):
            if name == "reference" and scores.is_cpu and warn and not _warned:
                _warn()
            return name
    raise AssertionError("the reference refuses no call")


def _warn() -> None:
    """Once a process, if the CPU kernels are missing."""
    global _warned
    if torch.compiler.is_compiling():
        return
    _warned = True
    if reason := BACKENDS["cpu"].why_not():
        warn_user(
            f"knockout runs in plain PyTorch, much slower than with its CPU kernels: {reason} To silence this, set "
            f"KNOCKOUT_BACKEND=reference"
        )


def why_not(name: str) -> str:
    """Why calls do not reach a backend here: it cannot be used on this machine, or another one is forced."""
    name = _OLD_NAMES.get(name, name)
    check_choice(name, "name", NAMES)
    forced = _forced
    if forced not in ("auto", name):
        return f"the {forced} backend is forced, by knockout.backends.force or KNOCKOUT_BACKEND={forced}"
    return BACKENDS[name].why_not()


@contextmanager
def force(name: str) -> Iterator[None]:
    """Use one backend for the operators, or "auto" again; for the whole process, until the block ends.

    A call that the backend cannot take raises a RuntimeError that says why. The environment variable KNOCKOUT_BACKEND
    sets the same from outside. A selection keeps the backend that it was made with, and so do its gradients. Second
    derivatives of the tournament, values read from a row source, and methods that weigh all candidates in every slot
    are plain PyTorch always.

    Args:
        name: "reference", "cpu", "triton", or "auto".
    """
    name = _OLD_NAMES.get(name, name)
    check_choice(name, "backend", _CHOICES)
    block = _Forced(name)
    try:  # an interrupt may come at any time
        _blocks.append(block)
        _update()
        yield
    finally:
        if block in _blocks:
            _blocks.remove(block)
        _update()


def _update() -> None:
    """Make ``_forced`` the name of the last block, whatever blocks other threads begin and end meanwhile.

    What is assigned may be out of date by then, so the last block is looked up again after each assignment. There is no
    lock: torch.compile could not trace it, and a process might be forked while another thread holds it.
    """
    global _forced
    while _forced != (name := _blocks[-1].name):
        _forced = name
