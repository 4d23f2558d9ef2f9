"""The cases of the contract: everything that can differ from one call to the next, and how a case is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

import knockout
from knockout.backends import NAMES
from knockout.boost import Adaptive, Base, Boost, Fixed, Power, Relative
from knockout.functional import Order, TopKResult
from knockout.quota import Quota
from tests.cases import BOOSTS, DTYPES, INF, NAN

# The backends that are compared with the reference: all others.
OTHERS = [name for name in NAMES if name != "reference"]

# Some that tell near ties and tiny scores apart.
SHARP_BOOSTS: list[Boost] = [
    Relative(1),
    Fixed(100),
    Relative(4, unit=1e-6),
    Relative(16, unit=1e-30),
    Fixed(3e6, alpha=1.5),
    Fixed(1e7),
    Adaptive(16, unit=1e-30),
    Adaptive(4, unit=1e9),
]
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _nearly_tied(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """10, and the three numbers above it."""
    integer = _INTEGERS[dtype.itemsize]
    steps = torch.randint(4, shape, generator=generator).to(integer)
    return (torch.full(shape, 10.0, dtype=dtype).view(integer) + steps).view(dtype)


SCORES: dict[str, Callable[[tuple[int, ...], torch.dtype, torch.Generator], Tensor]] = {
    "uniform": lambda shape, dtype, g: torch.rand(shape, dtype=dtype, generator=g),
    "normal": lambda shape, dtype, g: torch.randn(shape, dtype=dtype, generator=g),
    "tied": lambda shape, dtype, g: torch.randint(-2, 3, shape, generator=g).to(dtype),
    "nearly tied": _nearly_tied,
    "constant": lambda shape, dtype, _: torch.full(shape, 0.25, dtype=dtype),
    "zeros of either sign": lambda shape, dtype, g: (torch.randint(-3, 4, shape, generator=g) / 2).trunc().to(dtype),
    "in clusters": lambda shape, dtype, g: (
        torch.randint(9, shape, generator=g) + 1e-6 * torch.randn(shape, dtype=torch.float64, generator=g)
    ).to(dtype),
    "heavy-tailed": lambda shape, dtype, g: torch.exp(4 * torch.randn(shape, dtype=dtype, generator=g)),
    "huge": lambda shape, dtype, g: torch.randn(shape, dtype=dtype, generator=g) * (torch.finfo(dtype).max / 3),
    "tiny": lambda shape, dtype, g: torch.randn(shape, dtype=dtype, generator=g) * (torch.finfo(dtype).tiny / 99),
}
MEMORY: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda x: x,
    "strided": lambda x: torch.stack([x, x], dim=-1)[..., 0],
    "transposed": lambda x: x.movedim(-1, 0).contiguous().movedim(0, -1),
    "expanded": lambda x: x[:1].expand(x.shape),
}
# The batch dimensions of scores, values and mask.
BATCHES = [((3,),) * 3, ((),) * 3, ((2, 2), (2, 1), (1, 2)), ((2, 3), (), (3,)), ((2,), (3, 1), ()), ((0,),) * 3]
ONE_ROW = BATCHES[1]


class Inputs(NamedTuple):
    """The tensors of a case."""

    scores: Tensor
    values: Tensor
    mask: Tensor | None
    gradients: tuple[Tensor, Tensor, Tensor]  # of the blended values, the blended scores and the mass


class Case(NamedTuple):
    """One call of ``knockout.select``, and what a loss looks at."""

    n: int
    k: float
    boost: Boost | float | None = Relative(4)
    dtype: torch.dtype = torch.float32
    values_dtype: torch.dtype = torch.float32
    scores: str = "normal"
    memory: str = "dense"
    batches: tuple[tuple[int, ...], ...] = BATCHES[0]
    kept: float | None = None  # how many of the candidates the mask keeps; None for no mask
    special: float = 0.0  # the score of some candidates; 0 for none
    order: Order = "score"
    hard: bool = False
    through: tuple[bool, bool, bool] = (True, True, True)  # what the loss looks at: values, scores, mass
    d: int = 3
    seed: int = 0
    counted: bool = False  # whether each row has a k of its own, from 0 to k, which its scores tell

    @property
    def slots(self) -> int:
        """The slots of the result."""
        return Quota.of_fraction(self.k, self.n).k if isinstance(self.k, float) else self.k

    def inputs(self) -> Inputs:
        g = torch.Generator().manual_seed(self.seed)
        of_scores, of_values, of_mask = self.batches
        limit = torch.finfo(self.dtype).max
        scores = SCORES[self.scores]((*of_scores, self.n), self.dtype, g).clamp(-limit, limit)
        if self.special:
            some = 0.3 if self.special == -INF else 0.5 / self.n
            scores = scores.masked_fill(torch.rand(scores.shape, generator=g) < some, self.special)
        values = torch.randn(*of_values, self.n, self.d, generator=g).to(self.values_dtype)
        mask = None if self.kept is None else torch.rand(*of_mask, self.n, generator=g) < self.kept
        batch = torch.broadcast_shapes(of_scores, () if mask is None else of_mask)
        whole = torch.broadcast_shapes(batch, of_values)
        # Gradients so small that they do not overflow when multiplied by the largest gap.
        gradients = [
            (torch.rand(shape, generator=g) / 8 - 1 / 16) * wanted
            for shape, wanted in zip(
                ((*whole, self.slots, self.d), (*batch, self.slots), (*batch, self.n)), self.through, strict=True
            )
        ]
        arrange = MEMORY[self.memory]
        return Inputs(arrange(scores), arrange(values), mask, (gradients[0], gradients[1], gradients[2]))

    def options(self, scores: Tensor, mask: Tensor | None) -> dict[str, Any]:
        """The arguments of ``knockout.select`` that are no scores."""
        options = {"k": self.k, "boost": self.boost, "mask": mask, "order": self.order, "hard": self.hard}
        return options | {"k": self.counts(scores), "max_k": self.slots} if self.counted else options

    def counts(self, scores: Tensor) -> Tensor:
        """A k for each row."""
        return (scores.detach() > 0.1).sum(dim=-1) % (self.slots + 1)

    def select(self, scores: Tensor, mask: Tensor | None) -> knockout.Selection:
        return knockout.select(scores, **self.options(scores, mask))

    def topk(self, values: Tensor, scores: Tensor, mask: Tensor | None) -> TopKResult:
        return knockout.topk(values, scores, **self.options(scores, mask))

    def topk_inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Arguments of ``topk``, of which values and scores require a gradient."""
        scores, values, mask, _ = self.inputs()
        return values.requires_grad_(), scores.requires_grad_(), mask


