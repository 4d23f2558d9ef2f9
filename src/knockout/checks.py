"""Checks of arguments, made before any work is done.

An error names the argument, what was passed, and what to pass instead.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Sequence
from numbers import Integral, Real

import torch
from torch import Tensor

from knockout.dtypes import DTYPES
from knockout.quota import Quota
from knockout.shapes import check_broadcast, check_values_shape
from knockout.torch_private import is_transforming
from knockout.tracing import refuse_torchscript

K_MUST_BE = "k must be an int, how many candidates to select, or a fraction between 0 and 1 of them"


def join_scores(chunks: Iterable[Tensor]) -> Tensor:
    """Scores (..., n) from chunks (..., n_i) of one dtype, device and batch shape, taken one after the other."""
    must_be = "scores must be a torch.Tensor, or chunks of one, an iterable of tensors (..., n_i)"
    if not isinstance(chunks, Iterable):
        raise TypeError(f"{must_be}; got {_type_name(chunks)}")
    tensors: list[Tensor] = []
    for number, chunk in enumerate(chunks):
        if not isinstance(chunk, Tensor):
            raise TypeError(
                f"{must_be}; got {_type_name(chunks)}, whose chunk {number} is of type {_type_name(chunk)}"
                + how_to_make_a_tensor(chunks, "scores")
            )
        if chunk.dim() == 0:
            raise ValueError(f"{must_be}; got a tensor without dimensions for chunk {number}. Pass it as chunk[None]")
        tensors.append(chunk)
        for what, found, first in (
            ("dtype", chunk.dtype, tensors[0].dtype),
            ("device", chunk.device, tensors[0].device),
            ("batch shape", tuple(chunk.shape[:-1]), tuple(tensors[0].shape[:-1])),
        ):
            if found != first:
                raise ValueError(
                    f"chunks of scores must have the {what} of chunk 0, {first}; got {found} in chunk {number}"
                )
    if not tensors:
        raise ValueError(f"{must_be}; got {_type_name(chunks)} without a chunk")
    return torch.cat(tensors, dim=-1)


def check_scores(scores: Tensor, k: float, mask: Tensor | None) -> Quota:
    """Check scores (..., n), k, an int from 1 to n or a fraction, and mask (..., n) bool or None. Returns the quota."""
    check_scores_and_mask(scores, mask)
    return quota_of(k, scores.shape)


def check_scores_and_mask(scores: Tensor, mask: Tensor | None) -> None:
    """Check scores (..., n) and mask (..., n) bool or None."""
    refuse_torchscript()
    _check_floating(scores, "scores")
    if scores.dim() == 0:
        raise ValueError("scores must have shape (..., n), a score per candidate; got a tensor without dimensions")
    if mask is not None:
        _check_mask(mask, scores)


def quota_of(k: float, shape: Sequence[int]) -> Quota:
    """The quota that k is for scores of this shape (..., n)."""
    k, n = check_k(k), shape[-1]
    if isinstance(k, float):
        if n == 0:
            raise ValueError(f"scores must have candidates, to select a fraction of them; got shape {tuple(shape)}")
        return Quota.of_fraction(k, n)
    if k > n:
        raise ValueError(
            f"k must be at most n, the number of candidates; got k = {k} with scores of shape {tuple(shape)}, n = {n}"
            + (
                ". If that is not the dimension of the candidates pass scores.squeeze(-1)"
                if n == len(shape[1:2])
                else ""
            )
        )
    return Quota(k)


def check_k(k: int | float) -> int | float:
    """Check k, an int of at least 1 or a float between 0 and 1. Returns it as an int or a float."""
    if isinstance(k, bool) or not isinstance(k, int):
        k = _as_number(k)
    if isinstance(k, float):
        if not 0 < k < 1:
            raise ValueError(f"{K_MUST_BE}; got {k!r}")
    elif k < 1:
        raise ValueError(f"k must be at least 1; got {k}")
    return k


def check_values(values: Tensor, batch: Sequence[int], n: int, device: torch.device) -> None:
    """Check values (..., n, d), on the device of the scores, with batch dimensions that broadcast with theirs."""
    _check_floating(values, "values")
    check_values_shape(values.shape, batch, n)
    check_device(values, "values", device)
    check_broadcast(values.shape[:-2], "values", batch)


def check_slot_values(y: Tensor, batch: Sequence[int], k: int, device: torch.device) -> None:
    """Check y (..., k, d), on the device of a selection, with batch dimensions that broadcast with its own."""
    _check_vectors(y, "y", f"(..., k, d) with k = {k}, the number of slots, as `apply` returns", "slot", k)
    check_device(y, "y", device, "the selection")
    check_broadcast(y.shape[:-2], "y", batch, "the selection")


def check_choice(value: object, name: str, choices: Sequence[object]) -> None:
    """Check that value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")


