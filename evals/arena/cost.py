"""Cost: seconds forward and with backward, and memory, of every method over n and k.

Every method is tried first in another process, under limits of time and memory, where its memory is measured. Those
that stay within the limits are then timed in this process, interleaved.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from evals.arena.methods import METHODS, Method
from harness.journal import Rows
from harness.memory import limited, peak_resident, reset_peak_resident
from harness.timing import median, timed
from knockout import methods

BATCH, D = 16, 32
MEBIBYTE = 2**20
HARD = "hard"
WITHIN, TIME, MEMORY = "within limits", "time", "memory"  # the outcome of a trial: the limit that was exceeded, if any
READY = "ready"
MEASURED = {HARD: Method(lambda scores, k, _: methods.hard(scores, k), "", (), 1.0), **METHODS}


def inputs(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw values (16, n, 32) and scores (16, n), both with gradients."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(BATCH, n, D, generator=generator) * 2 - 1
    return values.requires_grad_(), torch.rand(BATCH, n, generator=generator).requires_grad_()


def forward(name: str, values: Tensor, scores: Tensor, k: int) -> Tensor:
    """Select k value rows per batch entry."""
    method = MEASURED[name]
    return method.at(method.default)(scores, k).apply(values)


def forward_and_backward(name: str, values: Tensor, scores: Tensor, k: int) -> None:
    """Select, and compute the gradients of values and scores."""
    values.grad = scores.grad = None
    forward(name, values, scores, k).sum().backward()


def measure(n: int, k: int, seed: int, seconds: float, mebibytes: float, patience: float) -> Rows:
    """Measure one cell, a row per method. ``patience``: seconds for a method after its first three calls."""
    process = TrialProcess()
    try:
        tried = {name: process.try_method(name, n, k, seed, seconds, mebibytes) for name in MEASURED}
    finally:
        process.stop()
    values, scores = inputs(n, seed)
    within = [name for name, trial in tried.items() if trial["status"] == WITHIN]
    taken: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in within}
    for turn in range(200):
        for name in within:
            alone, both = taken[name]
            if turn < (3 if tried[name]["seconds"] < patience else 1) or sum(alone) + sum(both) < patience:
                with torch.no_grad():
                    alone.append(timed(values.device, forward, name, values, scores, k)[1])
                both.append(timed(values.device, forward_and_backward, name, values, scores, k)[1])
    return [
        {
            "method": name, "n": n, "k": k, "status": trial["status"],
            "seconds": median(taken[name][0]) if name in taken else None,
            "seconds_with_backward": median(taken[name][1]) if name in taken else None,
            "mebibytes": trial["mebibytes"],
        }
        for name, trial in tried.items()
    ]  # fmt: skip


class TrialProcess:
    """A process that tries one method after the other, and is replaced after it had to be killed."""

    def __init__(self) -> None:
        self._process: Any = None

    def try_method(self, name: str, n: int, k: int, seed: int, seconds: float, mebibytes: float) -> dict[str, Any]:
        """Return whether a method stays within the limits, the time of its second call, and the memory of a call."""
        if self._process is None:
            self._start()
        self._connection.send((name, n, k, seed, mebibytes))
        try:
            answer = self._connection.recv()
            if answer == READY:  # one-time setup is done, the time starts
                answer = self._connection.recv() if self._connection.poll(2.0 * seconds + 1.0) else None
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode
            self.stop()
            if code != -signal.SIGKILL:  # Linux kills processes with it when memory runs out
                raise RuntimeError(f"the process that tried {name!r} with n = {n}, k = {k} ended with {code}") from None
            return {"status": MEMORY, "seconds": None, "mebibytes": None}
        if answer is None:
            self.stop()
            return {"status": TIME, "seconds": None, "mebibytes": None}
        if "failed" in answer:
            raise RuntimeError(f"{name!r} failed with n = {n}, k = {k}: {answer['failed']}")
        late = answer["status"] == WITHIN and answer["seconds"] > seconds
        return {**answer, "status": TIME} if late else dict(answer)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_answer_trials, args=(other, torch.get_num_threads()), daemon=True)
        with _memory_returned_when_freed():
            self._process.start()
        other.close()
        self._connection.recv()  # it has started

    def stop(self) -> None:
        """Kill the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None


@contextmanager
def _memory_returned_when_freed() -> Iterator[None]:
    """Make processes started here return freed memory to the system: what one method leaves must not serve another."""
    name, before = "MALLOC_MMAP_THRESHOLD_", os.environ.get("MALLOC_MMAP_THRESHOLD_")
    os.environ[name] = "65536"
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else os.environ.update({name: before})


def _answer_trials(requests: Connection, threads: int) -> None:
    torch.set_num_threads(threads)
    requests.send("started")
    with suppress(EOFError):
        while True:
            request = requests.recv()
            try:
                forward_and_backward(request[0], *inputs(64, 0), 4)
                requests.send(READY)
                answer = _try(*request)
            except Exception as error:
                answer = {"failed": f"{type(error).__name__}: {error}"}
            requests.send(answer)


def _try(name: str, n: int, k: int, seed: int, mebibytes: float) -> dict[str, Any]:
    values, scores = inputs(n, seed)
    before = reset_peak_resident()
    try:
        with limited(int(mebibytes * MEBIBYTE)):
            forward_and_backward(name, values, scores, k)
            used = max(0.0, (peak_resident() - before) / MEBIBYTE)
            spent = timed(values.device, forward_and_backward, name, values, scores, k)[1]
    except (RuntimeError, MemoryError, SystemError) as error:  # the last one by the interpreter itself
        if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
            raise
        return {"status": MEMORY, "seconds": None, "mebibytes": None}
    return {"status": WITHIN, "seconds": spent, "mebibytes": used}