def loss(out: TopKResult) -> Tensor:
    """A number that depends on all differentiable results."""
    return out.values.float().square().sum() + out.scores.float().sum()


def gradients(out: TopKResult, values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the loss."""
    d_values, d_scores = torch.autograd.grad(loss(out), (values, scores))
    return d_values, d_scores


class Results(NamedTuple):
    """Everything that a case gives."""

    indices: Tensor
    mask: Tensor
    scores: Tensor
    weights: Tensor  # or, if they would be too many, the mass
    support: Tensor
    perplexity: Tensor
    values: Tensor
    d_scores: Tensor
    d_values: Tensor


def run(case: Case) -> Results:
    """Forward and backward."""
    scores, values, mask, given = case.inputs()
    scores, values = scores.requires_grad_(), values.requires_grad_()
    selection = case.select(scores, mask)
    outputs = selection.apply(values), selection.scores, selection.mass()
    given_typed = [each.to(out.dtype) for each, out in zip(given, outputs, strict=True)]
    d_scores, d_values = torch.autograd.grad(outputs, (scores, values), given_typed)
    weights = selection.weights() if case.n * case.slots < 10**6 else selection.mass()
    return Results(
        selection.indices,
        selection.mask,
        outputs[1].detach(),
        weights.detach(),
        selection.support(),
        selection.perplexity().detach(),
        outputs[0].detach(),
        d_scores,
        d_values,
    )


def run_topk(case: Case) -> tuple[Tensor, ...]:
    """Forward and backward of ``knockout.topk``: its results, and the gradients of scores and values."""
    scores, values, mask, given = case.inputs()
    scores, values = scores.requires_grad_(), values.requires_grad_()
    out = case.topk(values, scores, mask)
    given_typed = [each.to(x.dtype) for each, x in zip(given, out[:2], strict=False)]
    gradients = torch.autograd.grad(out[:2], (scores, values), given_typed)
    return *(each.detach() for each in out), *gradients


# What every transform of PyTorch is tried with.
CASES = {
    "relative": Case(30, 5, Relative(1)),
    "number": Case(30, 5, 2.0),
    "softmax": Case(30, 5, Fixed(3)),
    "base": Case(30, 5, Base(20)),
    "power": Case(30, 5, Power(20)),
    "hard": Case(30, 5, 1.0, hard=True),
    "position": Case(30, 5, 1.0, order="position"),
    "mask": Case(30, 5, Relative(1), kept=0.5),
    "inactive by score": Case(30, 5, Relative(1), special=-INF),
    "empty slots": Case(30, 5, Relative(1), kept=0.1, hard=True, order="position"),
    "invalid rows": Case(30, 5, Relative(1), special=NAN, hard=True, seed=2),
    "fraction": Case(30, 0.3, Relative(1), kept=0.5),
    "counts": Case(30, 5, Relative(1), counted=True, seed=3),
    "counts and a mask": Case(30, 12, None, kept=0.5, hard=True, order="position", counted=True),
    "no round": Case(9, 9, Relative(1)),
    "half types": Case(30, 5, Relative(1), torch.float16, torch.bfloat16, memory="transposed"),
    "float64": Case(30, 5, Relative(1), torch.float64, torch.float16, kept=0.5),
    "broadcast": Case(30, 5, Relative(1), batches=BATCHES[2], kept=0.5),
    "empty batch": Case(30, 5, Fixed(3), batches=BATCHES[-1]),
    "c is a tensor": Case(30, 5, Relative(torch.tensor(1.0))),
    "the default": Case(30, 5, None),
    "adaptive": Case(29, 5, Adaptive(2, unit=3), kept=0.8),
    "c and unit are tensors": Case(30, 5, Adaptive(torch.tensor(2.0), torch.tensor(3.0))),
}


# What can be returned from a transform.
SELECTIONS: dict[str, Callable[[Tensor], knockout.Selection]] = {
    "soft": lambda scores: knockout.select(scores, 5),
    "straight-through": lambda scores: knockout.select(scores, 5, hard=True),
    "iterative": lambda scores: knockout.methods.iterative(scores, 5),
    "hard": lambda scores: knockout.methods.hard(scores, 5),
}


@st.composite
def drawn_cases(draw: st.DrawFn, sizes: st.SearchStrategy[int]) -> Case:
    n = draw(sizes)
    dtype = draw(st.sampled_from(DTYPES))
    k = draw(st.integers(1, min(n, 8)) | st.integers(1, min(n, 300)) | st.floats(0.001, 0.999))
    few = n * (k if isinstance(k, int) else k * n + 1) < 2**14  # counts take the reference memory for n members a slot
    return Case(
        n=n,
        k=k,
        boost=draw(st.sampled_from([*BOOSTS, *SHARP_BOOSTS])),
        dtype=dtype,
        values_dtype=draw(st.just(dtype) | st.sampled_from(DTYPES)),
        scores=draw(st.sampled_from(list(SCORES))),
        memory=draw(st.sampled_from(list(MEMORY))),
        batches=draw(st.just(BATCHES[0]) | st.sampled_from(BATCHES)),
        kept=draw(st.none() | st.sampled_from([0.0, 0.1, 0.5, 0.9])),
        special=draw(st.just(0.0) | st.sampled_from([-INF, INF, NAN])),
        order=draw(st.sampled_from(["score", "position"])),
        hard=draw(st.booleans()),
        through=draw(st.tuples(st.booleans(), st.booleans(), st.booleans())),
        d=draw(st.sampled_from([1, 3, 16, 37])),
        seed=draw(st.integers(0, 2**32)),
        counted=few and draw(st.booleans()),
    )
