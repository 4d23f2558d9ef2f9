"""Cost: seconds forward and with backward, and memory, of every method over n and k.

First every method is tried in a process of its own, under a limit of time and of memory, and its memory is taken; then
those that kept within the limits take turns in this one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from knockout import methods
from knockout.eval.arena.contestants import CONTESTANTS, Contestant
from knockout.eval.clock import timed
from knockout.eval.journal import Rows

BATCH, D = 16, 32
HARD = "hard"
WITHIN, TIME, MEMORY = "within limits", "time", "memory"
READY = "ready"
EVERYBODY = {
    HARD: Contestant(lambda scores, k, _: methods.hard(scores, k), "", (), 1.0),
    **CONTESTANTS,
}


def inputs(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Values (16, n, 32) and scores (16, n), both to be learned."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(BATCH, n, D, generator=generator) * 2 - 1
    return values.requires_grad_(), torch.rand(BATCH, n, generator=generator).requires_grad_()


def forward(name: str, values: Tensor, scores: Tensor, k: int) -> Tensor:
    """k rows a batch."""
    contestant = EVERYBODY[name]
    return contestant.at(contestant.default)(scores, k).apply(values)


def both(name: str, values: Tensor, scores: Tensor, k: int) -> None:
    """And the gradients of values and scores."""
    values.grad = scores.grad = None
    forward(name, values, scores, k).sum().backward()


def measure(n: int, k: int, seed: int, seconds: float, mebibytes: float, patience: float) -> Rows:
    """One cell, a row a method. ``patience``: seconds for a method, once it has had three turns."""
    trials = Trials()
    try:
        tried = {name: trials.ask(name, n, k, seed, seconds, mebibytes) for name in EVERYBODY}
    finally:
        trials.end()
    values, scores = inputs(n, seed)
    able = [name for name, trial in tried.items() if trial["status"] == WITHIN]
    taken: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in able}
    for turn in range(200):
        for name in able:
            alone, whole = taken[name]
            if turn < (3 if tried[name]["seconds"] < patience else 1) or sum(alone) + sum(whole) < patience:
                with torch.no_grad():
                    alone.append(timed(values.device, forward, name, values, scores, k)[1])
                whole.append(timed(values.device, both, name, values, scores, k)[1])
    return [
        {
            "method": name, "n": n, "k": k, "status": trial["status"],
            "seconds": statistics.median(taken[name][0]) if name in taken else None,
            "seconds_with_backward": statistics.median(taken[name][1]) if name in taken else None,
            "mebibytes": trial["mebibytes"],
        }
        for name, trial in tried.items()
    ]  # fmt: skip


class Trials:
    """A process that tries one method after the other, and is replaced when it had to be stopped."""

    def __init__(self) -> None:
        self._process: Any = None

    def ask(self, name: str, n: int, k: int, seed: int, seconds: float, mebibytes: float) -> dict[str, Any]:
        """Whether a method keeps within the limits, the time of its second call, and the memory of a call."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._ours, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, torch.get_num_threads()), daemon=True)
            with _returning_memory():
                self._process.start()
            theirs.close()
            self._ours.recv()  # it is up
        self._ours.send((name, n, k, seed, mebibytes))
        try:
            answer = self._ours.recv()
            if answer == READY:  # it has set up what is set up once, and begins
                answer = self._ours.recv() if self._ours.poll(2.0 * seconds + 1.0) else None
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode
            self.end()
            if code != -signal.SIGKILL:  # by which Linux stops who takes too much
                raise RuntimeError(f"the process that tried {name!r} with n = {n}, k = {k} ended with {code}") from None
            return {"status": MEMORY, "seconds": None, "mebibytes": None}
        if answer is None:
            self.end()
            return {"status": TIME, "seconds": None, "mebibytes": None}
        if "failed" in answer:
            raise RuntimeError(f"{name!r} failed with n = {n}, k = {k}: {answer['failed']}")
        late = answer["status"] == WITHIN and answer["seconds"] > seconds
        return {**answer, "status": TIME} if late else dict(answer)

    def end(self) -> None:
        """Stop it, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._ours.close()
            self._process = None


@contextmanager
def _returning_memory() -> Iterator[None]:
    """Processes started here give back what they free, so that what one method leaves does not serve the next."""
    name, before = "MALLOC_MMAP_THRESHOLD_", os.environ.get("MALLOC_MMAP_THRESHOLD_")
    os.environ[name] = "65536"
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else os.environ.update({name: before})


def _serve(asked: Connection, threads: int) -> None:
    torch.set_num_threads(threads)
    asked.send("up")
    with suppress(EOFError):
        while True:
            question = asked.recv()
            try:
                both(question[0], *inputs(64, 0), 4)
                asked.send(READY)
                answer = _try(*question)
            except Exception as error:
                answer = {"failed": f"{type(error).__name__}: {error}"}
            asked.send(answer)


def _try(name: str, n: int, k: int, seed: int, mebibytes: float) -> dict[str, Any]:
    values, scores = inputs(n, seed)
    before = _status("VmRSS", reset=True)
    try:
        with _Limit(mebibytes):
            both(name, values, scores, k)
            used = max(0.0, _status("VmHWM") - before)
            spent = timed(values.device, both, name, values, scores, k)[1]
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
            raise
        return {"status": MEMORY, "seconds": None, "mebibytes": None}
    return {"status": WITHIN, "seconds": spent, "mebibytes": used}


def _status(field: str, reset: bool = False) -> float:
    """What Linux says of this process, in MiB; elsewhere 0, and nothing is known of memory."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    if reset:
        with suppress(OSError):  # where that is not allowed, peaks are those of all so far
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(field)) / 1024


class _Limit:
    """So many MiB more than there are now, and no further."""

    def __init__(self, mebibytes: float) -> None:
        self.bytes = int((_status("VmSize") + mebibytes) * 2**20)

    def __enter__(self) -> None:
        if sys.platform == "linux":
            import resource

            _, self.hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (self.bytes, self.hard))

    def __exit__(self, *_: object) -> None:
        if sys.platform == "linux":
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (self.hard, self.hard))
