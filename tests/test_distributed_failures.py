"""Failures of calls with candidates on many ranks: all ranks raise an error, and none waits forever."""

from __future__ import annotations

import os
import pickle
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from knockout import distributed
from knockout.boost import Fixed, Relative
from knockout.distributed.owner import RowOwner
from tests.cases import randn
from tests.distributed_cases import Case, compare
from tests.process_group import DEAD, GROUPS, Failure, Workers, group_with_timeout


def other_payloads(rank: int, what: str) -> None:
    values, scores = randn(20, 3), randn(20, seed=rank).requires_grad_()
    picked = distributed.select(scores, 4, 1.0, group=GROUPS[2])
    one, other = picked.apply(values), picked.apply(3 * values)
    if what == "payloads":
        (one.sum() if rank == 0 else other.sum()).backward()
    else:
        (one.sum() if rank == 0 else picked.scores.sum()).backward()


@pytest.mark.parametrize("what", ["payloads", "outputs"])
def test_losses_that_use_different_results_are_an_error(workers: Workers, what: str) -> None:
    for answer in workers.run(other_payloads, what, size=2):
        assert answer.kind == "RankError"
        assert "all ranks must use the same results of knockout.distributed in their losses" in answer.text
    workers.check(compare, Case(2, (0.2,), 20, 3, Relative(4)), size=2)


def without_gradient(rank: int) -> None:
    picked = distributed.select(randn(20).requires_grad_(), 4, group=GROUPS[2])
    with torch.set_grad_enabled(rank == 0):
        picked.apply(randn(20, 3))


def test_gradients_must_be_enabled_on_all_or_none(workers: Workers) -> None:
    for answer in workers.run(without_gradient, size=2):
        assert answer.kind == "ValueError"
        assert "whether gradients are enabled must be the same on all ranks" in answer.text


def changed(_: int) -> list[str]:
    picked, texts = distributed.select(randn(2, 20), 4, group=GROUPS[2]), []
    for change in (lambda: picked[0], picked.detach, lambda: picked.to("cpu"), lambda: pickle.dumps(picked)):
        with pytest.raises(TypeError) as error:
            change()
        texts.append(str(error.value))
    return texts


def test_a_part_of_a_selection_cannot_be_changed(workers: Workers) -> None:
    for answer in workers.run(changed, size=2):
        assert len(answer) == 4
        assert all("bound to its process group: it cannot be moved, detached, indexed" in text for text in answer)


RIGHT: dict[str, Any] = {"k": 4, "boost": 2.0, "order": "score", "hard": False, "slots": "replicated"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "k": ({"k": 5}, "k must be the same on all ranks; got 4 on ranks 0, 2; 5 on rank 1"),
    "a count": (
        {"k": torch.tensor(4), "max_k": 4},
        "a checksum of the counts k must be the same on all ranks; got null",
    ),
    "boost": ({"boost": Fixed(3)}, r"boost must be the same on all ranks; got Relative\(c=2.0.*Fixed\(c=3"),
    "order": ({"order": "position"}, "order must be the same on all ranks"),
    "hard": ({"hard": True}, "hard must be the same on all ranks"),
    "slots": ({"slots": "sharded"}, "slots must be the same on all ranks"),
    "dtype": ({"scores": torch.zeros(6, dtype=torch.float64)}, "the dtype of scores must be the same on all ranks"),
    "d": ({"values": torch.zeros(6, 9)}, "d must be the same on all ranks; got 3 on ranks 0, 2; 9 on rank 1"),
    "batch": (
        {"scores": torch.zeros(2, 6), "values": torch.zeros(2, 6, 3)},
        "the batch dimensions of scores must be the same on all ranks",
    ),
    "dtype of values": ({"values": torch.zeros(6, 3).double()}, "the dtype of values must be the same on all ranks"),
}


def disagree(rank: int, change: dict[str, Any]) -> str:
    settings = {"values": torch.zeros(6, 3), "scores": torch.zeros(6), **RIGHT, **(change if rank == 1 else {})}
    try:
        distributed.topk(**settings, group=GROUPS[3])
    except ValueError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("what", WRONG)
def test_different_arguments_are_an_error_on_all_ranks(workers: Workers, what: str) -> None:
    change, message = WRONG[what]
    for text in workers.check(disagree, change, size=3):
        assert re.search(message, text), text
    workers.check(compare, Case(3, (0.2, 0.7), 20, 3, Relative(4)), size=3)  # the group can still be used


def other_counts(rank: int) -> None:
    distributed.select(randn(2, 20), torch.tensor([3, 1 + rank]), max_k=4, group=GROUPS[2])


def test_different_counts_are_an_error_on_all_ranks(workers: Workers) -> None:
    for answer in workers.run(other_counts, size=2):
        assert answer.kind == "ValueError"
        assert "a checksum of the counts k must be the same on all ranks" in answer.text


def too_many_slots(rank: int) -> None:
    distributed.select(randn(2, 5 + rank), torch.tensor([3, 1]), max_k=12, group=GROUPS[2])


def test_more_slots_than_candidates_of_all_ranks_are_an_error(workers: Workers) -> None:
    for answer in workers.run(too_many_slots, size=2):
        assert answer.kind == "ValueError"
        assert "max_k must be at most n, the number of candidates; got max_k = 12" in answer.text


def _raise(error: Exception) -> None:
    raise error


