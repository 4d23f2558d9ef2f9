"""The native kernels: they agree with the reference, whatever runs them, and PyTorch's transforms see through them."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import AotEagerAndRecordGraphs
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

import knockout
from knockout.backends import force, why_not
from knockout.boost import Base, Boost, Fixed, Power, Relative
from knockout.dtypes import computing_dtype
from knockout.functional import Order
from knockout.quota import Quota
from tests.cases import BOOSTS, DTYPES, randn, same_bits, separated

INF, NAN = float("inf"), float("nan")


def test_the_kernels_are_there() -> None:
    assert why_not() == ""
    assert available()


# --- native and reference agree -------------------------------------------------------------------

# Besides those of the other tests: some that tell near ties and tiny scores apart.
SHARP = [Relative(1), Fixed(100), Relative(4, unit=1e-6), Relative(16, unit=1e-30), Fixed(3e6, alpha=1.5), Fixed(1e7)]
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def nearly_tied(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """10, and the three numbers above it."""
    integer = INTEGERS[dtype.itemsize]
    steps = torch.randint(4, shape, generator=generator).to(integer)
    return (torch.full(shape, 10.0, dtype=dtype).view(integer) + steps).view(dtype)


SCORES: dict[str, Callable[[tuple[int, ...], torch.dtype, torch.Generator], Tensor]] = {
    "uniform": lambda shape, dtype, g: torch.rand(shape, dtype=dtype, generator=g),
    "normal": lambda shape, dtype, g: torch.randn(shape, dtype=dtype, generator=g),
    "tied": lambda shape, dtype, g: torch.randint(-2, 3, shape, generator=g).to(dtype),
    "nearly tied": nearly_tied,
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
# Of scores, values and mask.
BATCHES = [((3,),) * 3, ((),) * 3, ((2, 2), (2, 1), (1, 2)), ((2, 2), (), (2,)), ((2,), (3, 1), ()), ((0,),) * 3]
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-13}


class Case(NamedTuple):
    n: int
    k: float
    boost: Boost = Relative(4)
    dtype: torch.dtype = torch.float32
    values_dtype: torch.dtype = torch.float32
    scores: str = "normal"
    memory: str = "dense"
    batches: tuple[tuple[int, ...], ...] = BATCHES[0]
    kept: float | None = None  # by the mask, of all candidates; None for no mask
    special: float = 0.0  # the score of some candidates
    order: Order = "score"
    hard: bool = False
    through: tuple[bool, bool, bool] = (True, True, True)  # what the loss looks at: values, scores, mass
    d: int = 3
    seed: int = 0

    @property
    def slots(self) -> int:
        return Quota.of_fraction(self.k, self.n).k if isinstance(self.k, float) else self.k

    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor, Tensor]:
        """Scores, values, mask, and the gradients of values, scores and mass."""
        g = torch.Generator().manual_seed(self.seed)
        ours, theirs, masks = self.batches
        limit = torch.finfo(self.dtype).max
        scores = SCORES[self.scores]((*ours, self.n), self.dtype, g).clamp(-limit, limit)
        if self.special:
            some = 0.3 if self.special == -INF else 0.5 / self.n
            scores = scores.masked_fill(torch.rand(scores.shape, generator=g) < some, self.special)
        values = torch.randn(*theirs, self.n, self.d, generator=g).to(self.values_dtype)
        mask = None if self.kept is None else torch.rand(*masks, self.n, generator=g) < self.kept
        batch = torch.broadcast_shapes(ours, () if mask is None else masks)
        shapes = ((*torch.broadcast_shapes(batch, theirs), self.slots, self.d), (*batch, self.slots), (*batch, self.n))
        # Gradients so small that they do not overflow when multiplied by the largest gap.
        ups = [
            (torch.rand(shape, generator=g) / 8 - 1 / 16) * on for shape, on in zip(shapes, self.through, strict=True)
        ]
        return MEMORY[self.memory](scores), MEMORY[self.memory](values), mask, ups[0], ups[1], ups[2]


class Outcome(NamedTuple):
    """What a case came to."""

    indices: Tensor
    mask: Tensor
    scores: Tensor
    weights: Tensor
    support: Tensor
    perplexity: Tensor
    values: Tensor
    d_scores: Tensor
    d_values: Tensor


def play(case: Case) -> Outcome:
    scores, values, mask, *ups = case.tensors()
    scores, values = scores.requires_grad_(), values.requires_grad_()
    selection = knockout.select(scores, case.k, case.boost, mask=mask, order=case.order, hard=case.hard)
    outputs = selection.apply(values), selection.scores, selection.mass()
    ups = [up.to(x.dtype) for x, up in zip(outputs, ups, strict=True)]
    d_scores, d_values = torch.autograd.grad(outputs, (scores, values), ups)
    weights = selection.weights() if case.n * case.slots < 10**6 else selection.mass()
    blended, score, _ = (x.detach() for x in outputs)
    perplexity = selection.perplexity().detach()
    return Outcome(
        selection.indices,
        selection.mask,
        score,
        weights.detach(),
        selection.support(),
        perplexity,
        blended,
        d_scores,
        d_values,
    )


def close(one: Tensor, other: Tensor, tolerance: float, noise: float = 0.0) -> None:
    """Up to rounding: of the largest that was added up, of what cancelled out on the way, of the smallest numbers."""
    limits = torch.finfo(one.dtype)
    largest = other.nan_to_num().abs().amax().item() if other.numel() else 0.0
    noise += tolerance * largest + 64 * limits.tiny * limits.eps
    torch.testing.assert_close(one, other, rtol=tolerance, atol=noise, equal_nan=True)


def steepness(boost: Boost, scores: Tensor) -> float:
    """How far a logit moves with a score, at most: the last bit of a share is so much in its gradient."""
    known = scores[scores.isfinite()].double()
    if isinstance(boost, Relative):
        return float(boost.c) / max(boost.unit, (known - known.mean()).abs().mean().item() if known.numel() else 0.0)
    if isinstance(boost, Fixed):
        return float(boost.c)
    assert isinstance(boost, (Base, Power))
    top = known.max().item() if known.numel() and isinstance(boost, Power) else 0.0
    return math.log(boost.b) * math.exp(min(math.log(boost.b) * top, 40.0))


def agree(case: Case) -> None:
    with force("cpu"):
        native = play(case)
    with force("reference"):
        reference = play(case)
    for one, other in zip(native[:4], reference[:4], strict=True):
        same_bits(one, other)
    close(native.perplexity, reference.perplexity, TOLERANCE[case.dtype])
    close(native.values, reference.values, TOLERANCE[case.values_dtype])
    if not reference.scores.isnan().any():
        same_bits(native.support, reference.support)
        close(native.d_values, reference.d_values, TOLERANCE[case.values_dtype])
    computing = min(computing_dtype(case.dtype), computing_dtype(case.values_dtype), key=lambda x: x.itemsize)
    tolerance = max(TOLERANCE[case.dtype], TOLERANCE[computing])
    steep = steepness(case.boost, case.tensors()[0]) if case.through[0] or case.through[2] else 1.0
    close(native.d_scores, reference.d_scores, tolerance, 16 * torch.finfo(computing).eps * steep)


@st.composite
def cases(draw: st.DrawFn, sizes: st.SearchStrategy[int]) -> Case:
    n = draw(sizes)
    dtype = draw(st.sampled_from(DTYPES))
    return Case(
        n=n,
        k=draw(st.integers(1, min(n, 8)) | st.integers(1, min(n, 300)) | st.floats(0.001, 0.999)),
        boost=draw(st.sampled_from([*BOOSTS, *SHARP])),
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
    )


@given(cases(st.integers(1, 20) | st.integers(1, 300)))
@settings(max_examples=1000, deadline=None)
def test_drawn_cases_agree_with_the_reference(case: Case) -> None:
    agree(case)


@given(cases(st.integers(1000, 9000)))
@settings(max_examples=150, deadline=None)
def test_drawn_long_cases_agree_with_the_reference(case: Case) -> None:
    agree(case._replace(batches=BATCHES[1]))


LONG = [Relative(4), Relative(0.5), Relative(2, unit=0.01, alpha=1), Fixed(3e6, alpha=1.5), Power(20)]


@pytest.mark.parametrize("n", [20_000, 70_000])
@pytest.mark.parametrize("scores", SCORES)
def test_long_rows_agree_with_the_reference(scores: str, n: int) -> None:
    for i, (boost, k) in enumerate(zip(LONG, (1, 7, 40, 0.01, 300), strict=True)):
        dtype = DTYPES[(i + n // 50_000) % 4]
        agree(Case(n, k, boost, dtype, scores=scores, batches=BATCHES[1], kept=0.9 if i % 2 else None, seed=i))


# --- the same bits, whoever runs them -------------------------------------------------------------


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def native() -> Iterator[None]:
    with force("cpu"):
        yield


FEW = [Relative(4), Relative(0.5), Relative(2, unit=0.01, alpha=1), Fixed(100), Power(20)]
SEVERAL = [
    Case(3000, 17, batches=((33,), (33,), (33,)), kept=0.9),
    Case(700, 99, batches=((2, 8), (8,), ()), values_dtype=torch.float16, d=150),  # values shared by two rows
    Case(200_000, 3, batches=BATCHES[1]),
    Case(200_000, 5000, dtype=torch.float64, batches=BATCHES[1], scores="heavy-tailed", kept=0.7),
    Case(200_000, 64, dtype=torch.bfloat16, batches=((1,),) * 3, scores="tied"),
]


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("boost", [Relative(4), Relative(2, unit=0.01, alpha=1), Fixed(100)], ids=str)
@pytest.mark.parametrize("case", SEVERAL, ids=lambda case: f"n={case.n}, k={case.k}")
def test_neither_the_number_of_threads_nor_another_run_changes_a_bit(case: Case, boost: Boost) -> None:
    case = case._replace(boost=boost)
    with threads(1):
        expected = play(case)
    for count in (2, 7, 7):
        with threads(count):
            for one, other in zip(play(case), expected, strict=True):
                same_bits(one, other)


@pytest.mark.usefixtures("native")
def test_many_python_threads_at_once() -> None:
    several = [Case(n, 5, boost, kept=0.9, seed=n) for n in (7, 300, 4000, 70_000) for boost in FEW]
    alone = [play(case) for case in several]
    with ThreadPoolExecutor(8) as pool:
        for outcome, expected in zip(pool.map(play, several * 3), alone * 3, strict=True):
            for one, other in zip(outcome, expected, strict=True):
                same_bits(one, other)


class Blends(Dataset[Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, seed: int) -> Tensor:
        return play(Case(100_000, 5, batches=BATCHES[1], seed=seed)).values


@pytest.mark.usefixtures("native")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on, where there are threads
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # where there is one core
@pytest.mark.parametrize("count", [1, 2])
def test_forked_workers_of_a_data_loader(count: int) -> None:
    with threads(count):  # with two, the workers are children of a process that has threads
        alone = torch.stack([Blends()[seed] for seed in range(8)])
        loader = DataLoader(Blends(), batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=60)
        same_bits(torch.cat(list(loader)), alone)


HERE = Path(__file__).parents[1]


def python(code: str, **environment: str) -> str:
    """What a new process prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=HERE, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True, text=True
    ).stdout.strip()


