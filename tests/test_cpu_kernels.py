"""What is special to the C++ kernels: their threads, and forked processes. Everything else is in tests/contract."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import knockout
from knockout.backends import force
from knockout.boost import Boost, Fixed, Power, Relative
from tests.cases import RecordOperators, same_bits, threads
from tests.contract.cases import ONE_ROW, Case, run


@pytest.fixture(autouse=True)
def _cpu() -> Iterator[None]:
    with force("cpu"):
        yield


FEW = [Relative(4), Relative(0.5), Relative(2, unit=0.01, alpha=1), Fixed(100), Power(20)]
LARGE = [
    Case(3000, 17, batches=((33,), (33,), (33,)), kept=0.9),
    Case(700, 99, batches=((2, 8), (8,), ()), values_dtype=torch.float16, d=150),  # values shared by two rows
    Case(200_000, 3, batches=ONE_ROW),
    Case(200_000, 5000, dtype=torch.float64, batches=ONE_ROW, scores="heavy-tailed", kept=0.7),
    Case(200_000, 64, dtype=torch.bfloat16, batches=((1,),) * 3, scores="tied"),
]


@pytest.mark.parametrize("boost", [Relative(4), Relative(2, unit=0.01, alpha=1), Fixed(100)], ids=str)
@pytest.mark.parametrize("case", LARGE, ids=lambda case: f"n={case.n}, k={case.k}")
def test_neither_the_number_of_threads_nor_another_run_changes_a_bit(case: Case, boost: Boost) -> None:
    case = case._replace(boost=boost)
    with threads(1):
        expected = run(case)
    for count in (2, 7, 7):
        with threads(count):
            for one, other in zip(run(case), expected, strict=True):
                same_bits(one, other)


def test_many_python_threads_at_once() -> None:
    cases = [Case(n, 5, boost, kept=0.9, seed=n) for n in (7, 300, 4000, 70_000) for boost in FEW]
    alone = [run(case) for case in cases]
    with ThreadPoolExecutor(8) as pool:
        for results, expected in zip(pool.map(run, cases * 3), alone * 3, strict=True):
            for one, other in zip(results, expected, strict=True):
                same_bits(one, other)


class Blends(Dataset[Tensor]):
    """Blended values, each computed when it is read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, seed: int) -> Tensor:
        return run(Case(100_000, 5, batches=ONE_ROW, seed=seed)).values


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on, where there are threads
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # where there is one core
@pytest.mark.parametrize("count", [1, 2])
def test_forked_workers_of_a_data_loader(count: int) -> None:
    with threads(count):  # with two, the workers are children of a process that has threads
        alone = torch.stack([Blends()[seed] for seed in range(8)])
        loader = DataLoader(Blends(), batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=60)
        same_bits(torch.cat(list(loader)), alone)


@pytest.mark.parametrize(("wanted", "enabled"), [(True, True), (True, False), (False, True)])
def test_rounds_are_saved_only_for_a_gradient(wanted: bool, enabled: bool) -> None:
    scores = torch.randn(9).requires_grad_(wanted)
    with torch.set_grad_enabled(enabled), RecordOperators() as record:
        knockout.select(scores, 2)
    ((operator, args, _),) = record.calls
    arguments = dict(zip((argument.name for argument in operator._schema.arguments), args, strict=True))
    assert arguments["save"] == (wanted and enabled)
    assert not arguments["fixed"]
