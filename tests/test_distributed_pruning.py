"""What ranks send each other: candidates that are pruned do not change the result, and few bytes are sent."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knockout import distributed
from knockout.boost import Boost, Fixed, Power, Relative
from knockout.distributed import pruning
from knockout.distributed.owner import mean_scores
from knockout.distributed.routing import Pruned
from tests.cases import BOOSTS
from tests.distributed_cases import SCORE_KINDS, Case, compare, cuts
from tests.process_group import GROUPS, Workers

SHARP = [
    Relative(4),
    Relative(16),
    Relative(6, alpha=2),
    Relative(40, alpha=1),
    Fixed(8, alpha=1.5),
    Power(20, alpha=2),
]


@pytest.mark.parametrize("kind", SCORE_KINDS)
def test_pruning_does_not_change_results(workers: Workers, kind: str) -> None:
    for number, boost in enumerate(SHARP):
        masked, batch = (0.0, 0.4)[number % 2], ((), (3,))[number // 2 % 2]
        case = Case(3, (0.3, 0.3), 20_000, 16, boost, batch, masked=masked, kind=kind, seed=number)
        workers.check(compare, case, size=3)


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pruning_does_not_change_results_in_drawn_cases(workers: Workers, data: st.DataObject) -> None:
    n = data.draw(st.integers(pruning.MIN_CANDIDATES, 40_000))
    case = Case(
        size=2,
        cuts=data.draw(cuts),
        n=n,
        k=data.draw(st.sampled_from([1, 3, 64, 1000])),
        boost=data.draw(st.sampled_from(BOOSTS + SHARP)),
        masked=data.draw(st.sampled_from([0.0, 0.5])),
        kind=data.draw(st.sampled_from(list(SCORE_KINDS))),
        dtype=data.draw(st.sampled_from([torch.float64, torch.float64, torch.float32])),
        seed=data.draw(st.integers(0, 1000)),
    )
    workers.check(compare, case, size=2)


def in_few_rounds(rank: int, count: int) -> None:
    """Small cases with three or four rounds, in which a wrong bound in the first still changes the last."""
    before, pruning.MIN_CANDIDATES = pruning.MIN_CANDIDATES, 64
    try:
        for seed in range(count):
            draw = random.Random(seed)
            n = draw.randint(100, 3000)
            boost = Relative(
                draw.choice([1.5, 2, 3, 4, 6, 10, 30]), draw.choice([0.01, 1.0]), draw.choice([1.5, 1.5, 2])
            )
            kind = draw.choice([kind for kind in SCORE_KINDS if kind not in ("constant", "invalid", "far")])
            k = n // draw.choice([5, 7, 9, 15])
            compare(rank, Case(1, (), n, k, boost, masked=draw.choice([0.0, 0.2]), kind=kind, d=1, seed=seed))
    finally:
        pruning.MIN_CANDIDATES = before


def test_pruning_does_not_change_results_in_few_rounds(workers: Workers) -> None:
    workers.check(in_few_rounds, 300, size=1)


def test_substitutes_have_the_sum_of_the_pruned_scores() -> None:
    counts, totals = torch.zeros(2, pruning.BINS).double(), torch.zeros(2, pruning.BINS).double()
    counts[0, 3], totals[0, 3] = 1000, 1000 * (1e4 + 1.0 / 3.0)
    counts[1, 5], totals[1, 5] = 7, -0.7
    made = mean_scores(Pruned(torch.empty(0), counts, totals), torch.float32)
    assert made.dtype == torch.float32
    # Off by one unit in the last place of a score at most; a thousand times the nearest float32 is off by 240 units.
    torch.testing.assert_close(made[:1000].double().sum(), totals[0, 3], rtol=0, atol=2.0**-10)
    torch.testing.assert_close(made[1000:].double().sum(), totals[1, 5], rtol=0, atol=2.0**-26)


def test_sharper_boosts_send_fewer_scores(workers: Workers) -> None:
    def sent(boost: Boost, kind: str) -> float:
        case = Case(2, (0.5,), 2**16, 64, boost, kind=kind, dtype=torch.float32)
        return float(workers.check(compare, case, size=2)[1]) / (4 * 2**15)  # rank 0 owns the row

    for kind in ("uniform", "normal"):
        soft, default, sharp = (sent(boost, kind) for boost in (Relative(0.5), Relative(4), Relative(32)))
        assert soft == 1.0
        assert 0.3 < default < 0.8
        assert sharp < 0.2
    assert sent(Fixed(1000, alpha=1.5), "uniform") < 0.1


def bytes_sent(rank: int, n: int, d: int, k: int) -> dict[str, int]:
    generator = torch.Generator().manual_seed(rank)
    scores = torch.rand(n, generator=generator).requires_grad_()
    values = torch.rand(n, d, generator=generator).requires_grad_()
    with distributed.traffic() as traffic:
        distributed.topk(values, scores, k, 4.0, group=GROUPS[4]).values.sum().backward()
    assert traffic.total == sum(traffic.sent.values())
    return dict(traffic.sent)


def test_bytes_do_not_grow_with_the_values(workers: Workers) -> None:
    narrow, wide = ([sum(each.values()) for each in workers.check(bytes_sent, 2**14, d, 8)] for d in (1, 64))
    for small, large in zip(narrow, wide, strict=True):
        # A sum over four ranks of k * 63 more numbers, in the forward and in the backward pass.
        assert large - small == 2 * (2 * 8 * 63 * 4 * 3 // 4)
    assert sum(wide) < 4 * 2**14 * 64 * 4 * 3 / 100  # a hundredth of the bytes of gathering all values