class Broken:
    """A row source that cannot be read."""

    shape = (6, 3)

    def take(self, rows: Any) -> Any:
        raise OSError(f"no disk for {len(rows)} rows")


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "scores": ({"scores": torch.zeros(6, dtype=torch.int64)}, "TypeError", "scores must be float16"),
    "mask": ({"mask": torch.ones(5, dtype=torch.bool)}, "ValueError", "mask must have shape"),
    "values": ({"values": torch.zeros(5, 3)}, "ValueError", "values must have shape"),
    "k": ({"k": 0}, "ValueError", "k must be at least 1"),
    "order": ({"order": "random"}, "ValueError", "order must be one of"),
    "reduction": ({"reduction": "max"}, "ValueError", "reduction must be one of"),
    "long": ({"order": "random" * 1000}, "ValueError", "order must be one of"),
    "rows": ({"values": Broken()}, "OSError", "no disk for"),
    "emoji": ({"order": "\N{SNOWMAN}" * 1000}, "ValueError", "order must be one of"),
}


def bad(rank: int, change: dict[str, Any]) -> None:
    settings = {"values": torch.zeros(6, 3), "scores": torch.arange(6.0), **RIGHT, **(change if rank == 1 else {})}
    distributed.topk(**settings, group=GROUPS[3])


@pytest.mark.parametrize("what", BAD)
def test_an_error_of_one_rank_is_an_error_on_all(workers: Workers, what: str) -> None:
    change, kind, text = BAD[what]
    answers = workers.run(bad, change, size=3)
    assert answers[1].kind == kind
    assert text in answers[1].text
    for rank in (0, 2):
        assert answers[rank].kind == "RankError", answers[rank]
        assert f"rank 1 failed with {kind}: {text}" in answers[rank].text
    workers.check(compare, Case(3, (0.2, 0.7), 20, 3, Relative(4)), size=3)


def too_many(rank: int) -> None:
    distributed.topk(torch.zeros(2, 3), torch.zeros(2), 7 + 0 * rank, group=GROUPS[3])


def failing_owner(rank: int) -> None:
    play = RowOwner.play
    if rank == 0:
        RowOwner.play = lambda *_: _raise(MemoryError("too much"))  # type: ignore[assignment, method-assign]
    try:
        distributed.topk(torch.zeros(2, 3), torch.zeros(2), 3, group=GROUPS[3])
    finally:
        RowOwner.play = play  # type: ignore[method-assign]


def test_errors_after_the_agreement(workers: Workers) -> None:
    for answer in workers.run(too_many, size=3):
        assert answer.kind == "ValueError"
        assert "k must be at most n, the number of candidates; got k = 7 with scores of shape (6,)" in answer.text
    first, *others = workers.run(failing_owner, size=3)
    assert first.kind == "MemoryError"
    assert all(each.kind == "RankError" and "failed on rank 0" in each.text for each in others)
    workers.check(compare, Case(3, (0.2, 0.7), 20, 3, Relative(4)), size=3)


TIMEOUT = 4.0


def leave(rank: int, how: str, when: str) -> tuple[str, str, float]:
    """Rank 1 dies or is late, before a call or between its forward and its backward pass.

    Returns the kind and the text of the error, or empty strings, and the seconds until then.
    """
    scores, values, group = torch.arange(6.0).requires_grad_(), torch.zeros(6, 3), group_with_timeout(TIMEOUT)
    out = distributed.topk(values, scores, 4, group=group)  # works
    dist.barrier()
    begun = time.monotonic()
    try:
        if rank == 1:
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.5 if how == "is a little late" else TIMEOUT + 3.0)
        if when == "forward":
            out = distributed.topk(values, scores, 4, group=group)
        out.values.sum().backward()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - begun
    return "", "", time.monotonic() - begun


@pytest.mark.parametrize("how", ["dies", "is late"])
def test_a_rank_that_is_lost_is_an_error_on_the_others(how: str) -> None:
    def lose(when: str) -> list[Any]:
        with Workers(3) as workers:
            return workers.run(leave, how, when)

    with ThreadPoolExecutor(2) as pool:  # both at once: they mostly wait
        for answers in pool.map(lose, ["forward", "backward"]):
            if how == "dies":
                assert answers[1] is DEAD
            for rank in (0, 2):
                kind, text, seconds = answers[rank]
                assert kind == "RankError"
                assert f"rank {rank} of 3 lost contact with the other ranks" in text
                assert "No rank has a result" in text
                assert seconds < TIMEOUT + 3.0


def gone(rank: int) -> None:
    group = group_with_timeout(TIMEOUT)
    if rank == 1:
        raise KeyError("somewhere else")
    distributed.topk(torch.zeros(6, 3), torch.arange(6.0), 4, group=group)


def test_a_rank_that_is_late_or_raises_elsewhere() -> None:
    with Workers(2) as workers:
        # The others wait for a rank that is late, but within the timeout.
        assert all(kind == "" for kind, _, _ in workers.check(leave, "is a little late", "forward"))
        waiting, raised = workers.run(gone)
    assert isinstance(raised, Failure)
    assert raised.kind == "KeyError"
    assert waiting.kind == "RankError"
    assert "did not respond within the timeout" in waiting.text


def test_without_a_process_group_the_error_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="init_process_group first"):
        distributed.topk(torch.zeros(6, 3), torch.zeros(6), 4)


def not_a_group(rank: int) -> None:
    distributed.select(torch.zeros(6), 4 + 0 * rank, group=[0, 1])


def test_group_must_be_a_process_group(workers: Workers) -> None:
    assert all(
        "group must be a torch.distributed.ProcessGroup" in each.text for each in workers.run(not_a_group, size=2)
    )
