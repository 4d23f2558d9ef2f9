"""A warning, once a process, if most rows of scores that are to be trained get no gradient."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat

import torch
from torch import Tensor

from knockout.boost import Boost
from knockout.torch_private import is_transforming
from knockout.warning import warn_user

_warned = False


def powers_of_two() -> Iterator[bool]:
    """True for the numbers 1, 2, 4, 8, ... as they are counted, False for the others.

    Made of iterators in C: to count in Python would take longer than all else that a call does for this.
    """
    return chain.from_iterable([chain((True,), repeat(False, 2**power - 1)) for power in range(62)])


# Whether to look at the next call with scores that require a gradient. Not to be called in compiled code.
is_due = powers_of_two().__next__


def look(scores: Tensor, mask: Tensor | None, member: Tensor, filled: Tensor, valid: Tensor, boost: Boost) -> None:
    """Warn if most rows get no gradient. ``member`` (*batch, k, m) has n, the number of candidates, for padding.

    Only tensors whose numbers are at hand are looked at: nothing waits for a device, and nothing is traced.
    """
    global _warned
    plain = scores.is_cpu and type(scores) in (Tensor, torch.nn.Parameter)
    traced = is_transforming() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if plain and not traced and not _warned:
        rows, without = _count(scores.detach(), mask, member, filled, valid)
        if 2 * without > rows:
            _warned = True
            _warn(rows, without, boost)


def _count(scores: Tensor, mask: Tensor | None, member: Tensor, filled: Tensor, valid: Tensor) -> list[int]:
    """How many rows have something to choose, and how many of them get no gradient."""
    active = scores != -torch.inf
    active = active if mask is None else active & mask
    chooses = valid.squeeze(-1) & (active.sum(dim=-1) > filled.sum(dim=-1))
    # A slot with a second member is a blend. (The reference may put padding between the members.)
    blended = (member[..., 1:] < scores.shape[-1]).any(dim=-1).any(dim=-1)
    # Not int(), which make_fx refuses to trace.
    counts: list[int] = torch.stack([chooses.sum(), (chooses & ~blended).sum()]).tolist()
    return counts


def _warn(rows: int, without: int, boost: Boost) -> None:
    warn_user(
        f"knockout gives no gradient to {without} of {rows} rows ({without / rows:.0%}): all their pairs are decided, "
        f"because boost={boost!r} is too sharp for scores that spread this far. A scorer learns nothing from them. "
        f"Leave boost out or pass a lower one, bring the scores to a spread between 0.1 and 10, or use a layer of "
        f"knockout.nn, which calibrates itself: see docs/troubleshooting.md. If the choice is meant to be that sharp: "
        f"warnings.filterwarnings('ignore', message='knockout gives no gradient')"
    )