def check_flag(value: bool, name: str) -> None:
    """Check for True or False; numbers that equal them are refused."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False; got {value!r} of type {_type_name(value)}")


def check_generator(value: torch.Generator | None) -> None:
    """Check for a torch.Generator, or None for torch's default one."""
    if value is not None and not isinstance(value, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator, or None; got {value!r} of type {_type_name(value)}")


def check_positive(value: float, name: str) -> None:
    """Check for a finite int or float above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be an int or a float; got {value!r} of type {_type_name(value)}")
    if not (0 < value <= sys.float_info.max):
        raise ValueError(f"{name} must be positive and finite; got {value!r}")


def check_sharpness(c: float | Tensor, name: str) -> None:
    """Check for a finite int or float above 0, or a floating tensor without dimensions.

    The number in a tensor is checked only on the CPU and outside of tracing: elsewhere reading it means to wait.
    """
    if not isinstance(c, Tensor):
        return check_positive(c, name)
    _check_dense(c, name)
    if c.dim() != 0 or c.dtype not in DTYPES:
        raise TypeError(
            f"{name} must be an int, a float, or a floating tensor without dimensions; "
            f"got a tensor of shape {tuple(c.shape)} and dtype {c.dtype}"
        )
    traced = torch.compiler.is_compiling() or is_transforming()
    if not traced and type(c) in (Tensor, torch.nn.Parameter) and c.is_cpu:
        check_positive(c.item(), name)
    return None


def check_whole(value: int, name: str, least: int = 1) -> int:
    """Check for an integer of at least ``least``. Returns it as an int."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an int; got {value!r} of type {_type_name(value)}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}; got {value}")
    return int(value)


