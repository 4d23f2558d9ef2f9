"""A model on paper of what a call costs on an A100, beside ``torch.topk`` + gather: launches, bytes, steps of sorting.

Nothing here is measured. A launch is assumed to take LAUNCH seconds, all bytes to move at the full bandwidth, and a
step of a sorting network to take CYCLES of a multiprocessor for each element of a thread. What is left out, above all
the waiting of a program for memory, makes real times longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log2
from typing import NamedTuple

from torch import Tensor

from evals.gpu.calls import Call, Launch, recorded
from knockout.ops.triton.launch import warps_of

# NVIDIA's data sheet of the A100 with 40 GB.
BANDWIDTH = 1555e9  # bytes a second
CLOCK = 1.41e9  # cycles a second
MULTIPROCESSORS, SCHEDULERS = 108, 4
# Assumptions.
LAUNCH = 5e-6  # seconds
CYCLES = 10  # instructions of a step for each element, at one a cycle for each scheduler
LATENCY = 40  # cycles of a step beside these


class Cost(NamedTuple):
    """What a pass costs."""

    launches: int
    bytes: int
    sorting: float  # seconds

    @property
    def seconds(self) -> float:
        """What all of it takes."""
        return LAUNCH * self.launches + self.bytes / BANDWIDTH + self.sorting

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        return Cost(self.launches + other.launches, self.bytes + other.bytes, self.sorting + other.sorting)


def ours(call: Call) -> tuple[Cost, Cost]:
    """The forward pass of ``knockout.topk``, and the backward pass."""
    passes = recorded(call)
    return _cost(call, passes.forward, passes.torch_forward), _cost(call, passes.backward, passes.torch_backward)


def hard_twin(call: Call) -> tuple[Cost, Cost]:
    """The same of ``torch.topk`` + gather: a launch to select, one to sort what was selected, one to gather.

    Backward: the gradient of the values is set to 0, and that of the rows found is added.
    """
    rows, numbers = call.rows, call.rows * call.k * call.d
    found = rows * call.k * (4 + 8)
    forward = Cost(3, rows * call.n * 4 + 3 * found + 2 * numbers * 4, 0.0)
    return forward, Cost(2, rows * call.n * call.d * 4 + found + 3 * numbers * 4, 0.0)


def _cost(call: Call, launches: Iterable[Launch], by_torch: Iterable[tuple[str, int]]) -> Cost:
    cost = Cost(0, 0, 0.0)
    for launch in launches:
        tensors = [each for each in launch.arguments.values() if isinstance(each, Tensor)]
        cost += Cost(1, sum(each.nbytes for each in tensors), _sorting(call, launch))
    for _, size in by_torch:
        cost += Cost(1, size, 0.0)
    return cost


def _sorting(call: Call, launch: Launch) -> float:
    """The seconds that a launch sorts for: its networks, one after the other."""
    waves = -(-launch.grid[0] // MULTIPROCESSORS)
    block = launch.arguments.get("BLOCK") or launch.arguments.get("CHUNK", 0)
    if launch.kernel.__name__ == "play":
        sorts = _sorts_of_play(call, launch)
    elif launch.kernel.__name__ in ("enter", "play_round") and launch.arguments["SORT"]:
        sorts = {block: 1}
    else:
        return 0.0
    packed = launch.elements // block
    threads = 32 * warps_of(launch.elements, 32)
    cycles = 0.0
    for size, count in sorts.items():
        steps = log2(size) * (log2(size) + 1) / 2
        elements = max(1.0, size * packed / threads)
        cycles += count * steps * (elements * CYCLES * threads / 32 / SCHEDULERS + LATENCY)
    return waves * cycles / CLOCK


def _sorts_of_play(call: Call, launch: Launch) -> dict[int, int]:
    """How many times a program sorts blocks of each size: see play.py."""
    block, rounds, first = (launch.arguments[name] for name in ("BLOCK", "rounds", "first"))
    at = first + (1 if launch.arguments["RESUME"] else 0)
    sizes = [block, *([block // 8] if block >= 256 else []), *([block // 64] if block >= 2048 else [])]
    sorts = dict.fromkeys(sizes, 0)
    for size, following in zip(sizes, [*sizes[1:], 0], strict=True):
        while at < rounds and call.k << (rounds - at) > following:
            sorts[size], at = sorts[size] + 1, at + 1
    return sorts
