"""Processes that form a group and do together what a test asks them to."""

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

GONE = object()  # the answer of a process that is no more
GROUPS: dict[int, dist.ProcessGroup] = {}  # in each process: the first so many


class Failed:
    """What a process answers when a function raised there."""

    def __init__(self, error: Exception) -> None:
        self.kind, self.text, self.trace = type(error).__name__, str(error), traceback.format_exc()

    def __repr__(self) -> str:
        return self.trace


class World:
    """So many processes; they end with the block, or with this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
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

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, function: Callable[..., Any], *args: Any, size: int | None = None) -> list[Any]:
        """What ``function(rank, *args)`` returns in the first ``size`` processes; GONE where there is none any more."""
        pipes = self._pipes[:size]
        for pipe in pipes:
            pipe.send((function, args))
        return [_received(pipe) for pipe in pipes]

    def check(self, function: Callable[..., Any], *args: Any, size: int | None = None) -> list[Any]:
        """The same; fails where it raised."""
        answers = self.run(function, *args, size=size)
        if any(each is GONE or isinstance(each, Failed) for each in answers):
            self._end()
            self._start()  # one that failed alone may have left the others waiting
            raise AssertionError(answers)
        return answers


def _received(pipe: Connection) -> Any:
    try:
        assert pipe.poll(180), "no answer within three minutes"
        return pipe.recv()[0]
    except (EOFError, ConnectionError):
        return GONE


def impatient(seconds: float) -> dist.ProcessGroup:
    """A group of all processes with a timeout; they are all here when it is made, however busy the machine is."""
    group: dist.ProcessGroup = dist.new_group(timeout=timedelta(seconds=seconds))
    dist.barrier()
    dist.barrier(group)
    dist.barrier()
    return group


def _serve(pipe: Connection, folder: str, rank: int, size: int) -> None:
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    patience = timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{folder}/meeting", world_size=size, rank=rank, timeout=patience)
    for count in range(1, size + 1):
        GROUPS[count] = dist.new_group(list(range(count)), timeout=patience)
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:  # whoever asked is gone
            os._exit(0)
        try:
            pipe.send((function(rank, *args),))
        except Exception as error:
            pipe.send((Failed(error),))
