"""Kernels compiled ahead of time, and what they use of a GPU: registers, stack, shared memory."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from evals.gpu.calls import Launch
from knockout.ops.triton.launch import options_for

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),  # A100
    "sm_90": GPUTarget("cuda", 90, 32),  # H100
    "sm_100": GPUTarget("cuda", 100, 32),  # B200
    "gfx942": GPUTarget("hip", "gfx942", 64),  # MI300
    "gfx1100": GPUTarget("hip", "gfx1100", 32),  # RX 7900
}
_TYPES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64", torch.bool: "i1",
    torch.uint8: "u8", torch.int8: "i8", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip


class Usage(NamedTuple):
    """What a compiled kernel takes, of each thread and of each program."""

    warps: int
    registers: int
    stack: int  # bytes of a thread in memory: 0 unless registers did not do
    shared: int  # bytes of a program
    seconds: float  # to compile
    inexact: int  # instructions on which results must not depend: see below


class Specialized(NamedTuple):
    """A kernel as the compiler takes it."""

    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    attributes: dict[tuple[int], list[list[Any]]]

    @staticmethod
    def of(launch: Launch) -> Specialized:
        """The kernel for the arguments of a launch, as ``kernel[grid](**arguments)`` would specialize it."""
        signature, constants, attributes = {}, {}, {}
        for index, parameter in enumerate(launch.kernel.params):
            value = launch.arguments[parameter.name]
            if parameter.is_constexpr or value is None:
                signature[parameter.name], constants[parameter.name] = "constexpr", value
            elif isinstance(value, Tensor):
                signature[parameter.name] = f"*{_TYPES[value.dtype]}"
                attributes[(index,)] = [["tt.divisibility", 16]]  # PyTorch aligns memory
            else:
                signature[parameter.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
        return Specialized(launch.kernel, signature, constants, attributes)

    @property
    def settings(self) -> str:
        """The numbers that it is specialized for."""
        shown = {name: getattr(each, "name", each) for name, each in self.constants.items() if name.isupper()}
        return ", ".join(f"{name}={each}" for name, each in shown.items() if each is not False and each is not None)


def compiled(launch: Launch, target: str) -> Usage:
    """Compile the kernel of a launch for a target. Nothing is taken from Triton's cache."""
    place, specialized = TARGETS[target], Specialized.of(launch)
    options = options_for(launch.elements, place.backend, place.warp_size)
    source = ASTSource(specialized.kernel, specialized.signature, specialized.constants, specialized.attributes)
    with tempfile.TemporaryDirectory() as cache, triton.knobs.cache.scope():
        triton.knobs.cache.dir = cache
        begin = time.perf_counter()
        kernel = triton.compile(source, target=place, options=options)
        seconds = time.perf_counter() - begin
    assembly = kernel.asm
    used = _of_nvidia(assembly["cubin"]) if place.backend == "cuda" else _of_amd(assembly["amdgcn"])
    inexact = _INEXACT.findall(assembly["llir"]) + _INEXACT.findall(assembly.get("ptx", ""))
    return Usage(options["num_warps"], *used, kernel.metadata.shared, seconds, len(inexact))


def _of_nvidia(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack, as cuobjdump says."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return _number(r"REG:(\d+)", said), _number(r"STACK:(\d+)", said)


def _of_amd(assembly: str) -> tuple[int, int]:
    """Vector registers, and bytes of a thread in memory."""
    return _number(r"\.vgpr_count:\s+(\d+)", assembly), _number(r"\.private_segment_fixed_size:\s+(\d+)", assembly)


# Instructions that would make results depend on the GPU, or on the order of threads: multiplications and additions that
# are rounded together, numbers that are only nearly right, atomics. LLVM and ptxas add none of their own: they are told
# not to.
_INEXACT = re.compile(
    r"\bllvm\.(?:fma|fmuladd)\.|\b(?:contract|fast|afn|arcp|reassoc|atomicrmw|cmpxchg)\b|!fpmath"  # LLVM
    r"|^\s+(?:@!?%\w+\s+)?(?:fma\.|mad\.f|atom\.|red\.|\w+\.(?:\w+\.)*(?:approx|full|ftz)\b)",  # PTX
    re.MULTILINE,
)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, (pattern, text)
    return int(found[1])
