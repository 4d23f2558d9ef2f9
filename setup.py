"""Builds the C++ kernels beside the Python code. Everything else about the package is in pyproject.toml.

They are compiled against the torch that is installed, so build without isolation: `pip install --no-build-isolation .`
Without torch or a compiler the package is installed without them and works in plain PyTorch; KNOCKOUT_REQUIRE_NATIVE=1
makes that an error. KNOCKOUT_SANITIZE=address,undefined compiles them with those sanitizers.
"""

import os
import sys
from pathlib import Path

from setuptools import setup

REQUIRED = os.environ.get("KNOCKOUT_REQUIRE_NATIVE") == "1"
SANITIZERS = os.environ.get("KNOCKOUT_SANITIZE", "")
SOURCES = Path("src/knockout/ops/cpu/csrc")

# The stable ABI of torch 2.10 and of Python 3.11: one build for these and all later versions.
COMPILE = [
    "-std=c++20",
    "-O3",
    "-fvisibility=hidden",
    "-DTORCH_TARGET_VERSION=0x020a000000000000",
    "-DPy_LIMITED_API=0x030b0000",
]
# Results are the same to the last bit on every processor: no fused multiply-add where the code has two steps.
COMPILE += ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
# Short loops stay loops: a call or a string instruction for every few entries costs more than it saves.
COMPILE += ["-fno-tree-loop-distribute-patterns"]
if SANITIZERS:
    COMPILE += [f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all", "-g", "-O1"]


def without(reason: str) -> None:
    """Install without the kernels, and say so."""
    if REQUIRED:
        sys.exit(f"knockout: the C++ kernels are required, but {reason}")
    print(f"knockout: installed without the C++ kernels, because {reason}", file=sys.stderr)


try:
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ImportError:
    without("torch is not installed in the environment that builds; use pip install --no-build-isolation")
    setup()
else:

    class Build(BuildExtension):
        """A build that may fail."""

        def build_extensions(self) -> None:
            """Compile, or go on without."""
            try:
                super().build_extensions()
            except Exception as error:
                without(f"they could not be compiled: {error}")
                self.extensions.clear()  # or they would be looked for

    extension = CppExtension(
        "knockout.ops.cpu._C",
        sorted(map(str, SOURCES.glob("*.cpp"))),
        depends=sorted(map(str, SOURCES.glob("*.h"))),
        extra_compile_args=COMPILE,
        extra_link_args=[f"-fsanitize={SANITIZERS}"] if SANITIZERS else [],
        py_limited_api=True,
    )
    setup(
        ext_modules=[extension],
        cmdclass={"build_ext": Build.with_options(use_ninja=False)},
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
    )
