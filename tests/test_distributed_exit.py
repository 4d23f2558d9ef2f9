"""The end of a process group while results are still held: they do not keep the group alive, and the process ends well.

A group that is kept beyond ``destroy_process_group`` still runs its threads when Python ends, and a thread that then
frees a tensor aborts the process. That happens now and then, in jobs; that the group is gone can be tested every time.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch.distributed as dist

from knockout import distributed
from knockout.distributed.owner import RowOwner
from knockout.distributed.pruning import MIN_CANDIDATES
from knockout.distributed.ranks import Ranks
from tests.cases import randn


def start_group() -> ref[dist.ProcessGroup]:
    """Start a group of this process alone."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    assert dist.group.WORLD is not None
    return ref(dist.group.WORLD)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[ref[dist.ProcessGroup]]:
    """A group, without a garbage collector that could free it by chance."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    gc.disable()
    try:
        yield start_group()
    finally:
        gc.enable()
        if dist.is_initialized():
            dist.destroy_process_group()


def topk(n: int = 20, **settings: Any) -> Any:
    return distributed.topk(randn(n, 3).requires_grad_(), randn(n).requires_grad_(), 4, **settings)


def after_backward(**settings: Any) -> Any:
    out = topk(**settings)
    (out.values.sum() + out.scores.sum()).backward(retain_graph=True)
    return out


def selection(**settings: Any) -> Any:
    picked = distributed.select(randn(20).requires_grad_(), 4, **settings)
    return picked, picked.apply(randn(20, 3)), picked.scores, picked.mass(), picked.perplexity()


def failed_calls(**settings: Any) -> Any:
    picked = distributed.select(randn(20), 4, **settings)
    with suppress(ValueError):
        topk(order="random", **settings)
    with suppress(ValueError):
        picked.apply(randn(21, 3))
    return picked


def failed_tournament(**settings: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch, suppress(TypeError):
        patch.setattr(RowOwner, "play", None)
        topk(**settings)
    return topk(**settings)


RESULTS: dict[str, Callable[..., Any]] = {
    "values and scores": topk,
    "without gradients": lambda **settings: distributed.topk(randn(20, 3), randn(20), 4, **settings),
    "sharded slots": lambda **settings: topk(slots="sharded", **settings),
    "pruned candidates": lambda **settings: topk(MIN_CANDIDATES, **settings),
    "after a backward pass": after_backward,
    "a selection": selection,
    "failed calls": failed_calls,
    "a failed tournament": failed_tournament,
}


@pytest.mark.parametrize("of_all", [True, False])
@pytest.mark.parametrize("what", RESULTS)
def test_results_do_not_keep_a_destroyed_group(group: ref[dist.ProcessGroup], what: str, of_all: bool) -> None:
    other = dist.new_group()
    groups = [group, ref(other)]
    result = RESULTS[what](group=None if of_all else other)
    del other
    dist.destroy_process_group()
    assert [each() for each in groups] == [None, None]
    assert result is not None


USES: dict[str, Callable[[Any, Any], Any]] = {
    "backward": lambda out, _: out.values.sum().backward(),
    "backward of scores": lambda out, _: out.scores.sum().backward(),
    "apply": lambda _, picked: picked.apply(randn(20, 3)),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("slots", ["replicated", "sharded"])
@pytest.mark.parametrize("then", ["nothing", "the group is held", "another group has its name"])
def test_the_use_of_a_result_of_a_destroyed_group_is_an_error(
    group: ref[dist.ProcessGroup], use: str, slots: Any, then: str
) -> None:
    out, picked = topk(slots=slots), distributed.select(randn(20), 4, slots=slots)
    held = group()
    assert held is not None
    name = held.group_name
    if then == "nothing":
        del held
    dist.destroy_process_group()
    if then == "another group has its name":
        other = start_group()()
        assert other is not None
        assert other.group_name == name
    with pytest.raises(RuntimeError, match=r"process group of this result of knockout.distributed no longer exists"):
        USES[use](out, picked)


def test_calls_are_numbered_anew_in_a_group_of_the_same_name(group: ref[dist.ProcessGroup]) -> None:
    """Other ranks of the new group may be new processes, which count from 1."""
    topk()
    before = Ranks(None).next_call_number()
    dist.destroy_process_group()
    start_group()
    assert (before, Ranks(None).next_call_number()) == (3, 1)
    assert group() is None


def run_job(ranks: int) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    job = Path(__file__).with_name("distributed_exit_job.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([*command, str(job)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_job_ends_well() -> None:
    run_job(2)


@pytest.mark.slow
@pytest.mark.parametrize("_run", range(20))
def test_many_jobs_end_well(_run: int) -> None:
    run_job(3)
