"""Memory is written before it is read: results do not depend on what new memory holds.

The cases run twice: here, and in a process in which PyTorch and malloc fill all new memory, tensors with NaN.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from knockout.backends import force
from knockout.boost import Fixed, Power, Relative
from tests.cases import RecordOperators, run_python, threads
from tests.contract.cases import BATCHES, Case, run, run_topk

FEW = [Relative(4), Relative(0.5), Relative(2, unit=0.01, alpha=1), Fixed(100), Power(20)]


def digest(backend: str) -> str:
    """A checksum of everything that the cases give, and of everything that operators write for them."""
    with force(backend), threads(1), RecordOperators() as record:
        cases = [Case(300, 7, boost, batches=batches, kept=0.5) for boost in FEW for batches in BATCHES]
        given = [play(case) for case in cases for play in (run, run_topk)]
    checksum = hashlib.sha256()
    for tensors in (*given, *(out for _, _, out in record.calls)):
        for each in tensors:
            checksum.update(_bytes(each))
    return checksum.hexdigest()


def _bytes(x: Tensor) -> bytes:
    x = x.detach().flatten()
    x = torch.where(x.isnan(), torch.nan, x) if x.is_floating_point() else x  # one NaN is as good as another
    return x.view(torch.uint8).numpy().tobytes()


def print_digest_with_filled_memory(backend: str) -> None:
    """Print the checksum, in a process of its own."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    assert torch.empty(9).isnan().all()
    print(digest(backend))


def test_results_do_not_depend_on_new_memory(backend: str) -> None:
    code = f"from {__name__} import {print_digest_with_filled_memory.__name__} as run; run({backend!r})"
    filled = run_python(code, MALLOC_PERTURB_="165", MALLOC_MMAP_MAX_="0").stdout
    assert digest(backend) == filled.strip()
