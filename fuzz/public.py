"""Valid calls of ``select`` and ``topk``, with gradients: every backend against the reference."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fuzz.kind import Draw, Kind
from knockout.backends import force, why_not
from knockout.boost import Base, Boost, Fixed, Power, Relative
from tests.cases import BOOSTS, DTYPES, INF, NAN, same_bits, threads
from tests.contract.cases import BATCHES, MEMORY, ONE_ROW, OTHERS, SCORES, SHARP_BOOSTS, Case, Inputs
from tests.contract.test_agreement import agree, close


class Overlapping(Case):
    """A case whose scores and values are windows of memory that overlap."""

    def inputs(self) -> Inputs:
        scores, values, mask, gradients = super().inputs()
        return Inputs(_windows(scores), _windows(values), mask, gradients)


def _windows(x: Tensor) -> Tensor:
    return x.contiguous().as_strided(x.shape, [1] * x.dim()) if x.numel() else x


class PublicCall(NamedTuple):
    """A case, and how it is run."""

    case: Case
    backend: str
    threads: int = 1
    c_is_a_tensor: bool = False
    second_derivative: bool = False


class Public(Kind[PublicCall]):
    """Calls whose results are compared with those of the reference."""

    name = "public"
    block = 20

    def draw(self, seed: int, number: int) -> PublicCall:
        draw = self.drawing(seed, number)
        backend = draw.choice([name for name in OTHERS if not why_not(name)] or ["reference"])
        if draw.chance(0.01):
            case = drawn_case(draw, 30)._replace(dtype=torch.float64, values_dtype=torch.float64, scores="normal")
            return PublicCall(case._replace(boost=Relative(1), special=0.0), backend, second_derivative=True)
        most = draw.choices([20, 300, 5000, 100_000], weights=[60, 35, 5, 0.2])[0]
        case = drawn_case(draw, most)
        return PublicCall(case, backend, threads=draw.choice([1, 1, 1, 2]), c_is_a_tensor=draw.chance(0.1))

    def run(self, case: PublicCall) -> str:
        call = case.case
        if case.c_is_a_tensor and isinstance(call.boost, (Relative, Fixed)):
            boost = type(call.boost)(torch.tensor(float(call.boost.c), dtype=torch.float64), alpha=call.boost.alpha)
            call = call._replace(boost=boost)
        with force(case.backend), threads(case.threads):
            if case.second_derivative:
                own = _second_derivatives(call)
                with force("reference"):
                    for one, other in zip(own, _second_derivatives(call), strict=True):
                        close(one, other, 1e-9)
                return f"{case.backend}: second derivatives"
            agree(call)
            values, scores, mask = call.topk_inputs()
            same_bits(call.topk(values, scores, mask).values.detach(), call.select(scores, mask).apply(values).detach())
        return f"{case.backend}: {'long' if call.n > 300 else 'short'} rows"

    def write(self, case: PublicCall) -> Any:
        return repr(case)

    def read(self, written: Any) -> PublicCall:
        names: dict[str, Any] = {
            each.__name__: each for each in (PublicCall, Case, Overlapping, Relative, Fixed, Base, Power)
        }
        case: PublicCall = eval(written, {"torch": torch, "inf": INF, "nan": NAN, **names})
        return case


def drawn_case(draw: Draw, most: int) -> Case:
    """A case of at most so many candidates."""
    n = draw.randint(1, most)
    dtype = draw.choice(DTYPES)
    kind = Overlapping if draw.chance(0.05) else Case
    k = draw.choice([draw.randint(1, min(n, 8)), draw.randint(1, min(n, 300)), draw.uniform(0.001, 0.999)])
    few = n * (k if isinstance(k, int) else k * n + 1) < 2**16  # counts take the reference memory for n members a slot
    return kind(
        n=n,
        k=k,
        boost=_drawn_boost(draw),
        dtype=dtype,
        values_dtype=draw.pick([dtype], DTYPES),
        scores=draw.choice(list(SCORES)),
        memory=draw.pick(["dense"], list(MEMORY)),
        batches=ONE_ROW if n > 5000 else draw.pick([BATCHES[0]], BATCHES),
        kept=draw.pick([None], [0.0, 0.1, 0.5, 0.9]),
        special=draw.pick([0.0], [-INF, INF, NAN]),
        order=draw.choice(["score", "position"]),
        hard=draw.chance(0.3),
        through=(draw.chance(0.5), draw.chance(0.5), draw.chance(0.5)),
        d=draw.choice([0, 1, 3, 16, 37]),
        seed=draw.randrange(2**32),
        counted=few and draw.chance(0.3),
    )


def _drawn_boost(draw: Draw) -> Boost | float:
    if draw.chance(0.6):
        return draw.choice([*BOOSTS, *SHARP_BOOSTS])
    alpha, c = draw.choice([1.0, 1.5, 2.0]), 10.0 ** draw.uniform(-3, 3)
    unit = 10.0 ** draw.uniform(-9, 3)
    boosts: list[Boost | float] = [
        c,
        Relative(c, unit, alpha),
        Fixed(c, alpha),
        Base(1.01 + c, alpha),
        Power(1.01 + c / 30, alpha),
    ]
    return draw.choice(boosts)


def _second_derivatives(case: Case) -> list[Tensor]:
    """Of a loss of all results, with respect to scores and values, in one direction."""
    scores, values, mask, given = case.inputs()
    scores, values = scores.requires_grad_(), values.requires_grad_()
    selection = case.select(scores, mask)
    outputs = selection.apply(values), selection.scores, selection.mass()
    first = torch.autograd.grad(
        outputs, (scores, values), [each.to(torch.float64) for each in given], create_graph=True
    )
    total = sum((each.square().sum() for each in first), torch.zeros((), dtype=torch.float64))
    second = torch.autograd.grad(total, (scores, values), allow_unused=True) if total.requires_grad else (None, None)
    return [torch.zeros(()) if each is None else each for each in second]
