"""Builds the C++ kernels beside the Python code. Everything else about the package is in pyproject.toml.

They need a C++20 compiler and Python's headers, but not PyTorch: its stable ABI is declared in third_party/torch. So
plain `pip install .` builds them too, in an isolated environment, before PyTorch is installed. Where they cannot be
built, the package is installed without them and works in plain PyTorch; the reason is installed in their place, for
knockout.backends.why_not. KNOCKOUT_REQUIRE_NATIVE=1 makes that an error. KNOCKOUT_SANITIZE=address,undefined compiles
them with those sanitizers.
"""

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

REQUIRED = os.environ.get("KNOCKOUT_REQUIRE_NATIVE") == "1"
SANITIZERS = os.environ.get("KNOCKOUT_SANITIZE", "")
SOURCES = Path("src/knockout/ops/cpu/csrc")
HEADERS = Path("third_party/torch")
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

# Optimized without debugging information: that would be nine tenths of the file.
COMPILE = ["-std=c++20", "-O3", "-g0", "-fvisibility=hidden"]
# Results are the same to the last bit on every processor: no fused multiply-add where the code has two steps.
COMPILE += ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
# Short loops stay loops: a call or a string instruction for every few entries costs more than it saves. For GCC alone.
SHORT_LOOPS = "-fno-tree-loop-distribute-patterns"
if SANITIZERS:
    COMPILE += [f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all", "-g", "-O1"]

# What the compiler must know, shortly.
PROBE = """
#include <bit>
typedef double Four __attribute__((vector_size(32)));
_Float16 half(Four x) { return static_cast<_Float16>(std::bit_cast<double>(x[0])); }
"""


class NotBuiltError(Exception):
    """Why there are no kernels, and what mends that; {again} stands for a command that builds again."""


class Build(build_ext):
    """A build that may fail, and leaves a note then."""

    def run(self) -> None:
        """Build, or write down why not. Kernels that an earlier build has left behind may not fit, and are removed."""
        kernels = Path(self.get_ext_fullpath(EXTENSION.name))
        note = kernels.with_name("not_built.txt")
        try:
            super().run()
            note.unlink(missing_ok=True)
        except NotBuiltError as reason:
            shown = str(reason).format(again="build again")
            if REQUIRED:
                sys.exit(f"knockout: the C++ kernels are required, but were not built: {shown}")
            print(f"knockout: the C++ kernels were not built: {shown}", file=sys.stderr)
            self.extensions.clear()  # or they would be looked for
            for folder in (kernels.parent, Path(self.build_lib, "knockout", "ops", "cpu")):
                for path in folder.glob("_C.*"):
                    path.unlink()
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(f"{reason}\n", encoding="utf-8")

    def build_extensions(self) -> None:
        """Compile; every failure ends as a NotBuiltError."""
        if sys.platform == "win32":
            raise NotBuiltError(
                "they are not ported to Windows, whose compiler lacks the vector types that they use. In WSL they work"
            )
        if FREE_THREADED:
            raise NotBuiltError("they need Python's stable ABI, which free-threaded Python lacks. Use the ordinary one")
        name = self.compiler.compiler_so_cxx[0]
        if not shutil.which(name):
            raise NotBuiltError(
                f"no C++ compiler was found ({name}). Install one, for example by `apt install g++` or "
                "`xcode-select --install`, and {again}"
            )
        if problem := self.problem_with(PROBE, COMPILE):
            raise NotBuiltError(
                f"the C++ compiler {name} is too old, or does not work ({problem}). Install GCC 12, Clang 15 or later, "
                "name it in the variable CXX, and {again}"
            )
        if not Path(sysconfig.get_path("include"), "Python.h").exists():
            raise NotBuiltError(
                "Python's headers were not found (Python.h). Install them, for example by `apt install python3-dev`, "
                "and {again}"
            )
        if not self.problem_with("", ["-Werror", SHORT_LOOPS]):
            EXTENSION.extra_compile_args.append(SHORT_LOOPS)
        if problem := problem_of(self.compile_and_link):
            raise NotBuiltError(
                f"compiling them failed ({problem}). To see all that the compiler says, add --verbose, and {{again}}"
            )

    def compile_and_link(self) -> None:
        """Build the extension. In Linux it names PyTorch's library: an empty one with that name is enough."""
        if sys.platform == "linux":
            folder = Path(self.build_temp)
            empty = self.compile_text("")
            library, name = str(folder / "libtorch_cpu.so"), "-Wl,-soname,libtorch_cpu.so"
            self.compiler.link_shared_object(empty, library, extra_postargs=[name], target_lang="c++")
            # Conversions of float16 from the compiler's own archive: its shared library has them since GCC 12 only.
            EXTENSION.extra_link_args += ["-lgcc", f"-L{folder}", "-Wl,--no-as-needed", "-ltorch_cpu"]
        super().build_extensions()

    def problem_with(self, text: str, arguments: list[str]) -> str:
        """The compiler's first complaint about a short program; empty if it has none."""
        return problem_of(lambda: self.compile_text(text, arguments))

    def compile_text(self, text: str, arguments: list[str] | None = None) -> list[str]:
        """Compile a short program. Returns the object files."""
        folder = Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)
        source = folder / "short.cpp"
        source.write_text(text)
        found: list[str] = self.compiler.compile([str(source)], output_dir=str(folder), extra_postargs=arguments)
        return found


def problem_of(call: Callable[[], object]) -> str:
    """The first error in what a call and the programs that it starts say, as part of a note; empty if it succeeds."""
    sys.stderr.flush()
    usual = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            call()
            return ""
        except Exception as error:
            file.seek(0)
            said = file.read()
            os.write(usual, said)
            lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
            found = (
                [line for line in lines if "error" in line.lower()] or lines or [f"{type(error).__name__}: no message"]
            )
            return found[0][:300].replace("{", "{{").replace("}", "}}")
        finally:
            sys.stderr.flush()
            os.dup2(usual, 2)
            os.close(usual)


EXTENSION = Extension(
    "knockout.ops.cpu._C",
    sorted(map(str, SOURCES.glob("*.cpp"))),
    include_dirs=[str(HEADERS)],
    depends=["setup.py", *sorted(map(str, SOURCES.glob("*.h")))],
    # The stable ABI of torch 2.10 and of Python 3.11: one build for these and all later versions.
    define_macros=[("TORCH_TARGET_VERSION", "0x020a000000000000"), ("Py_LIMITED_API", "0x030b0000")],
    extra_compile_args=COMPILE,
    extra_link_args=[f"-fsanitize={SANITIZERS}"] if SANITIZERS else [],
    language="c++",
    py_limited_api=not FREE_THREADED,
)
setup(
    ext_modules=[EXTENSION],
    cmdclass={"build_ext": Build},
    options={} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp311"}},
)
