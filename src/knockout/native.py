"""The native CPU kernels: whether they are there, who decides, and what they look like to PyTorch.

They are used by themselves on CPU tensors. Without them (no compiler at installation, another device) everything works
in plain PyTorch, with the same results:

>>> import knockout
>>> knockout.native.available() or knockout.native.why_not()
True

To have one or the other, whatever is there:

>>> with knockout.native.force("reference"):
...     knockout.native.available()
False
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from knockout.checks import check_choice, computing_dtype
from knockout.quota import Quota

__all__ = ["available", "force", "why_not"]

BACKENDS = ("auto", "native", "reference")
MOST = 2**30  # candidates; the kernels count in 32 bits

try:
    from knockout import _C  # type: ignore[attr-defined]

    _missing = ""
except ImportError as error:
    _missing = (
        f"the extension knockout._C could not be loaded ({error}); it is built by pip where a C++ compiler is found"
    )

_backend = os.environ.get("KNOCKOUT_BACKEND", "auto")
check_choice(_backend, "the environment variable KNOCKOUT_BACKEND", BACKENDS)


def available() -> bool:
    """Whether CPU tensors are handled by the native kernels."""
    return not why_not()


def why_not() -> str:
    """Why the native kernels are not used; empty if they are."""
    return "knockout.native.force('reference') or KNOCKOUT_BACKEND=reference" if _backend == "reference" else _missing


@contextmanager
def force(backend: str) -> Iterator[None]:
    """Use "native" or "reference" for everything, or "auto" again; for the whole process, until the block ends.

    With "native", whatever the kernels cannot do raises a RuntimeError that says why. The environment variable
    KNOCKOUT_BACKEND sets the same from outside.
    """
    global _backend
    check_choice(backend, "backend", BACKENDS)
    before, _backend = _backend, backend
    try:
        yield
    finally:
        _backend = before


def takes(tensor: Tensor, n: int) -> bool:
    """Whether the kernels are to handle this tensor, of n candidates."""
    if _backend == "reference":
        return False
    if not _missing and tensor.is_cpu and n < MOST:
        return True
    if _backend == "native":
        reason = _missing or f"they take CPU tensors of less than 2**30 candidates; got n = {n} on {tensor.device}"
        raise RuntimeError(f"the native kernels are forced, but cannot be used: {reason}")
    return False


def apply(function: type[Function], *args: Any) -> Any:
    """``function.apply``, at the price of a call where nobody can tell the difference.

    ``Function.apply`` binds the arguments by their signature every time, for the sake of ``torch.func``: that takes
    longer than a small selection.
    """
    if _transformed() or torch.compiler.is_compiling():
        return function.apply(*args)
    if torch.is_grad_enabled():
        for each in args:
            if isinstance(each, Tensor) and each.requires_grad:
                return _plain(function).apply(*args)
    return function.forward(*args)


_transformed = torch._C._are_functorch_transforms_active


def lift(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """For a rule of vmap: the mapped dimension first; expanded to ``size`` where the tensor is the same for all."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


_PLAIN: dict[type[Function], type[Function]] = {}


def _plain(function: type[Function]) -> type[Function]:
    """The same function, with ``forward`` and ``setup_context`` in one."""
    if function not in _PLAIN:

        class Plain(Function):
            @staticmethod
            def forward(ctx: Any, *args: Any) -> Any:
                out = function.forward(*args)
                function.setup_context(ctx, args, out)
                return out

            backward = function.backward

        Plain.__name__ = Plain.__qualname__ = function.__name__
        _PLAIN[function] = Plain
    return _PLAIN[function]


# --- shapes, for torch.compile and torch.export ---


def _register(name: str, fake: Callable[..., Any]) -> None:
    if not _missing:
        torch.library.register_fake(f"knockout::{name}", fake)


def _tournament(
    scores: Tensor,
    mask: Tensor | None,
    sharpness: Tensor | None,
    k: int,
    parts: int,
    kind: int,
    alpha: int,
    c: float,
    unit: float,
    by_position: bool,
    save: bool,
    fixed: bool,
) -> tuple[Tensor, ...]:
    *batch, n = scores.shape
    number = computing_dtype(scores.dtype)
    base, per_slot, per_candidate = _C.saved_length(number.itemsize)
    # The members of a slot, and what is kept for the backward pass: as long as any row could need, or as this one does.
    most = (2 ** Quota(k, parts).rounds(n), base + per_slot * k + per_candidate * n)
    lengths: list[Any] = [0, 0]
    for i in range(2 if save else 1):
        lengths[i] = most[i] if fixed else torch.library.get_ctx().new_dynamic_size()
    members = (*batch, k, lengths[0])
    return (
        scores.new_empty(members, dtype=torch.int32),
        scores.new_empty(members, dtype=number),
        scores.new_empty((*batch, k), dtype=number),
        scores.new_empty((*batch, k), dtype=torch.int64),
        scores.new_empty((*batch, k), dtype=torch.bool),
        scores.new_empty((*batch, lengths[1]), dtype=torch.int32),
    )


def _tournament_backward(d_weight: Tensor | None, d_score: Tensor | None, scores: Tensor, *_: Any) -> Tensor:
    return scores.new_empty(scores.shape)


def _blend(values: Tensor, weight: Tensor, member: Tensor, hard: bool) -> Tensor:
    return values.new_empty((*member.shape[:-1], values.shape[-1]))


def _spread(grad: Tensor, weight: Tensor, member: Tensor, shape: Sequence[int]) -> Tensor:
    return grad.new_empty(shape)


def _match(grad: Tensor, values: Tensor, member: Tensor, wide: bool) -> Tensor:
    return grad.new_empty(member.shape, dtype=torch.float64 if wide else torch.float32)


_register("tournament", _tournament)
_register("tournament_backward", _tournament_backward)
_register("blend", _blend)
_register("spread", _spread)
_register("match", _match)

# As calls, so that they need not be looked up.
if not _missing:
    tournament = torch.ops.knockout.tournament.default
    tournament_backward = torch.ops.knockout.tournament_backward.default
    blend = torch.ops.knockout.blend.default
    spread = torch.ops.knockout.spread.default
    match = torch.ops.knockout.match.default
