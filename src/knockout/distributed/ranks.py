"""The ranks of a group: what they say to each other, how many bytes that takes, and what if one is lost.

On the functional collectives of PyTorch, which need no buffers of the caller's.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from knockout.torch_private import collectives


class RankError(RuntimeError):
    """Another rank is lost, late, or could not take part: nobody has a result."""


class Traffic:
    """Bytes that this rank has sent to others, by what for.

    A sum over all ranks is counted as what the usual ring takes, 2 (W - 1) / W of its size for each of W ranks.
    """

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Of all kinds."""
        return self.sent.total()


_counting: list[Traffic] = []
_CALLS: Counter[str] = Counter()  # of each group so far, by its name


@contextmanager
def traffic() -> Iterator[Traffic]:
    """Count what this rank sends to others, until the block ends."""
    count = Traffic()
    _counting.append(count)
    try:
        yield count
    finally:
        _counting.remove(count)


class Ranks:
    """A process group, as this library talks in it. All ranks must make the same calls in the same order."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "knockout.distributed needs a process group: call torch.distributed.init_process_group first "
                "(torchrun starts the processes)"
            )
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                f"group must be a torch.distributed.ProcessGroup that this process is in, or None for all processes; "
                f"got {group!r}"
            )
        self._group = group or dist.group.WORLD
        assert self._group is not None
        self._name = self._group.group_name
        self.rank, self.size = dist.get_rank(self._group), dist.get_world_size(self._group)

    def number(self) -> int:
        """Of a call in this group, from 1 on: the same on all ranks, which all make the same calls."""
        _CALLS[self._name] += 1
        return _CALLS[self._name]

    def meet(self, number: int, what: str) -> None:
        """Before a backward pass: whether all ranks are in that of the same call, or messages would be mixed up."""
        numbers = self.gather(torch.tensor(number, device=self.device), what).tolist()
        if len(set(numbers)) > 1:
            shown = ", ".join(f"rank {rank} in that of call {call}" for rank, call in enumerate(numbers))
            raise RankError(
                f"all ranks must use the same results of knockout.distributed in their losses, if only times 0, and go "
                f"back through them in the same order; got {shown}"
            )

    @property
    def device(self) -> torch.device:
        """Where messages of the group may come from, whatever tensors the caller has."""
        if "nccl" in dist.get_backend(self._group):
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def gather(self, tensor: Tensor, what: str) -> Tensor:
        """What every rank holds, of one shape, (size, *shape)."""
        self._count(what, tensor.nbytes * (self.size - 1))
        flat = tensor.contiguous().view(-1)
        out = self._wait(what, lambda: _OPS.all_gather_into_tensor(flat, self.size, self._name))
        return out.view(self.size, *tensor.shape)

    def total(self, tensor: Tensor, what: str) -> Tensor:
        """The sum over all ranks, the same to the last bit on all."""
        self._count(what, 2 * tensor.nbytes * (self.size - 1) // self.size)
        return self._wait(what, lambda: _OPS.all_reduce(tensor.contiguous(), "sum", self._name))

    def exchange(self, tensor: Tensor, send: Sequence[int], receive: Sequence[int], what: str) -> Tensor:
        """So many numbers of a flat tensor to each of the ranks, and so many from each, one after the other."""
        # As bytes: not every backend knows every type.
        width = tensor.itemsize
        self._count(what, width * (sum(send) - send[self.rank]))
        sizes = [[width * count for count in counts] for counts in (receive, send)]
        raw = tensor.contiguous().view(torch.uint8)
        out = self._wait(what, lambda: _OPS.all_to_all_single(raw, *sizes, self._name))
        return out.view(tensor.dtype)

    def share(self, tensor: Tensor, counts: Sequence[int], what: str) -> Tensor:
        """Rows of all ranks, one after the other: this one has ``tensor`` (counts[rank], ...)."""
        each = tensor.shape[1:].numel()
        sizes = [each * count for count in counts]
        copies = tensor.contiguous().view(-1).repeat(self.size)
        out = self.exchange(copies, [sizes[self.rank]] * self.size, sizes, what)
        return out.view(sum(counts), *tensor.shape[1:])

    def collect(self, tensor: Tensor, counts: Sequence[int], what: str) -> Tensor:
        """The other way round: of rows (sum of counts, ...) that all ranks have, the sums of this rank's own."""
        each, mine = tensor.shape[1:].numel(), counts[self.rank]
        out = self.exchange(tensor.flatten(), [each * count for count in counts], [each * mine] * self.size, what)
        return out.view(self.size, mine, *tensor.shape[1:]).sum(0)

    def portions(self, count: int) -> list[int]:
        """So many things dealt out to the ranks: how many each gets, one after the other, as torch.chunk does."""
        most = -(-count // self.size)
        return [max(0, min(most, count - rank * most)) for rank in range(self.size)]

    def own(self, portions: Sequence[int]) -> slice:
        """Those of this rank."""
        first, end = itertools.islice(itertools.accumulate(portions, initial=0), self.rank, self.rank + 2)
        return slice(first, end)

    def _count(self, what: str, count: int) -> None:
        for each in _counting:
            each.sent[what] += count

    def _wait(self, what: str, call: Callable[[], Tensor]) -> Tensor:
        try:
            out: Tensor = _OPS.wait_tensor(call())
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank} of {self.size} has lost the others ({what}): one of them died, failed, or did not "
                f"come within the timeout of the group. No rank has a result, and the group cannot be used any more. "
                f"What was reported: {error}"
            ) from error
        return out


_OPS = collectives()
