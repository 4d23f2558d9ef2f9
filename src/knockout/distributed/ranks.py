"""The ranks of a process group: collectives, the number of bytes they send, and an error when a rank is lost.

Built on PyTorch's functional collectives, which return new tensors instead of filling buffers of the caller.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor

from knockout.torch_private import collectives


class RankError(RuntimeError):
    """Another rank failed, was lost, or did not respond in time: no rank has a result."""


class Traffic:
    """The number of bytes that this rank has sent to other ranks, by purpose.

    A sum over all W ranks counts as in the usual ring algorithm: each rank sends 2 (W - 1) / W times its size.
    """

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """All bytes sent."""
        return self.sent.total()


_counting: list[Traffic] = []
# Calls so far in each group. By the object, not by its name: PyTorch uses the name again once a group is destroyed.
_CALLS: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()


@contextmanager
def traffic() -> Iterator[Traffic]:
    """Count the bytes that this rank sends to other ranks inside of the block."""
    count = Traffic()
    _counting.append(count)
    try:
        yield count
    finally:
        _counting.remove(count)


class Ranks:
    """A process group and its collectives. All ranks must make the same calls in the same order.

    ``what`` names the purpose of a message, for ``Traffic`` and for error texts.

    Results and their autograd graphs hold this object, so it refers to the group only weakly. If a result kept a group
    beyond ``destroy_process_group``, the threads of the group would still run when Python ends. A thread that then
    frees a tensor aborts the process.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "knockout.distributed needs a process group: call torch.distributed.init_process_group first "
                "(torchrun starts the processes)"
            )
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                f"group must be a torch.distributed.ProcessGroup that contains this process, or None for all "
                f"processes; got {group!r}"
            )
        group = group or dist.group.WORLD
        assert group is not None
        self._group, self._name = ref(group), group.group_name
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        # A device whose tensors the group can send, whatever the device of the caller's tensors.
        nccl = "nccl" in dist.get_backend(group)
        self.device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def next_call_number(self) -> int:
        """Number the calls in this group from 1 on. All ranks make the same calls, and so get the same numbers."""
        group = self._existing_group()
        _CALLS[group] = _CALLS.get(group, 0) + 1
        return _CALLS[group]

    def check_same_call(self, number: int, what: str) -> None:
        """Raise an error unless all ranks are in the backward pass of the same call: messages would be mixed up."""
        numbers = self.all_gather(torch.tensor(number, device=self.device), what).tolist()
        if len(set(numbers)) > 1:
            shown = ", ".join(f"rank {rank} in that of call {call}" for rank, call in enumerate(numbers))
            raise RankError(
                f"all ranks must use the same results of knockout.distributed in their losses, multiplied by 0 where a "
                f"rank does not need one, and run their backward passes in the same order; got {shown}"
            )

    def all_gather(self, tensor: Tensor, what: str) -> Tensor:
        """The tensors of all ranks, which have the same shape, as (size, *shape)."""
        self._count(what, tensor.nbytes * (self.size - 1))
        flat = tensor.contiguous().view(-1)
        out = self._wait(what, lambda: _OPS.all_gather_into_tensor(flat, self.size, self._name))
        return out.view(self.size, *tensor.shape)

    def all_sum(self, tensor: Tensor, what: str) -> Tensor:
        """The sum of the tensors of all ranks, bitwise the same on each."""
        self._count(what, 2 * tensor.nbytes * (self.size - 1) // self.size)
        return self._wait(what, lambda: _OPS.all_reduce(tensor.contiguous(), "sum", self._name))

    def all_to_all(self, tensor: Tensor, send: Sequence[int], receive: Sequence[int], what: str) -> Tensor:
        """Send ``send[rank]`` elements of a flat tensor to each rank, in order; return those received, in order.

        ``receive[rank]`` is the number of elements that come from each rank.
        """
        # As bytes: not every backend supports every dtype.
        width = tensor.itemsize
        self._count(what, width * (sum(send) - send[self.rank]))
        sizes = [[width * count for count in counts] for counts in (receive, send)]
        raw = tensor.contiguous().view(torch.uint8)
        out = self._wait(what, lambda: _OPS.all_to_all_single(raw, *sizes, self._name))
        return out.view(tensor.dtype)

    def concatenate(self, tensor: Tensor, counts: Sequence[int], what: str) -> Tensor:
        """The tensors (counts[rank], ...) of all ranks, concatenated: an all-gather of unequal parts."""
        each = tensor.shape[1:].numel()
        sizes = [each * count for count in counts]
        copies = tensor.contiguous().view(-1).repeat(self.size)
        out = self.all_to_all(copies, [sizes[self.rank]] * self.size, sizes, what)
        return out.view(sum(counts), *tensor.shape[1:])

    def sum_own_part(self, tensor: Tensor, counts: Sequence[int], what: str) -> Tensor:
        """This rank's part (counts[rank], ...) of the sum of all ranks' tensors (sum(counts), ...).

        A reduce-scatter of unequal parts: the transpose of ``concatenate``.
        """
        each, own = tensor.shape[1:].numel(), counts[self.rank]
        out = self.all_to_all(tensor.flatten(), [each * count for count in counts], [each * own] * self.size, what)
        return out.view(self.size, own, *tensor.shape[1:]).sum(0)

    def chunk_sizes(self, count: int) -> list[int]:
        """How many of ``count`` things each rank gets if they are divided in order, as by torch.chunk."""
        most = -(-count // self.size)
        return [max(0, min(most, count - rank * most)) for rank in range(self.size)]

    def own_slice(self, counts: Sequence[int]) -> slice:
        """The things of this rank, where each rank has ``counts[rank]`` of them, in order."""
        start, stop = itertools.islice(itertools.accumulate(counts, initial=0), self.rank, self.rank + 2)
        return slice(start, stop)

    def _existing_group(self) -> dist.ProcessGroup:
        """The group, unless it was destroyed. Its name cannot tell: a new group may have the same name."""
        group = self._group()
        if group is None or not _is_registered(group):
            raise RuntimeError(
                "the process group of this result of knockout.distributed no longer exists: it was destroyed by "
                "torch.distributed.destroy_process_group. Apply selections and run backward passes before that"
            )
        return group

    def _count(self, what: str, size: int) -> None:
        for each in _counting:
            each.sent[what] += size

    def _wait(self, what: str, call: Callable[[], Tensor]) -> Tensor:
        self._existing_group()
        try:
            out: Tensor = _OPS.wait_tensor(call())
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank} of {self.size} lost contact with the other ranks ({what}): one of them died, "
                f"failed, or did not respond within the timeout of the group. No rank has a result, and the group can "
                f"no longer be used. The error was: {error}"
            ) from error
        return out


def _is_registered(group: dist.ProcessGroup) -> bool:
    """Whether the group was not destroyed yet, even if somebody still holds it."""
    try:
        dist.get_rank(group)
    except ValueError:
        return False
    return True


_OPS = collectives()