class Record(TorchDispatchMode):
    """Notes every call of a kernel: which, its arguments, its results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...], tuple[Tensor, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace == "knockout":
            self.calls.append((func, args, out if isinstance(out, tuple) else (out,)))
        return out


def digest() -> str:
    """Of all that the kernels write for some cases, in a process whose new memory is filled if it can be."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    bits = hashlib.sha256()
    with force("cpu"), threads(1), Record() as record:
        for case in (Case(300, 7, boost, batches=batches, kept=0.5) for boost in FEW for batches in BATCHES):
            play(case)
    for _, _, out in record.calls:
        for x in out:
            bits.update(x.detach().flatten().view(torch.uint8).numpy().tobytes())
    return bits.hexdigest()


def test_memory_is_written_before_it_is_read() -> None:
    code = "from tests.test_native import digest; print(digest())"
    assert python(code) == python(code, MALLOC_PERTURB_="165", MALLOC_MMAP_MAX_="0")


# --- what PyTorch sees ----------------------------------------------------------------------------


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    "case",
    [
        Case(9, 2),
        Case(9, 2, kept=0.5, hard=True, order="position"),
        Case(9, 2, dtype=torch.float16, values_dtype=torch.bfloat16, memory="transposed"),
        Case(9, 2, dtype=torch.float64, values_dtype=torch.float16, batches=BATCHES[2], kept=0.5),
        Case(9, 9, Power(20), values_dtype=torch.float64, batches=BATCHES[4], special=-INF),
        Case(9, 2, Fixed(3), batches=BATCHES[-1]),
        Case(9, 0.3, kept=0.5),
    ],
    ids=str,
)
def test_opcheck(case: Case) -> None:
    with Record() as record:
        play(case)
        scores, _, mask, *_ = case.tensors()
        knockout.select(scores, case.k, case.boost, mask)  # without gradient: nothing to be saved
    assert {func._opname for func, *_ in record.calls} == {
        "tournament",
        "tournament_backward",
        "blend",
        "spread",
        "match",
    }
    for func, args, _ in record.calls:
        detached = tuple(x.detach() if isinstance(x, Tensor) else x for x in args)
        torch.library.opcheck(func, detached)
        if func._opname == "tournament":
            torch.library.opcheck(func, (*detached[:-1], True))  # with shapes that are known beforehand


