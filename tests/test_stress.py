"""Many threads and forked processes at once: every result has the bits that it has alone.

And threads that change the inputs of a call while it runs: what comes out is unspecified, but the process survives.
Each test runs in a process of its own, which must end by itself with exit code 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset

import knockout
from knockout.backends import NAMES, available, force
from knockout.ops.choice import choose
from tests.cases import INF, NAN, ROOT, randn

# Of stress. Hundreds of calls; a race that is lost more rarely is for the slow tests.
SECONDS = pytest.mark.parametrize("seconds", [0.5, pytest.param(10.0, marks=pytest.mark.slow)])


def in_a_process(function: Callable[..., None], *arguments: str | float, backend: str = "auto") -> None:
    """Run a function of this module in a new process."""
    code = f"from tests import test_stress; test_stress.{function.__name__}(*{arguments})"
    process = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={**os.environ, "KNOCKOUT_BACKEND": backend},
    )  # fmt: skip
    assert process.returncode == 0, f"exit code {process.returncode}\n{process.stderr[-3000:]}"


class Threads:
    """Threads that repeat their work until the block ends; the first error of any of them is raised there."""

    def __init__(self, *works: Callable[[], object]) -> None:
        self.stop, self.errors = threading.Event(), list[BaseException]()
        self.threads = [threading.Thread(target=self.repeat, args=(work,), daemon=True) for work in works]

    def repeat(self, work: Callable[[], object]) -> None:
        try:
            while not self.stop.is_set():
                work()
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self) -> Threads:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()
        if self.errors:
            raise self.errors[0]


# --- the same bits as alone -----------------------------------------------------------------------

JOBS: list[tuple[tuple[int, ...], int, float, torch.dtype]] = [
    ((), 40, 3, torch.float32),
    ((5,), 300, 16, torch.float64),
    ((2, 3), 1000, 0.1, torch.float32),
    ((3,), 700, 64, torch.bfloat16),
    ((), 70_000, 32, torch.float32),
]


def run(number: int) -> list[Tensor]:
    """A selection, what it selects, and all gradients."""
    batch, n, k, dtype = JOBS[number]
    values = randn(*batch, n, 5, seed=number).to(dtype).requires_grad_()
    scores = randn(*batch, n, seed=number + 1).to(dtype).requires_grad_()
    out = knockout.topk(values, scores, k, 1.0, mask=randn(n, seed=number + 2) > -1.0)
    gradients = torch.autograd.grad((out.values, out.scores), (values, scores), (out.values * 0.5, out.scores * 0.5))
    return [*(each.detach() for each in out), *gradients]


def results_alone() -> list[list[list[Tensor]]]:
    """The results of each job, by each of the backends that take CPU tensors."""
    results = []
    for number in range(len(JOBS)):
        results.append(list[list[Tensor]]())
        for name in ("reference", "cpu"):
            with force(name):
                results[-1].append(run(number))
    return results


def check(number: int, found: list[Tensor], expected: list[list[list[Tensor]]]) -> None:
    """All of a result has the bits of one and the same backend."""
    if not any(all(map(torch.equal, found, alone)) for alone in expected[number]):
        raise AssertionError(f"job {number} differs from what it gives alone")


class InWorkers(Dataset[list[Any]]):
    """The results of the jobs, computed in the worker processes of a data loader."""

    def __len__(self) -> int:
        return len(JOBS)

    def __getitem__(self, number: int) -> list[Any]:
        return [each.float().numpy() for each in run(number)]


def everything_at_once(seconds: float) -> None:
    torch.set_num_threads(2)
    expected, other, loaded = results_alone(), torch.zeros(10_000), 0
    in_float = [[[each.float() for each in alone] for alone in some] for some in expected]

    def jobs() -> None:
        for number in range(len(JOBS)):
            check(number, run(number), expected)

    def change_other_tensors() -> None:
        other.add_(1.0).mul_(0.5)
        torch.full((5000,), NAN).fill_(0.0)  # memory that others were just given back

    def force_in_and_out() -> None:
        for name in ("reference", "auto", "cpu"):
            with force(name):
                run(0)

    end = time.monotonic() + seconds
    with Threads(jobs, jobs, change_other_tensors, force_in_and_out):
        while time.monotonic() < end or loaded == 0:
            loader = DataLoader(InWorkers(), None, num_workers=2, multiprocessing_context="fork", timeout=60)
            for number, found in enumerate(loader):
                check(number, list(map(torch.as_tensor, found)), in_float)
                loaded += 1
    assert available()[:2] == ["reference", "cpu"]


@SECONDS
def test_threads_and_forked_workers_get_what_one_call_gets_alone(seconds: float) -> None:
    in_a_process(everything_at_once, seconds)


def forcing(seconds: float) -> None:
    sys.setswitchinterval(1e-6)
    scores = torch.zeros(1)

    def repeat(name: str) -> Callable[[], None]:
        def work() -> None:
            with force(name):
                assert choose(scores) in NAMES

        return work

    with Threads(*map(repeat, ("reference", "auto", "cpu", "auto"))):
        time.sleep(seconds)
    assert available()[:2] == ["reference", "cpu"]


@SECONDS
def test_backends_forced_by_many_threads(seconds: float) -> None:
    in_a_process(forcing, seconds)


# --- inputs that change during the call -----------------------------------------------------------


def numbers(like: Tensor, *special: float) -> list[Tensor]:
    """What another thread may write into a tensor: of any size, in any order, ties, and these special ones."""
    shape = like.shape
    found = [randn(*shape), randn(*shape, seed=1), torch.zeros(shape), torch.arange(like.numel()).view(shape)]
    found += [torch.where(randn(*shape, seed=2) < 0.0, randn(*shape), each) for each in special]
    return [each.to(like.dtype) for each in found]


def indices(like: Tensor) -> list[Tensor]:
    """Members that another thread may write: of any candidate, padding, and far out of range."""
    found = [
        torch.randint(0, 2000, like.shape),
        torch.full(like.shape, 2000),
        torch.randint(-(2**31), 2**31, like.shape),
    ]
    return [each.to(like.dtype) for each in found]


def changing(tensor: Tensor, contents: list[Tensor]) -> Callable[[], None]:
    """Work of a thread that writes all of this into a tensor. By ``data``, which autograd does not notice."""
    alias = tensor.data

    def work() -> None:
        for each in contents:
            alias.copy_(each)

    return work


def drifting(tensor: Tensor) -> Callable[[], None]:
    """Work of a thread that changes all numbers of a tensor by a little."""
    alias, steps = tensor.data, [0.01 * randn(*tensor.shape, seed=seed).to(tensor.dtype) for seed in range(8)]

    def work() -> None:
        for each in steps:
            alias.add_(each)
        for each in steps:
            alias.sub_(each)

    return work


def race(name: str, seconds: float) -> None:
    """Call the operators while threads change their inputs."""
    sys.setswitchinterval(1e-5)  # or the calls would mostly wait for the other threads
    scores, mask = randn(2000).float().requires_grad_(), randn(2000) > 0.0
    values, gradient = randn(2000, 8).float().requires_grad_(), torch.ones(64, 8)
    used = mask if name == "mask" else None
    picked = knockout.select(scores, 64)
    member, weight, valid = picked._plan.member, picked._plan.weight, picked._plan.valid  # type: ignore[attr-defined]

    def all_of_it() -> None:
        for _ in range(20):
            knockout.select(scores.detach(), 64, mask=used)
        out = knockout.topk(values, scores, 64, mask=used)
        torch.autograd.grad((out.values, out.scores), (values, scores), (gradient, gradient[..., 0]))

    def apply() -> None:
        out = picked.apply(values)
        torch.autograd.grad(out, (values, weight), gradient)
        tree_map(torch.detach, picked).apply(values)

    changes: dict[str, list[Callable[[], None]]] = {
        "scores": [drifting(scores), drifting(scores)],
        "special scores": [changing(scores, numbers(scores, -INF, NAN)), drifting(scores)],
        "mask": [changing(mask, [each > 0 for each in numbers(scores)])] * 2,
        "values": [changing(values, numbers(values, -INF, NAN))],
        "gradient": [changing(gradient, numbers(gradient, -INF, NAN))],
        "weight": [changing(weight, numbers(weight, -INF, NAN)), changing(valid, [valid.clone(), ~valid])],
        "member": [changing(member, indices(member))] * 2,
    }
    work = apply if name in ("weight", "member") else all_of_it
    work()  # the first backward pass imports much
    end = time.monotonic() + seconds
    with Threads(*changes[name]):
        while time.monotonic() < end:
            with suppress(RuntimeError, IndexError):  # an index out of range, say
                work()


@SECONDS
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, "cpu") for name in ("scores", "special scores", "mask", "values", "gradient", "weight", "member")),
        *((name, "reference") for name in ("scores", "member")),
    ],
)
def test_inputs_that_another_thread_changes_do_not_end_the_process(name: str, backend: str, seconds: float) -> None:
    in_a_process(race, name, seconds, backend=backend)
