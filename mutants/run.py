"""All mutants by several workers, with a journal: a run that was stopped continues."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from mutants import kernels
from mutants.child import Outcome, run_tests
from mutants.mutant import Mutant
from mutants.targets import Project, Target
from mutants.tree import Tree

Work = tuple[Mutant, Target]


class FailingTestsError(Exception):
    """The tests fail without any mutant."""


class Journal:
    """Outcomes by the keys of mutants, in a file of JSON lines that is only ever appended to. The last one counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, Outcome] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_text().splitlines() if path.exists() else []:
            with suppress(ValueError):  # a line that was being written when the run was killed
                key, *outcome = json.loads(line)
                self.outcomes[key] = Outcome(*outcome)

    def append(self, key: str, outcome: Outcome) -> None:
        whole = not self.path.exists() or self.path.read_bytes()[-1:] in (b"", b"\n")
        with self.path.open("a") as file:
            file.write(("" if whole else "\n") + json.dumps([key, *outcome]) + "\n")
        self.outcomes[key] = outcome


class Runner:
    """Workers, each with a tree of its own."""

    def __init__(self, project: Project, folder: Path, only_first: bool = False) -> None:
        self.project, self.folder, self.only_first = project, folder, only_first
        self._trees: SimpleQueue[Tree] = SimpleQueue()
        self._lock = Lock()
        self._has_kernels = any(target.is_kernel for target in project.targets)
        self._seconds: dict[tuple[tuple[str, ...], int], float] = {}  # of tests without a mutant

    def run(self, work: Iterable[Work], workers: int, done: Callable[[Mutant, Outcome], None]) -> None:
        """Judge mutants, and say what became of each."""
        # Before the first process is forked: they inherit it.
        os.environ |= {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        # The kernels of the checkout may be older than its sources.
        self._original = self._tree("original")
        if self._has_kernels and (message := kernels.build(self._original.folder)):
            raise FailingTestsError(f"the kernels cannot be compiled: {message}")
        for i in range(workers):
            self._trees.put(self._tree(f"tree{i}"))
        with ThreadPoolExecutor(workers) as pool:
            futures = {pool.submit(self._judge, mutant, target): mutant for mutant, target in work}
            try:
                for future in as_completed(futures):
                    done(futures[future], future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _tree(self, name: str) -> Tree:
        return Tree(self.project.root, self.folder / name, self.project.copied)

    def _judge(self, mutant: Mutant, target: Target) -> Outcome:
        tree = self._trees.get()
        try:
            if self._has_kernels and not target.is_kernel:
                kernels.copy(self._original.folder, tree.folder)
            return self._outcome(tree, mutant, target)
        finally:
            self._trees.put(tree)

    def _outcome(self, tree: Tree, mutant: Mutant, target: Target) -> Outcome:
        seconds = 0.0
        with tree.changed(mutant):
            if target.is_kernel and (message := kernels.build(tree.folder)):
                return Outcome("broken", message)
            for tests, examples in ((target.first, 30), (target.then, 100)):
                if not tests:
                    continue
                limit = self._limit(tests, examples)
                outcome = run_tests(tree.folder, self.project.package, tests, examples, limit)
                seconds += outcome.seconds
                if outcome.status != "passed":
                    return outcome._replace(seconds=seconds)
                if self.only_first:
                    return Outcome("survived", "the first tests", seconds)
            if target.is_kernel and (message := kernels.check(tree.folder)):
                return Outcome("killed", message, seconds)
        return Outcome("survived", "", seconds)

    def _limit(self, tests: tuple[str, ...], examples: int) -> float:
        """The time that tests may take, from how long they take without a mutant."""
        with self._lock:
            folder = self._original.folder
            if (tests, examples) not in self._seconds:
                outcome = run_tests(folder, self.project.package, tests, examples, 3600.0)
                if outcome.status != "passed":
                    why = outcome.by or outcome.status
                    raise FailingTestsError(f"the tests fail without any mutant: {why}; see {folder / 'log.txt'}")
                self._seconds[tests, examples] = outcome.seconds
            return self.project.patience + 2.0 * self._seconds[tests, examples]
