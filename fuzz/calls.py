"""Calls of the operators: how one is made, judged, and written as JSON."""

from __future__ import annotations

import base64
import ctypes
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.fx.experimental.symbolic_shapes  # PyTorch imports it for meta tensors: once here, not in every worker
from torch import Tensor

from fuzz.kind import MEMORY_MISSING, ViolationError
from knockout.boost import as_boost
from knockout.dtypes import DTYPES, computing_dtype
from knockout.ops.arguments import checked
from knockout.ops.boost_code import detach_tensors, encode
from knockout.ops.choice import BACKENDS
from knockout.ops.schema import FUSED, SCHEMAS
from knockout.quota import Quota
from tests.contract.cases import Case

ERRORS = (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError)
ARGUMENTS = {
    name: tuple(argument.name for argument in getattr(torch.ops.knockout, name).default._schema.arguments)
    for name in (*SCHEMAS, *FUSED)
}
# What an operator runs on devices that have no kernels.
REFERENCE = {name: checked(name, getattr(BACKENDS["reference"], name)) for name in SCHEMAS}


class Call(NamedTuple):
    """A call of an operator, or, if ``reference``, of its implementation in plain PyTorch."""

    operator: str
    arguments: tuple[Any, ...]
    reference: bool = False
    changes: tuple[str, ...] = ()  # what was changed in a valid call

    def argument(self, name: str) -> Any:
        """The argument with this name."""
        return self.arguments[ARGUMENTS[self.operator].index(name)]

    def replaced(self, arguments: Mapping[str, Any]) -> Call:
        """The call with other arguments, by name."""
        names = ARGUMENTS[self.operator]
        given = zip(names, self.arguments, strict=True)
        return self._replace(arguments=tuple(arguments.get(name, value) for name, value in given))

    def run(self) -> Any:
        """What the operator gives."""
        if self.reference:
            return REFERENCE[self.operator](*self.arguments)
        return getattr(torch.ops.knockout, self.operator)(*self.arguments)


def calls_of(case: Case, backend: str, fixed: bool) -> list[Call]:
    """A valid call of every operator that the backend has: those of the forward and the backward pass of a case."""
    own = BACKENDS[backend]
    scores, values, mask, _ = case.inputs()
    if mask is not None:
        scores, mask = torch.broadcast_tensors(scores, mask)
    boost, c_tensor, unit_tensor = detach_tensors(as_boost(case.boost, scores.device))
    quota = Quota.of_fraction(case.k, case.n) if isinstance(case.k, float) else Quota(case.k)
    counts = case.counts(scores).clamp(min=1) if case.counted else None
    numerator = 0 if case.counted else quota.numerator
    numbers = (quota.k, numerator, *encode(boost), case.order == "position")
    forward = (scores, mask, c_tensor, unit_tensor, *numbers, True, fixed, counts)
    member, weight, score, _, _, valid, saved = own.tournament(*forward)
    generator = torch.Generator().manual_seed(case.seed)

    def gradient_of(result: Tensor) -> Tensor:
        return torch.randn(result.shape, generator=generator, dtype=result.dtype)

    backward = (
        gradient_of(weight),
        gradient_of(score),
        scores,
        mask,
        c_tensor,
        unit_tensor,
        member,
        saved,
        *numbers,
        counts,
    )
    batch = torch.broadcast_shapes(scores.shape[:-1], values.shape[:-2])
    values = values.expand(*(1,) * (len(batch) - values.dim() + 2), *values.shape)
    weight, member, valid = (x.expand(*batch, *x.shape[scores.dim() - 1 :]) for x in (weight, member, valid))
    gather = (values, weight, member, valid, case.hard)
    grad = gradient_of(own.blend(*gather))
    calls = [
        Call("tournament", forward),
        Call("tournament_backward", backward),
        Call("blend", gather),
        Call("spread", (grad, weight, member, list(values.shape))),
        Call("match", (grad, values, member, weight.dtype == torch.float64)),
    ]
    if own.topk is None or own.topk_backward is None:
        return calls
    # With values of their own for each row.
    values = torch.randn(*scores.shape, values.shape[-1], generator=generator).to(values.dtype)
    fused = (values, scores, mask, c_tensor, unit_tensor, *numbers, True, True, counts)
    out, member, weight, score, *_, saved = own.topk(*fused)
    saved_tensors = (values, scores, mask, c_tensor, unit_tensor, member, weight, saved)
    return [
        *calls,
        Call("topk", fused),
        Call("topk_backward", (gradient_of(out), gradient_of(score), *saved_tensors, *numbers, True, True, counts)),
    ]


def judge(call: Call) -> str:
    """Run a call and see that it does what a call may do; returns "refused" or "a result"."""
    before = _checksums(call.arguments)
    on_meta = any(isinstance(each, Tensor) and each.is_meta for each in call.arguments)
    try:
        result = call.run()
    except MemoryError:
        outcome = "refused"
    except Exception as error:
        outcome = "refused"
        if not on_meta:
            if not isinstance(error, ERRORS):
                raise
            _check_text(call, str(error))
    else:
        outcome = "a result"
        if not on_meta:
            _check_result(call, result)
    if _checksums(call.arguments) != before:
        raise ViolationError("the call has changed its inputs")
    return outcome