def check_fraction(value: float, name: str) -> float:
    """Check for a number between 0 and 1. Returns it as a float."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < 1:
        raise ValueError(f"{name} must be a float between 0 and 1; got {value!r}")
    return float(value)


def check_tokens(x: Tensor, mask: Tensor | None, positions: Tensor | None, dim: int) -> None:
    """Check tokens x (..., n, dim), mask (..., n) bool or None, positions (..., n) or None.

    The batch dimensions of mask and positions must expand to those of x.
    """
    refuse_torchscript()
    _check_floating(x, "x")
    if x.dim() < 2 or x.shape[-1] != dim:
        raise ValueError(f"x must have shape (..., n, {dim}), a token of dimension {dim} each; got {tuple(x.shape)}")
    if x.shape[-2] == 0:
        raise ValueError(f"x must have tokens; got shape {tuple(x.shape)}")
    if mask is not None:
        _check_mask(mask, x[..., 0], "x")
        check_expands(mask, "mask", x)
    if positions is not None:
        if not isinstance(positions, Tensor) or positions.dtype == torch.bool or positions.is_complex():
            got = f"dtype {positions.dtype}" if isinstance(positions, Tensor) else f"type {_type_name(positions)}"
            raise TypeError(f"positions must be a tensor of numbers, where each token stands; got {got}")
        _check_dense(positions, "positions")
        if positions.dim() == 0 or positions.shape[-1] != x.shape[-2]:
            raise ValueError(
                f"positions must have shape (..., n) with n = {x.shape[-2]}, as x; got shape {tuple(positions.shape)}"
            )
        check_device(positions, "positions", x.device, "x")
        check_expands(positions, "positions", x)


def check_unpool(y: Tensor, x: Tensor, mask: Tensor | None, slots: Tensor, selected: tuple[int, int]) -> int:
    """Check y (..., k, dim), and x (..., n, dim) with its mask, for ``Pooled.unpool``. Returns how many are kept.

    ``slots`` (..., k) is the mask of the slots, ``selected`` the numbers of slots and candidates of the selection: the
    others are always kept. If all are, the candidates are padding, one more than there are tokens.
    """
    k, (least, candidates) = slots.shape[-1], selected
    _check_vectors(y, "y", f"(..., {k}, dim), as the x of the pool", "slot", k)
    _check_floating(x, "x")
    all_kept = x.dim() >= 2 and k == x.shape[-2] == candidates - 1
    n = k if all_kept else k - least + candidates
    if x.dim() < 2 or x.shape[-2:] != (n, y.shape[-1]):
        raise ValueError(
            f"x must have shape (..., {n}, {y.shape[-1]}), the tokens as they were before the pool, of the dimension "
            f"of y; got {tuple(x.shape)}"
        )
    check_tokens(x, mask, None, x.shape[-1])
    for each, name in ((y, "y"), (x, "x")):
        check_device(each, name, slots.device, "the pool")
        check_broadcast(each.shape[:-2], name, slots.shape[:-1], "the pool")
    return n if all_kept else k - least


def _check_vectors(x: Tensor, name: str, shape: str, each: str, count: int) -> None:
    """Check floating x (..., count, d), a vector for each of what ``each`` says."""
    _check_floating(x, name)
    if x.dim() < 2 or x.shape[-2] != count:
        raise ValueError(
            f"{name} must have shape {shape}; got shape {tuple(x.shape)}"
            + (f". For a number per {each} pass {name}.unsqueeze(-1)" if x.shape[-1:] == (count,) else "")
        )


def check_expands(tensor: Tensor, name: str, x: Tensor) -> None:
    """Check that the batch dimensions of a tensor (..., n) expand to those of x (..., n, dim)."""
    check_broadcast(tensor.shape[:-1], name, x.shape[:-2], "x")
    if tensor.shape[:-1] == x.shape[:-2]:
        return  # to broadcast shapes is slow
    if torch.broadcast_shapes(tensor.shape[:-1], x.shape[:-2]) != x.shape[:-2]:
        raise ValueError(
            f"{name} must not have more rows than x, {tuple(x.shape[:-2])}; got {tuple(tensor.shape[:-1])}. Expand x"
        )


def _as_number(k: object) -> int | float:
    if isinstance(k, Real) and not isinstance(k, Integral):
        return float(k)
    try:
        if isinstance(k, (bool, Tensor)):
            raise TypeError  # bool is not meant as a number, and a tensor would have to be fetched from its device
        return operator.index(k)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{K_MUST_BE}; got {k!r} of type {_type_name(k)}") from None


def _check_mask(mask: Tensor, scores: Tensor, other: str = "scores") -> None:
    if not isinstance(mask, Tensor):
        hint = how_to_make_a_tensor(mask, "mask")
        raise TypeError(f"mask must be a bool tensor, True for active candidates; got type {_type_name(mask)}{hint}")
    if mask.dtype != torch.bool:
        hint = ", or mask == 0 for a mask that is added to scores" if mask.is_floating_point() else ""
        raise TypeError(
            f"mask must be a bool tensor, True for active candidates; got dtype {mask.dtype}. Pass mask.bool(){hint}"
        )
    _check_dense(mask, "mask")
    if mask.dim() == 0 or mask.shape[-1] != scores.shape[-1]:
        hint = ". Pass mask.squeeze(-1)" if mask.shape == (*scores.shape, 1) else ""
        hint = f". Pass {other}.squeeze(-1)" if (*mask.shape, 1) == scores.shape else hint
        raise ValueError(
            f"mask must have shape (..., n) with n = {scores.shape[-1]}, as {other}; got shape {tuple(mask.shape)}"
            + hint
        )
    check_device(mask, "mask", scores.device, other)
    check_broadcast(mask.shape[:-1], "mask", scores.shape[:-1], other)


def _check_dense(tensor: Tensor, name: str) -> None:
    if tensor.is_nested:
        raise TypeError(
            f"{name} must be a dense tensor; got a nested one. Pass {name}.to_padded_tensor(0.0), and a mask"
        )
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor; got layout {tensor.layout}. Pass {name}.to_dense()")


def _check_floating(tensor: Tensor, name: str) -> None:
    if not isinstance(tensor, Tensor):
        hint = how_to_make_a_tensor(tensor, name)
        raise TypeError(f"{name} must be a torch.Tensor; got {_type_name(tensor)}{hint}")
    if tensor.dtype not in DTYPES:
        raise TypeError(
            f"{name} must be float16, bfloat16, float32 or float64, for a gradient to flow; got {tensor.dtype}"
            + ("" if tensor.dtype.is_floating_point or tensor.dtype.is_complex else f". Pass {name}.float()")
        )
    _check_dense(tensor, name)


def check_device(tensor: Tensor, name: str, device: torch.device, other: str = "scores") -> None:
    """Check that a tensor is on the device of another argument."""
    if tensor.device != device:
        raise ValueError(
            f"{name} must be on the device of {other}, {device}; got {tensor.device}. Pass {name}.to({str(device)!r})"
        )


def how_to_make_a_tensor(value: object, name: str) -> str:
    """The end of an error message about an argument that is no tensor."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, Tensor) for each in value):
        return f". Pass torch.stack({name})"
    return (
        f". Pass torch.as_tensor({name})" if isinstance(value, (list, tuple)) or _type_name(value) == "ndarray" else ""
    )


def _type_name(value: object) -> str:
    return type(value).__name__
