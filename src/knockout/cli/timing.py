"""How long calls take on a noisy machine: they take turns in one process, and their medians are compared.

Private; ``knockout bench`` and the repository's benchmarks measure with it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
Operator = Callable[[Tensor, Tensor], Tensor]  # values (batch, n, d) and scores (batch, n) -> (batch, k, d)

CPU = torch.device("cpu")


def timed(device: torch.device, call: Callable[..., Result], *arguments: object) -> tuple[Result, float]:
    """Return the result of a call and its seconds, until the device has done all its work."""
    synchronize(device)
    begin = time.perf_counter()
    result = call(*arguments)
    synchronize(device)
    return result, time.perf_counter() - begin


def synchronize(device: torch.device) -> None:
    """Wait until a device has done all its work; the CPU has when a call returns."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Let PyTorch use so many CPU threads until the block ends; as many as before if None."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def interleaved(
    calls: Mapping[str, Callable[[], object]], rounds: int, seconds: float = 0.0, device: torch.device = CPU
) -> dict[str, list[float]]:
    """Seconds of each call, one list entry per round.

    In every round each call runs once, so that a change in the load of the machine affects all of them. There are at
    least ``rounds`` rounds, and more until ``seconds`` have passed. One call of each before that is not timed.

    >>> taken = interleaved({"sum": lambda: sum(range(10)), "max": lambda: max(range(10))}, rounds=3)
    >>> {name: len(each) for name, each in taken.items()}
    {'sum': 3, 'max': 3}
    """
    for call in calls.values():
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    begin, done = time.perf_counter(), 0
    while calls and (done < rounds or time.perf_counter() - begin < seconds):
        for name, call in calls.items():
            taken[name].append(timed(device, call)[1])
        done += 1
    return taken


def median(seconds: Sequence[float]) -> float:
    """The median."""
    return statistics.median(seconds)


def medians(
    calls: Mapping[str, Callable[[], object]], rounds: int, seconds: float = 0.0, device: torch.device = CPU
) -> dict[str, float]:
    """The median seconds of each call; see ``interleaved``."""
    return {name: median(each) for name, each in interleaved(calls, rounds, seconds, device).items()}


class Passes(NamedTuple):
    """Median seconds of an operator."""

    forward: float  # without recording a graph
    both: float  # forward and backward, to values and scores


def passes(
    operators: Mapping[str, Operator], values: Tensor, scores: Tensor, rounds: int, seconds: float = 0.0
) -> dict[str, Passes]:
    """Median seconds of each operator, forward, and forward and backward, for ``seconds`` each."""
    with torch.no_grad():
        forward = medians(
            {name: partial(use, values, scores) for name, use in operators.items()}, rounds, seconds, values.device
        )
    leaves = values.detach().requires_grad_(), scores.detach().requires_grad_()
    calls: dict[str, Callable[[], object]] = {}
    for name, use in operators.items():
        upstream = torch.randn_like(use(*leaves).detach())
        calls[name] = partial(gradients, use, *leaves, upstream)
    both = medians(calls, rounds, seconds, values.device)
    return {name: Passes(forward[name], both[name]) for name in operators}


def gradients(operator: Operator, values: Tensor, scores: Tensor, upstream: Tensor) -> tuple[Any, ...]:
    """Gradients of values and scores, from that of the result; None for scores that have none."""
    return torch.autograd.grad(operator(values, scores), (values, scores), upstream, allow_unused=True)


def hard_topk(values: Tensor, scores: Tensor, k: int) -> Tensor:
    """The hard twin that times are compared with: ``torch.topk`` and a gather, with no gradient for the scores."""
    index = torch.topk(scores.detach(), k, dim=-1).indices
    return values.gather(-2, index.unsqueeze(-1).expand(*index.shape, values.shape[-1]))
