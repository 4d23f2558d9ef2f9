"""What is mutated, which tests judge it, and which lines are skipped and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mutants.cpp import cpp_mutants
from mutants.mutant import Mutant
from mutants.python import python_mutants


@dataclass(frozen=True)
class Target:
    """A file, the tests that most of its mutants fail quickly, and all that should notice one."""

    path: str
    first: tuple[str, ...]
    then: tuple[str, ...] = ()

    @property
    def is_kernel(self) -> bool:
        return not self.path.endswith(".py")


@dataclass(frozen=True)
class Project:
    """What is mutated and tested, and where."""

    root: Path
    package: str
    copied: tuple[str, ...]  # to the trees in which the tests run
    targets: tuple[Target, ...]
    skipped: tuple[tuple[str, str], ...] = ()  # a pattern of lines that are not mutated, and why
    equivalent: Path | None = None
    patience: float = 5.0  # seconds that tests may take beyond twice their usual time

    def mutants(self) -> dict[str, tuple[Mutant, Target]]:
        """All mutants by their keys."""
        found = {}
        for target in self.targets:
            source = (self.root / target.path).read_bytes()
            for mutant in (cpp_mutants if target.is_kernel else python_mutants)(target.path, source):
                if not any(re.search(pattern, mutant.before) for pattern, _ in self.skipped):
                    found[mutant.key] = mutant, target
        return found


def _contract(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/contract/test_{name}.py" for name in names)


ROOT = Path(__file__).parents[1]
SRC = "src/knockout"
KERNELS = (
    "mutants/agreement.py",
    "tests/test_hostile_calls.py",
    "tests/test_operator_memory.py",
    "tests/test_plan.py",
    "tests/test_cpu_kernels.py",
    *_contract("opcheck"),
)
SPEED = "speed only, results do not depend on it"
SKIPPED = (
    (r"type == .mps.", "a device that the tests do not have"),
    (r"^(Gradients|Pairing|Count) = ", "a type"),
    (r"reserve\(|prefetch|[gG]rain|k(FewEntries|EntriesPerBucket|MaxBuckets)\b.* = ", SPEED),
    (r"parallel_for\([^;]*1 << 1\d, \[&\]\(int64_t begin, int64_t end\) \{$", SPEED),
)

CASES = ("tests/contract/test_agreement.py::test_the_cases_of_the_contract",)
BOOST = ("-k", "not on_the_padding_around and not in_a_transform", "tests/test_boost.py")
TENSOR_BOOST = tuple(
    f"tests/contract/test_tensor_boost.py::test_{name}"
    for name in ("the_largest_and_the_smallest", "a_tensor_is_the_number_that_it_holds")
)
META = ("tests/test_meta_device.py",)
AGREE = ("tests/contract/test_agreement.py",)
DRAWN = (
    "tests/contract/test_agreement.py::test_drawn_cases",
    "tests/contract/test_agreement.py::test_drawn_long_cases",
)


def _targets() -> tuple[Target, ...]:
    """Files with their tests: those that say something about most lines, then those that say more about some."""
    reference, autograd, csrc = f"{SRC}/ops/reference", f"{SRC}/ops/autograd", f"{SRC}/ops/cpu/csrc"
    gradients = _contract("gradients", "second_order")
    bad = (
        *_contract("bad_input"),
        *(f"tests/test_{name}.py" for name in ("nn", "quota", "relaxations", "rows", "boost")),
    )
    python = (
        Target(
            f"{SRC}/quota.py",
            ("tests/test_quota.py", *CASES),
            _contract("fraction", "counts", "values"),
        ),
        Target(
            f"{SRC}/counts.py",
            (*_contract("counts", "bad_input"), "tests/test_quota.py"),
            (*_contract("compile", "vmap"), "tests/test_nn_topk.py", "tests/test_nn_pool.py"),
        ),
        Target(
            f"{SRC}/candidates.py",
            (*_contract("masks", "invalid_rows"), *CASES, "tests/test_plan.py"),
            (*_contract("ties_and_independence", "values"), *DRAWN, "tests/test_methods.py"),
        ),
        Target(
            f"{reference}/exact.py",
            (*BOOST, *CASES, *DRAWN),
            (*_contract("vmap", "values", "ties_and_independence"), *gradients, *AGREE, "tests/test_boost.py"),
        ),
        Target(
            f"{reference}/tournament.py",
            (*CASES, *DRAWN, "tests/test_plan.py", *_contract("masks", "order_and_hard", "invalid_rows")),
            (*_contract("values", "fraction", "ties_and_independence"), *gradients, "tests/test_plot.py"),
        ),
        Target(
            f"{reference}/gather.py",
            ("tests/test_plan.py", *_contract("gather"), *CASES, *DRAWN, *_contract("invalid_rows", "masks")),
            (
                "tests/test_hostile_calls.py",
                *_contract("bad_input", "dtypes_and_shapes", "vmap", "uninitialized_memory", "ties_and_independence"),
                *gradients,
            ),
        ),
        Target(
            f"{SRC}/boost.py",
            (*BOOST, *CASES, *_contract("bad_input", "values"), *DRAWN, *TENSOR_BOOST),
            (
                *TENSOR_BOOST,
                *_contract("vmap", "ties_and_independence"),
                *gradients,
                *AGREE,
                *META,
                "tests/test_boost.py",
            ),
        ),
        Target(
            f"{SRC}/checks.py",
            (
                "-k",
                "bad or error or chunks or number or hint or counts or like or positions or empty or in_a_transform",
                *bad,
            ),
            (*bad, *_contract("dtypes_and_shapes", "vmap"), *TENSOR_BOOST),
        ),
        Target(
            f"{SRC}/plan.py",
            (*_contract("selection", "order_and_hard"), "tests/test_plan.py", *CASES, "tests/test_methods.py"),
            (
                "tests/test_relaxations.py",
                *_contract("invalid_rows", "vmap", "gather"),
                *gradients,
                "tests/test_rows.py",
            ),
        ),
        Target(
            f"{autograd}/function.py",
            (*CASES, *_contract("vmap", "vmap_gradients", "gather")),
            (*gradients, *_contract("opcheck"), "tests/test_backends.py"),
        ),
        Target(
            f"{autograd}/tournament.py",
            (
                "-k",
                "cpu or saved",
                "tests/test_cpu_kernels.py",
                *CASES,
                *_contract("vmap", "vmap_gradients", "second_order"),
            ),
            (*gradients, *_contract("opcheck"), *TENSOR_BOOST, "tests/test_backends.py", *META),
        ),
        Target(
            f"{autograd}/gather.py",
            (*_contract("gather"), *CASES, *_contract("vmap", "vmap_gradients")),
            (*gradients, *_contract("opcheck", "masks")),
        ),
    )
    kernel_tests = (
        *("-k", "cpu", *AGREE),
        *_contract("fraction", "gather", "gradients", "masks", "invalid_rows", "ties_and_independence", "vmap"),
    )
    names = sorted(path.name for path in (ROOT / csrc).glob("*.h"))
    return *python, *(Target(f"{csrc}/{name}", KERNELS, kernel_tests) for name in names)


def knockout() -> Project:
    """The core of the library."""
    copied = ("src", "tests", "conftest.py", "pyproject.toml", "mutants", "fuzz", "docs", "README.md", "setup.py")
    return Project(ROOT, "knockout", copied, _targets(), SKIPPED, ROOT / "mutants/equivalent.toml")