def _check_text(call: Call, text: str) -> None:
    named = any(re.search(rf"\b{name}\b", text) for name in ARGUMENTS[call.operator])
    if not named and not MEMORY_MISSING.search(text):
        raise ViolationError(f"an error that names no argument: {text.splitlines()[0] if text else 'no text'}")


def _check_result(call: Call, result: Any) -> None:
    results = result if isinstance(result, tuple) else (result,)
    for place, (each, (shape, dtype)) in enumerate(zip(results, _promised(call, results), strict=True)):
        got, promised = (tuple(each.shape), each.dtype), (tuple(shape), dtype)
        if got != promised:
            raise ViolationError(f"result {place} has shape and dtype {got}, not {promised}")


def _promised(call: Call, results: Sequence[Tensor]) -> list[tuple[Sequence[int], torch.dtype]]:
    """The shapes and dtypes that schema.py promises."""
    if call.operator in ("tournament", "topk"):
        scores, k = call.argument("scores"), int(call.argument("k"))  # PyTorch takes a tensor, too
        batch, number = scores.shape[:-1], computing_dtype(scores.dtype)
        member, saved = results[-7], results[-1]
        members, length = member.shape[-1], saved.shape[-1]  # free
        blended = [call.argument("values")] if call.operator == "topk" else []
        return [
            *(((*batch, k, values.shape[-1]), values.dtype) for values in blended),
            ((*batch, k, members), member.dtype),
            ((*batch, k, members), number),
            ((*batch, k), number),
            ((*batch, k), torch.int64),
            ((*batch, k), torch.bool),
            ((*batch, 1), torch.bool),
            ((*batch, length), torch.int32),
        ]
    if call.operator == "tournament_backward":
        scores = call.argument("scores")
        return [(scores.shape, scores.dtype)]
    if call.operator == "topk_backward":
        inputs = ((call.argument(name), call.argument(f"{name}_wanted")) for name in ("values", "scores"))
        return [(each.shape if wanted else (0,), each.dtype) for each, wanted in inputs]
    if call.operator == "blend":
        values = call.argument("values")
        return [((*call.argument("member").shape[:-1], values.shape[-1]), values.dtype)]
    if call.operator == "spread":
        return [(call.argument("shape"), call.argument("grad").dtype)]
    return [(call.argument("member").shape, torch.float64 if call.argument("float64") else torch.float32)]


def _checksums(arguments: Sequence[Any]) -> list[int]:
    """Of the memory of all tensors among the arguments."""
    return [zlib.crc32(_memory(each)) for each in arguments if isinstance(each, Tensor) and _is_dense(each)]


def _is_dense(tensor: Tensor) -> bool:
    """Whether it has memory of its own here."""
    return tensor.layout == torch.strided and tensor.is_cpu


def _memory(tensor: Tensor) -> bytes:
    if tensor._is_zerotensor():
        return b""
    storage = tensor.untyped_storage()
    return ctypes.string_at(storage.data_ptr(), storage.nbytes()) if 0 < storage.nbytes() < 2**28 else b""


def write_argument(value: Any) -> Any:
    """An argument as JSON; numbers and lists are as they are."""
    if not isinstance(value, Tensor):
        return value
    kind = {"dtype": str(value.dtype).removeprefix("torch."), "size": list(value.shape)}
    if value.layout != torch.strided:
        return {**write_argument(value.to_dense()), "sparse": True}
    if value.device.type == "meta":
        return {**kind, "meta": True}
    if value._is_zerotensor():
        return {**kind, "zeros": True}
    negative = value.is_neg()
    value = torch._neg_view(value) if negative else value
    value = value.resolve_conj()
    memory = base64.b85encode(zlib.compress(_memory(value), 9)).decode()
    layout = {"stride": list(value.stride()), "offset": value.storage_offset(), "memory": memory}
    return {**kind, **layout, **({"negative": True} if negative else {})}


def read_argument(written: Any) -> Any:
    """The argument that was written."""
    if not isinstance(written, dict):
        return written
    dtype, size = getattr(torch, written["dtype"]), written["size"]
    if "meta" in written:
        return torch.empty(size, dtype=dtype, device="meta")
    if "zeros" in written:
        return torch._efficientzerotensor(size, dtype=dtype)
    memory = bytearray(zlib.decompress(base64.b85decode(written["memory"])))
    flat = torch.frombuffer(memory, dtype=torch.uint8).clone() if memory else torch.empty(0, dtype=torch.uint8)
    value = torch.empty(0, dtype=dtype).set_(flat.untyped_storage(), written["offset"], size, written["stride"])
    if "sparse" in written:
        return value.to_sparse()
    return torch._neg_view(value) if "negative" in written else value


def is_floating(value: Any) -> bool:
    """Whether it is a tensor of a dtype that the operators compute with."""
    return isinstance(value, Tensor) and value.dtype in DTYPES