def inputs(*batch: int) -> tuple[Tensor, Tensor]:
    return randn(*batch, 30, 4, dtype=torch.float32).requires_grad_(), separated(*batch, 30).float().requires_grad_()


def pool(values: Tensor, scores: Tensor) -> Tensor:
    out = knockout.topk(values, scores, 5, Relative(1))
    return torch.cat([out.values, out.scores.unsqueeze(-1)], dim=-1)


def loss(values: Tensor, scores: Tensor) -> Tensor:
    return pool(values, scores).square().sum()


@pytest.mark.usefixtures("native")
@pytest.mark.filterwarnings("ignore:Your compiler for AOTAutograd")  # that of the recording backend
def test_compile_traces_the_kernels() -> None:
    torch._dynamo.reset()
    backend = AotEagerAndRecordGraphs()
    compiled = torch.compile(pool, backend=backend, fullgraph=True)(*inputs(3))
    same_bits(compiled, pool(*inputs(3)))
    arguments = inputs(3)
    for one, other in zip(
        torch.autograd.grad(torch.compile(loss, backend=backend, fullgraph=True)(*arguments), arguments),
        torch.autograd.grad(loss(*arguments), arguments),
        strict=True,
    ):
        same_bits(one, other)
    for graphs, names in (
        (backend.fw_graphs, "tournament blend"),
        (backend.bw_graphs, "tournament_backward spread match"),
    ):
        for name in names.split():
            assert f"torch.ops.knockout.{name}.default" in graphs[-1].code


