"""Sums, roots and exponentials with the same bits on every backend, in whatever order they are computed.

Blended scores are ranked again in the next round, so a difference in the last bit can put two slots in another order.
Everything that goes into a blended score is therefore made of + - * / alone, which IEEE 754 defines to the last bit.
(A library's square root need not be: that of torch on the CPU is sometimes one bit off.) This module has what the
tournament needs beyond that. The C++ kernels take the same steps in exact_math.h and exact_sum.h.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def exact_sum(x: Tensor, count: Tensor) -> Tensor:
    """Sum (..., 1) over the last dimension, in float64, with the same bits in every order of addition.

    At most ``count`` (..., 1) of the terms are not 0; the number of zeros does not change the bits either. The terms
    are rounded to multiples of a power of two that is so coarse that every sum of them is exact. What rounding leaves
    is added up in the same way, on a finer grid: relative error about n^2 2^-95, and 2^-53.
    """
    if x.device.type == "mps":  # it has no float64
        return x.sum(dim=-1, keepdim=True)
    x = x.double()
    room = 4.0 * count.double()
    total = x.new_zeros(())
    # x + shift is rounded to a multiple of its last bit. |x| <= shift / room, so all of them fit in 53 bits.
    with torch.no_grad():
        shift = x.abs().amax(dim=-1, keepdim=True) * room
    for _ in range(2):
        on_grid = (x + shift) - shift
        x = x - on_grid
        total = total + on_grid.sum(dim=-1, keepdim=True)
        shift = shift * (room * 2.0**-52)
    return total


def sqrt(x: Tensor) -> Tensor:
    """The square root of a number from 1 to 2."""
    return _Sqrt.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def exp(x: Tensor) -> Tensor:
    """e^x; from the smallest normal number's logarithm down, that number."""
    return _Exp.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def expm1(x: Tensor) -> Tensor:
    """e^x - 1, exact for small x too."""
    return _Expm1.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class _Sqrt(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        root = x * 0.4142135623730951 + 0.5897  # off by less than 0.4 %; Newton's steps square that
        for _ in range(2 if x.dtype == torch.float32 else 3):
            root = (root + x / root) * 0.5
        return root

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * (0.5 / sqrt(*ctx.saved_tensors))


class _Exp(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        power, rest = _split(x)
        return power * rest + power

    setup_context = _Sqrt.setup_context

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * exp(*ctx.saved_tensors)


class _Expm1(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        power, rest = _split(x)
        return power * rest + (power - 1.0)

    setup_context = _Sqrt.setup_context
    backward = _Exp.backward  # both have the derivative e^x


# Mantissa bits, exponent bias, the first bits of ln 2 (a product with an exponent is exact) and the rest of it.
_FORMS = {
    torch.float32: (torch.int32, 23, 127, 0.693359375, -2.12194440054690583e-4),
    torch.float64: (torch.int64, 52, 1023, 6.93145751953125e-1, 1.42860682030941723e-6),
}


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """2^m and e^r - 1, where x = m ln 2 + r and |r| <= ln 2 / 2."""
    integer, mantissa, bias, ln2_high, ln2_low = _FORMS[x.dtype]
    x = x.clamp(min=(1 - bias) * math.log(2.0), max=bias * math.log(2.0))
    m = torch.round(x * (1.0 / math.log(2.0)))
    r = (x - m * ln2_high) - m * ln2_low
    # The Taylor series, from its smallest term; the terms left out are below half a unit in the last place.
    degree = 7 if x.dtype == torch.float32 else 13
    series = torch.full_like(r, 1.0 / math.factorial(degree))
    for i in range(degree - 1, 1, -1):
        series = series * r + 1.0 / math.factorial(i)
    return ((m.to(integer) + bias) << mantissa).view(x.dtype), r + (r * r) * series
