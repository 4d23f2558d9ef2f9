"""Run numbered cases in worker processes that may crash or hang.

The process that calls ``watch`` has imported everything and started no thread. Workers are forked from it, which takes
milliseconds, so that even code that crashes all the time is tested quickly. A worker notes in shared memory which case
it is about to run.
"""

from __future__ import annotations

import faulthandler
import mmap
import multiprocessing
import os
import resource
import signal
import struct
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, NamedTuple

Sources = Mapping[str, Callable[[int], str]]  # by name: run the case with this number, and say what it did

NOTE = struct.Struct("qd")  # the number of a case, and when it began
REPORT_LINES = 60
MEMORY = 4 << 30  # bytes that a worker may use


class Task(NamedTuple):
    """Cases that one worker runs in a row."""

    source: str
    numbers: range


class Done(NamedTuple):
    """A task is done: what its cases did, and how long they took."""

    source: str
    counts: Counter[str]
    seconds: float


class Failure(NamedTuple):
    """A case that went wrong: an exception, a crash or a hang."""

    source: str
    number: int
    what: str  # in one line
    report: str  # the traceback, or what the worker wrote last


class Worker:
    """A forked process, and its task."""

    def __init__(self, sources: Sources) -> None:
        context = multiprocessing.get_context("fork")
        self.note = mmap.mmap(-1, NOTE.size)
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, it is open as long as the worker lives
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_work, args=(sources, other, self.note, self.log.fileno()), daemon=True)
        self.process.start()
        other.close()
        self.task: Task | None = None
        self.began = 0.0
        self.failed = 0  # the number of the case that has ended it

    def give(self, task: Task) -> None:
        """Give it a task; it must have none."""
        self.task, self.began = task, time.monotonic()
        NOTE.pack_into(self.note, 0, task.numbers.start, self.began)
        self.connection.send(task)

    def current(self) -> tuple[int, float]:
        """The number of the case that it runs, and for how long it has run it."""
        number, start = NOTE.unpack_from(self.note)
        return number, time.monotonic() - start

    def memory(self) -> int:
        """Bytes of memory that it uses."""
        try:
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()
        except OSError:
            return 0  # it has just ended, or the system is not Linux

    def stop(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.join()
        self.connection.close()

    def report(self) -> str:
        """The last lines that it wrote."""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").splitlines()
        # The report of a sanitizer begins with what went wrong; a Python traceback ends with it.
        first = next((i for i, line in enumerate(lines) if "ERROR: " in line or "runtime error:" in line), None)
        return "\n".join(lines[-REPORT_LINES:] if first is None else lines[first : first + REPORT_LINES])


def watch(sources: Sources, tasks: Iterator[Task], workers: int = 1, limit: float = 20.0) -> Iterator[Done | Failure]:
    """Run tasks in so many workers, until there are no more. A case may take ``limit`` seconds.

    A worker that dies, or is killed because it hangs, is replaced, and its task goes on behind the case that failed.
    """
    running: list[Worker] = []
    left: list[Task] = []  # parts of tasks whose worker has died

    def next_task() -> Task | None:
        return left.pop() if left else next(tasks, None)

    try:
        for _ in range(workers):
            if (task := next_task()) is not None:
                running.append(Worker(sources))
                running[-1].give(task)
        while running:
            wait([each.connection for each in running], timeout=0.2)
            for place, worker in reversed(list(enumerate(running))):
                if not (yield from _news(worker, limit)):
                    continue
                if not worker.process.is_alive():
                    left.extend(_rest(worker))
                if (task := next_task()) is None:
                    worker.stop()
                    del running[place]
                    continue
                if not worker.process.is_alive():
                    worker.stop()
                    worker = running[place] = Worker(sources)
                worker.give(task)
    finally:
        for each in running:
            each.stop()


def _news(worker: Worker, limit: float) -> Generator[Done | Failure, None, bool]:
    """Yield what a worker reports; returns whether its task is over: done, or the worker has died."""
    try:
        while worker.connection.poll():
            news = worker.connection.recv()
            yield news
            if isinstance(news, Done):
                return True
    except (EOFError, OSError):
        worker.process.join()
        number, _ = worker.current()
        code = worker.process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"died with exit code {code}"
        yield from _cut_short(worker, number, how)
        return True
    number, seconds = worker.current()
    if seconds > limit:
        what = f"still running after {limit:.0f} s"
        os.kill(worker.process.pid or 0, signal.SIGUSR1)  # it writes where it is
        time.sleep(0.5)
    elif worker.memory() > MEMORY:
        what = f"more than {MEMORY >> 30} GiB of memory"
    else:
        return False
    worker.process.kill()
    worker.process.join()
    yield from _cut_short(worker, number, what)
    return True


def _cut_short(worker: Worker, number: int, what: str) -> Iterator[Done | Failure]:
    """What is known of the task of a worker that is dead."""
    assert worker.task is not None
    source, numbers = worker.task
    worker.failed = number
    yield Done(source, Counter({"before a crash": number - numbers.start}), time.monotonic() - worker.began)
    yield Failure(source, number, what, worker.report())


def _rest(worker: Worker) -> Iterator[Task]:
    """What a dead worker had still to do."""
    assert worker.task is not None
    numbers = range(worker.failed + 1, worker.task.numbers.stop)
    if numbers:
        yield Task(worker.task.source, numbers)


def limit_memory() -> bool:
    """Limit the memory of this process, unless AddressSanitizer does, by its options: it reserves all addresses.

    Returns whether AddressSanitizer is there.
    """
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        return True
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    return False


def _work(sources: Sources, connection: Connection, note: mmap.mmap, log: int) -> None:
    """The worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that is for the process that watches
    os.dup2(log, 1)
    os.dup2(log, 2)
    if not limit_memory():
        faulthandler.enable(2)  # AddressSanitizer reports crashes itself
    faulthandler.register(signal.SIGUSR1, 2)
    while True:
        try:
            source, numbers = connection.recv()
        except EOFError:
            return  # the process that watches has gone
        counts: Counter[str] = Counter()
        start = time.monotonic()
        for number in numbers:
            NOTE.pack_into(note, 0, number, time.monotonic())
            try:
                counts[sources[source](number)] += 1
            except Exception as error:
                first_line = (str(error).splitlines() or [""])[0]
                what = f"{type(error).__name__}: {first_line}"
                connection.send(Failure(source, number, what, traceback.format_exc()))
        connection.send(Done(source, counts, time.monotonic() - start))
