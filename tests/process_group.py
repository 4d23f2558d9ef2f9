"""Worker processes that form a process group, and run functions of the tests together."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

MAX_RANKS = 4  # processes that the tests share
# The processes are forked from a server that has imported these: that takes seconds. Nothing of the library, which the
# server could find elsewhere than the process of the tests.
PRELOAD = ["torch", "torch._dynamo", "torch.distributed.tensor", "hypothesis", "pytest"]
DEAD = object()  # the answer of a process that has died
GROUPS: dict[int, dist.ProcessGroup] = {}  # in each worker: the group of the first n workers, by n


class Failure:
    """The answer of a process in which the function raised an error."""

    def __init__(self, error: Exception) -> None:
        self.kind, self.text, self.trace = type(error).__name__, str(error), traceback.format_exc()

    def __repr__(self) -> str:
        return self.trace


class Workers:
    """``size`` processes, which end with the ``with`` block, or with this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)  # no effect if another test has started the server
        self._folder = tempfile.TemporaryDirectory()
        self._pipes, self._processes = [], []
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            args = theirs, self._folder.name, rank, self.size
            process = context.Process(target=_serve, args=args, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, function: Callable[..., Any], *args: Any, size: int | None = None) -> list[Any]:
        """The results of ``function(rank, *args)`` in the first ``size`` processes: a Failure where it raised an error,
        DEAD for a process that has died."""
        pipes = self._pipes[:size]
        for pipe in pipes:
            pipe.send((function, args))
        return [_receive(pipe) for pipe in pipes]

    def check(self, function: Callable[..., Any], *args: Any, size: int | None = None) -> list[Any]:
        """The same, but raise an AssertionError if the function failed in a process."""
        answers = self.run(function, *args, size=size)
        if any(each is DEAD or isinstance(each, Failure) for each in answers):
            self._end()
            self._start()  # other processes may still wait for the one that failed
            raise AssertionError(answers)
        return answers


def _receive(pipe: Connection) -> Any:
    try:
        assert pipe.poll(180), "no answer within three minutes"
        return pipe.recv()[0]
    except (EOFError, ConnectionError):
        return DEAD


def group_with_timeout(seconds: float) -> dist.ProcessGroup:
    """A group of all processes with this timeout. It starts to count when all of them have joined."""
    group: dist.ProcessGroup = dist.new_group(timeout=timedelta(seconds=seconds))
    dist.barrier()
    dist.barrier(group)
    dist.barrier()
    return group


def _serve(pipe: Connection, folder: str, rank: int, size: int) -> None:
    """Run in a worker: answer requests until the process of the tests has ended."""
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{folder}/meeting", world_size=size, rank=rank, timeout=timeout)
    for count in range(1, size + 1):
        GROUPS[count] = dist.new_group(list(range(count)), timeout=timeout)
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            pipe.send((function(rank, *args),))
        except Exception as error:
            pipe.send((Failure(error),))