@pytest.mark.usefixtures("native")
def test_export_traces_the_kernels() -> None:
    class Pool(torch.nn.Module):
        def forward(self, values: Tensor, scores: Tensor) -> Tensor:
            return pool(values, scores)

    arguments = tuple(x.detach() for x in inputs(3))
    program = torch.export.export(Pool(), arguments)
    assert "torch.ops.knockout.tournament.default" in program.graph_module.code
    assert "torch.ops.knockout.blend.default" in program.graph_module.code
    same_bits(program.module()(*arguments), pool(*arguments))


@pytest.mark.usefixtures("native")
def test_torch_func() -> None:
    values, scores = (x.detach() for x in inputs(3))
    mapped = torch.vmap(pool)(values, scores), *torch.vmap(torch.func.grad(loss, argnums=(0, 1)))(values, scores)
    arguments = inputs(3)
    for one, other in zip(mapped, (pool(*arguments), *torch.autograd.grad(loss(*arguments), arguments)), strict=True):
        same_bits(one, other.detach())


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype: torch.dtype) -> None:
    arguments = inputs(3)
    with torch.autocast("cpu", dtype=dtype):
        cast = loss(*arguments)
    same_bits(cast, loss(*arguments))
    for one, other in zip(
        torch.autograd.grad(cast, arguments), torch.autograd.grad(loss(*arguments), arguments), strict=True
    ):
        same_bits(one, other)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    "boost", [Relative(0.7), Relative(1, unit=0.01, alpha=1), Fixed(1, alpha=2), Power(2)], ids=str
)
@pytest.mark.parametrize("order", ["score", "position"])
def test_second_derivatives(boost: Boost, order: Order) -> None:
    mask = torch.arange(9) != 4

    def operator(values: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        return knockout.topk(values, scores, 2, boost, mask=mask, order=order)[:2]

    arguments = randn(2, 9, 3).requires_grad_(), separated(2, 9).requires_grad_()
    assert gradcheck(operator, arguments)
    assert gradgradcheck(operator, arguments)
    seconds = []
    for backend in ("native", "reference"):
        with force(backend):
            values, scores = operator(*arguments)
            first = torch.autograd.grad(values.square().sum() + scores.exp().sum(), arguments, create_graph=True)
            seconds.append(torch.autograd.grad(first[0].square().sum() + first[1].square().sum(), arguments))
    for one, other in zip(*seconds, strict=True):
        torch.testing.assert_close(one, other)


# --- who decides ----------------------------------------------------------------------------------


def test_force_names_the_choices_and_takes_itself_back() -> None:
    with (
        pytest.raises(ValueError, match="backend must be one of 'auto', 'native', 'reference'; got 'fast'"),
        force("fast"),
    ):
        pass
    with force("reference"):
        assert not available()
        assert "force('reference')" in why_not()
        with force("auto"), force("cpu"):
            assert available()
        assert not available()
        with pytest.raises(KeyError), force("cpu"):
            raise KeyError
        assert not available()
    assert available()


def test_what_is_forced_but_cannot_be_raises_and_says_why() -> None:
    scores = torch.empty(3, 9, device="meta")
    assert knockout.select(scores, 2).indices.is_meta
    with force("cpu"), pytest.raises(RuntimeError, match=r"forced.*CPU tensors.*n = 9 on meta"):
        knockout.select(scores, 2)


HIDE = "import sys; sys.modules['knockout._C'] = None"
SHOW = """
import torch, knockout
scores = torch.tensor([0.5, 3.0, 2.5, 0.25], requires_grad=True)
out = knockout.topk(torch.eye(4), scores, 2, boost=1.0)
out.values.square().sum().backward()
print(out.indices.tolist(), bool(scores.grad.any()), knockout.native.available(), knockout.native.why_not())
"""


@pytest.mark.parametrize(
    ("code", "environment", "words"),
    [
        (SHOW, {}, ["True"]),
        (SHOW, {"KNOCKOUT_BACKEND": "reference"}, ["False", "KNOCKOUT_BACKEND=reference"]),
        (HIDE + SHOW, {}, ["False", "knockout._C could not be loaded", "compiler"]),
    ],
    ids=["as it is", "KNOCKOUT_BACKEND=reference", "without the extension"],
)
def test_a_process_without_the_kernels_works_and_says_why(
    code: str, environment: dict[str, str], words: list[str]
) -> None:
    printed = python(code, **environment)
    assert printed.startswith(f"[1, 2] True {words[0]}")
    assert all(word in printed for word in words)
