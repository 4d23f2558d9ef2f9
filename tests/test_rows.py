"""Values that are no tensor: the same results, and only the rows that carry weight are read, in blocks."""

from __future__ import annotations

import io
import mmap
import subprocess
import sys
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import knockout
from knockout import methods
from knockout.rows import gather as rows
from knockout.rows import sources
from knockout.rows.gather import blend_rows
from knockout.rows.sources import check_source, is_source
from tests.cases import randn, same_bits, separated

N, D = 60, 5


class Counting:
    """A source that writes down what it is asked for."""

    def __init__(self, values: Tensor) -> None:
        self.values, self.asked = values, list[Any]()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def take(self, wanted: Any) -> Tensor:
        assert wanted.dtype == np.int64
        assert wanted.ndim == 1
        self.asked.append(wanted.tolist())
        return self.values[torch.from_numpy(wanted)]

    def read(self) -> list[int]:
        return [row for some in self.asked for row in some]


def mapped(values: Tensor, folder: Path) -> Any:
    path = folder / "values.npy"
    np.save(path, values.numpy())
    return np.load(path, mmap_mode="r")


def vectors(values: Tensor, pieces: int = 3) -> Any:
    """A column of vectors in several chunks, the first of them cut out of a longer one."""
    array = values.numpy()
    longer = np.concatenate([array[:1] * 0 - 7, array])
    whole = pa.FixedSizeListArray.from_arrays(longer.ravel(), array.shape[1])[1:]
    cuts = [len(array) * i // pieces for i in range(pieces + 1)]
    return pa.chunked_array([whole[a:b] for a, b in pairwise(cuts)])


def parquet(table: Any, folder: Path, size: int = 7) -> Any:
    pq.write_table(table, folder / "values.parquet", row_group_size=size)
    return pq.ParquetFile(folder / "values.parquet")


def tensors(values: Tensor, folder: Path, framework: str) -> Any:
    save_file({"other": torch.zeros(3), "values": values}, folder / "values.safetensors")
    return safe_open(folder / "values.safetensors", framework).get_slice("values")  # type: ignore[no-untyped-call]


def numbers(values: Tensor) -> Any:
    return pa.table({str(i): column for i, column in enumerate(values.numpy().T)})


SOURCES: dict[str, Callable[[Tensor, Path], Any]] = {
    "array": lambda values, _: values.numpy(),
    "array, other byte order": lambda values, _: values.numpy().astype(values.numpy().dtype.newbyteorder(">")),
    "array, by columns": lambda values, _: np.asfortranarray(values.numpy()),
    "memmap": mapped,
    "safetensors, pt": lambda values, folder: tensors(values, folder, "pt"),
    "safetensors, numpy": lambda values, folder: tensors(values, folder, "numpy"),
    "arrow array": lambda values, _: vectors(values, 1).chunk(0),
    "arrow chunks": lambda values, _: vectors(values),
    "arrow table": lambda values, _: pa.table({"name": ["x"] * len(values), "vector": vectors(values)}),
    "arrow batch": lambda values, _: pa.record_batch({"vector": vectors(values, 1).chunk(0)}),
    "arrow numbers": lambda values, _: numbers(values),
    "parquet": lambda values, folder: parquet(
        pa.table({"name": ["x"] * len(values), "vector": vectors(values)}), folder
    ),
    "parquet numbers": lambda values, folder: parquet(numbers(values), folder),
    "shape and take": lambda values, _: Counting(values),
}


@pytest.fixture(params=SOURCES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Tensor], Any]:
    return lambda values: SOURCES[request.param](values, tmp_path)


@pytest.fixture(params=[2**23, 3 * D], ids=["one block", "many blocks"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many numbers are read at a time."""
    monkeypatch.setattr(rows, "BLOCK", request.param)
    return int(request.param)


def compare(values: Tensor, source: Any, scores: Tensor, use: Callable[[Any, Tensor], Tensor], **close: Any) -> None:
    """The results of a source, and the gradients of the scores, are those of the tensor."""
    results = []
    for each in (values, source):
        mine = scores.detach().clone().requires_grad_()
        out = use(each, mine)
        weight = randn(*out.shape, dtype=out.dtype)
        (gradient,) = torch.autograd.grad(out, mine, weight)
        results.append((out.detach(), gradient))
    assert results[1][0].dtype == values.dtype
    torch.testing.assert_close(results[1], results[0], equal_nan=True, **close)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("boost", [0.3, 4.0])
def test_the_same_as_from_a_tensor(make: Callable[[Tensor], Any], boost: float, hard: bool) -> None:
    values, scores = randn(N, D), separated(2, 1, N)
    source = make(values)
    assert is_source(source)
    compare(values, source, scores, lambda v, s: knockout.topk(v, s, 7, boost, hard=hard).values)
    picked = knockout.select(scores, 7, boost, hard=hard)
    same_bits(picked.apply(source), picked @ source)
    if hard:
        same_bits(picked.apply(source), values[picked.indices])


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, dtype) for kind in SOURCES for dtype in (torch.float16, torch.float32)]
    + [(kind, torch.bfloat16) for kind in ("safetensors, pt", "shape and take")],  # the others have no such numbers
)
def test_dtypes(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    values = randn(N, D).to(dtype)
    source = SOURCES[kind](values, tmp_path)
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype.itemsize == 2 else {}
    compare(values, source, separated(N).float(), lambda v, s: knockout.topk(v, s, 7, 0.3).values, **tolerance)
    leaders = knockout.topk(source, separated(N), 7, hard=True)
    same_bits(leaders.values, values[leaders.indices])


@pytest.mark.usefixtures("block")
def test_empty_slots_invalid_rows_and_nobody_at_all(make: Callable[[Tensor], Any]) -> None:
    values = randn(N, D, dtype=torch.float32)
    source, mask = make(values), torch.arange(N) % 20 == 3  # three of them
    scores = separated(3, N).float()
    scores[1, 3] = torch.nan
    for hard in (False, True):
        compare(values, source, scores, lambda v, s, hard=hard: knockout.topk(v, s, 5, 0.3, mask, hard=hard).values)  # type: ignore[misc]
        out = knockout.topk(source, scores, 5, mask=mask, hard=hard).values
        assert out[1].isnan().all()
        assert (out[[0, 2], 3:] == 0).all()
        inactive = knockout.topk(source, scores[0], 5, mask=torch.zeros(N, dtype=torch.bool), hard=hard).values
        same_bits(inactive, torch.zeros(5, D))


def test_what_is_read(block: int) -> None:
    values, scores = randn(N, D), separated(2, N).requires_grad_()
    values[knockout.select(scores, 4, 2.0).mass().sum(0) == 0] = torch.nan
    source = Counting(values)
    out = knockout.topk(source, scores, 4, 2.0).values
    assert out.isfinite().all()
    carrying = knockout.select(scores, 4, 2.0).mass().sum(0).nonzero().flatten().tolist()
    assert 8 <= len(carrying) < N
    assert source.read() == carrying  # ascending, each once
    assert max(map(len, source.asked)) <= block // D
    times = len(source.asked)
    out.sum().backward()
    # What was one block is still there.
    assert source.read() == (carrying if times == 1 else 2 * carrying)


def test_nothing_is_read_for_invalid_rows() -> None:
    source, scores = Counting(randn(N, D)), separated(2, N)
    scores[1, 7] = torch.nan
    alone = knockout.select(scores[0], 4, 0.5).mass().nonzero().flatten().tolist()
    knockout.topk(source, scores, 4, 0.5)
    assert source.read() == alone
    knockout.topk(source, scores[1], 4, 0.5)
    assert source.asked[-1] == []


@pytest.mark.usefixtures("block")
def test_hard_reads_leaders_and_backward_the_others() -> None:
    source, scores = Counting(randn(N, D)), separated(2, N).requires_grad_()
    out = knockout.topk(source, scores, 4, 1.0, hard=True)
    assert source.read() == sorted(set(out.indices.flatten().tolist()))
    source.asked.clear()
    out.values.sum().backward()
    assert source.read() == knockout.select(scores, 4, 1.0).mass().sum(0).nonzero().flatten().tolist()


def test_parquet_reads_the_row_groups_it_needs_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BLOCK", 2 * D)
    values = randn(N, D)
    file = parquet(pa.table({"id": range(N), "vector": vectors(values)}), tmp_path, size=10)
    asked = []

    class ParquetFile:
        __module__ = "pyarrow.parquet"
        metadata, schema_arrow = file.metadata, file.schema_arrow

        def read_row_group(self, number: int, columns: list[str]) -> Any:
            asked.append(number)
            return file.read_row_group(number, columns=columns)

    weight, member = torch.ones(2, 4), torch.tensor([[31, 12, 14, N], [38, 33, 11, 59]])
    out = blend_rows(ParquetFile(), weight, member)  # type: ignore[arg-type]
    torch.testing.assert_close(out, torch.stack([values[[31, 12, 14]].sum(0), values[[38, 33, 11, 59]].sum(0)]))
    assert asked == [1, 3, 5]


def test_safetensors_are_sliced_by_runs_of_neighbours(tmp_path: Path) -> None:
    part = tensors(randn(N, D), tmp_path, "pt")
    asked = []

    class Slice:
        get_shape, get_dtype = part.get_shape, part.get_dtype

        def __getitem__(self, which: slice) -> Any:
            asked.append((which.start, which.stop))
            return part[which]

    blend_rows(Slice(), torch.ones(1, 6), torch.tensor([[9, 4, 5, 3, N, 0]]))  # type: ignore[arg-type]
    assert asked == [(0, 1), (3, 6), (9, 10)]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux to tell what is resident")
def test_a_memmap_is_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BLOCK", 2**18)
    values = torch.zeros(2**16, 64)
    source = mapped(values, tmp_path)
    found = []

    def resident(done: int, total: int) -> None:  # noqa: ARG001
        lines = iter(Path("/proc/self/smaps").read_text().splitlines())
        while "values.npy" not in next(lines):
            pass
        found.append(next(int(line.split()[1]) for line in lines if line.startswith("Rss:")) / 1024)

    knockout.select(torch.zeros(2**16), 4, 0.1).apply(source, resident)
    assert len(found) == 16
    assert max(found) <= 4  # of 16 MiB


def test_a_memmap_is_let_go_of_within_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PAGE", 64 * 8 * 10)  # ten rows
    monkeypatch.setattr(sources, "PAGES", 2)
    values = randn(N, 64)
    source, times = mapped(values, tmp_path), []

    class Pages(mmap.mmap):
        def madvise(self, *advice: int) -> None:
            times.append(advice)

    source._mmap = Pages(-1, 1)
    member = torch.tensor([[3, 5, 12, 31, 33, 47, 59]])
    out = blend_rows(source, torch.ones(1, 7, dtype=torch.float64), member)
    torch.testing.assert_close(out[0], values[member[0]].sum(0))
    assert times == [(mmap.MADV_DONTNEED,)] * 3  # 3 to 12, 31 to 47, 59


def test_a_memmap_that_was_written_to_keeps_what_was_written(tmp_path: Path) -> None:
    mapped(torch.zeros(N, D), tmp_path)
    for mode in ("c", "r+"):
        source = np.load(tmp_path / "values.npy", mmap_mode=mode)
        source[:] = 3.0
        out = knockout.select(separated(N), 4, hard=True).apply(source)
        same_bits(out, torch.full((4, D), 3.0))
        assert (source == 3.0).all()


@pytest.mark.usefixtures("block")
def test_gradients() -> None:
    values, scores = randn(9, 2).numpy(), separated(9).requires_grad_()

    def use(scores: Tensor) -> Tensor:
        return knockout.topk(values, scores, 2, 0.5).values

    assert torch.autograd.gradcheck(use, scores)
    assert torch.autograd.gradgradcheck(use, scores)


class OneBuffer(Counting):
    """A source that returns the same memory every time."""

    def __init__(self, values: Tensor, kind: str) -> None:
        super().__init__(values)
        self.kind, self.buffer = kind, torch.zeros_like(values)

    def take(self, wanted: Any) -> Any:
        read = self.buffer[: len(wanted)].copy_(super().take(wanted))
        return read.numpy() if self.kind == "numpy" else read


class WholeTable(Counting):
    """A source that returns a view of its table where all rows are wanted."""

    def take(self, wanted: Any) -> Tensor:
        read = super().take(wanted)
        return self.values[:] if len(wanted) == len(self.values) else read


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_source_may_fill_the_same_buffer_again(kind: str) -> None:
    values, scores = randn(N, D), [separated(2, N, seed=seed).requires_grad_() for seed in range(2)]
    source = OneBuffer(values, kind)
    outs = [[knockout.topk(each, mine, 7, 2.0).values for mine in scores] for each in (source, values)]
    found, expected = (torch.autograd.grad([out.sin().sum() for out in some], scores) for some in outs)
    torch.testing.assert_close(found, expected)


def test_a_source_may_return_its_table_and_change_it_later() -> None:
    values, scores = randn(N, D), torch.zeros(N, dtype=torch.float64, requires_grad=True)
    source = WholeTable(values.clone())
    out, expected = (knockout.topk(each, scores, 7, 0.3).values for each in (source, values))
    assert source.read() == list(range(N))
    source.values.fill_(torch.nan)
    found = torch.autograd.grad(out.sin().sum(), scores)
    torch.testing.assert_close(found, torch.autograd.grad(expected.sin().sum(), scores))


def kept_numbers(run: Callable[[], Tensor]) -> tuple[int, Tensor]:
    """How many floating-point numbers autograd saves in a call, and its result."""
    saved: list[Tensor] = []

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        out = run()
    return sum(each.numel() for each in saved if each.is_floating_point()), out


def test_value_rows_are_kept_only_for_a_gradient() -> None:
    source, picked = Counting(randn(N, D)), knockout.select(separated(N).requires_grad_(), 7, 0.3)
    read = D * int((picked.mass() > 0).sum())
    kept, out = kept_numbers(lambda: picked.apply(source))
    assert kept == read  # and no weights
    assert out.requires_grad
    with torch.no_grad():
        assert kept_numbers(lambda: picked.apply(source))[0] == 0
    assert kept_numbers(lambda: knockout.select(separated(N), 7, 0.3).apply(source))[0] == 0
    hard = knockout.select(separated(N).requires_grad_(), 7, 0.3, hard=True)
    assert kept_numbers(lambda: hard.apply(source))[0] == 0


def test_chunks_of_slots_do_not_each_keep_the_value_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knockout.plan.DensePlan, "CHUNK", N)
    values, scores = randn(N, D), separated(N).requires_grad_()
    take, returned = sources._Array.take, list[Any]()

    def watched(self: Any, wanted: Any) -> Any:
        read = take(self, wanted)
        returned.append(weakref.ref(read))
        return read

    monkeypatch.setattr(sources._Array, "take", watched)
    out, expected = (methods.softsort(scores, 5).apply(each) for each in (values.numpy(), values))
    assert [each() is None for each in returned] == [True] * 5
    found = torch.autograd.grad(out.sin().sum(), scores)
    torch.testing.assert_close(found, torch.autograd.grad(expected.sin().sum(), scores))


@pytest.mark.parametrize(("batch", "width"), [((0, 2), 3), ((2,), 0), ((2,), 1)])
def test_sizes_of_zero_and_one(batch: tuple[int, ...], width: int) -> None:
    values = randn(N, width)
    for hard in (False, True):
        use = lambda v, s, hard=hard: knockout.topk(v, s, 4, 0.5, hard=hard).values  # noqa: E731
        compare(values, values.numpy(), separated(*batch, N), use)


def test_transforms_say_that_they_do_not_take_sources() -> None:
    values = randn(N, D).numpy()
    for transform in (torch.vmap, torch.func.jacrev):
        with pytest.raises(NotImplementedError, match=r"cannot be read under vmap or torch\.func; pass a tensor"):
            transform(lambda scores: knockout.topk(values, scores, 4).values)(separated(2, N))


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("hard", [False, True])
def test_a_slot_whose_leader_is_elsewhere(hard: bool) -> None:
    values = randn(N, D)
    weight = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    member = torch.tensor([[N, 7, 2], [9, N, N], [N, N, N]])
    weight.requires_grad_()
    source = Counting(values)
    out = blend_rows(source, weight, member, hard=hard)
    first = torch.zeros(D) if hard else 0.25 * (values[7] + values[2])
    torch.testing.assert_close(out, torch.stack([first, values[9], torch.zeros(D)]).double())
    assert source.read() == ([9] if hard else [2, 7, 9])
    out.sum().backward()
    expected = torch.tensor([[0, values[7].sum(), values[2].sum()], [values[9].sum(), 0, 0], [0, 0, 0]])
    torch.testing.assert_close(weight.grad, expected.double())


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize(
    "method",
    [methods.iterative, methods.softsort, methods.sinkhorn, methods.perturbed, methods.lapsum, methods.hard],
    ids=lambda method: method.__name__,
)
def test_other_methods(method: Callable[..., knockout.Selection], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knockout.plan.DensePlan, "CHUNK", 4 * N)
    values, mask = randn(N, D), torch.arange(N) % 4 != 1
    values[~mask] = torch.nan
    source = Counting(values)

    def use(values: Any, scores: Tensor) -> Tensor:
        torch.manual_seed(0)
        out = method(scores, 5, mask=mask).apply(values)
        return out if out.requires_grad else out + 0 * scores.sum()

    compare(values, source, separated(2, N), use)
    assert not set(source.read()) & set((~mask).nonzero().flatten().tolist())


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BLOCK", 3 * D)
    source, picked, told = Counting(randn(N, D)), knockout.select(separated(N), 4, 0.5), list[tuple[int, int]]()
    picked.apply(source, progress=lambda done, total: told.append((done, total)))
    total = len(source.read())
    assert told == [(min(done, total), total) for done in range(3, total + 3, 3)]
    with pytest.raises(
        TypeError, match=r"progress must be None, False or a function of \(done, total\); got 3 of type int"
    ):
        picked.apply(source, progress=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("progress", "terminal", "patience", "said"), [
    (None, True, 0.0, True), (None, True, 100.0, False), (None, False, 0.0, False), (False, True, 0.0, False),
])  # fmt: skip
def test_a_line_on_a_terminal(
    progress: Any, terminal: bool, patience: float, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "PATIENCE", patience)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    knockout.select(separated(N), 4, 50.0).apply(randn(N, D).numpy(), progress)
    assert ("knockout: 4 of 4 rows read" in stream.getvalue()) == said
    assert not said or stream.getvalue().endswith(" \r")  # wiped away at the end


class Bad:
    """A source that returns what it was given."""

    def __init__(self, came: Any, shape: Any = (N, D)) -> None:
        self.came, self.shape = came, shape

    def take(self, wanted: Any) -> Any:
        return self.came(wanted) if callable(self.came) else self.came


SCORES = separated(N)
VECTORS = vectors(randn(N, D))
PICKED = knockout.select(SCORES, 4, 50.0)


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        (np.zeros((N, D), np.int64), TypeError, ["values must be float16", "int64", "ndarray", "float32"]),
        (np.zeros((N, D), complex), TypeError, ["values must be float16", "complex128"]),
        (np.zeros((N, D), np.longdouble), TypeError, ["values must be float16", "longdouble|float128"]),
        (np.zeros((N - 1, D)), ValueError, ["shape (n, d) with n = 60", "ndarray of shape (59, 5)"]),
        (np.zeros(N), ValueError, ["shape (n, d) with n = 60", "(60,)", "values[:, None]"]),
        (np.zeros((2, N, D)), ValueError, ["(2, 60, 5)", "pass a tensor"]),
        ([[0.0] * D] * N, TypeError, ["values must be a torch.Tensor", "take(rows)", "got list"]),
        (None, TypeError, ["values must be a torch.Tensor", "got NoneType"]),
        (pa.array([1.0] * N), TypeError, ["values must be a torch.Tensor", "DoubleArray"]),
        (pa.table({"x": range(N)}), TypeError, ["one column of vectors", "Table", "x int64", "table.select"]),
        (pa.table({"x": VECTORS, "y": VECTORS}), TypeError, ["one column", "x fixed_size_list", "y fixed_size"]),
        (pa.FixedSizeListArray.from_arrays(range(N * D), D), TypeError, ["int64", "FixedSizeListArray"]),
        (pa.chunked_array([pa.nulls(N, VECTORS.type)]), ValueError, ["null", "ChunkedArray", "mask"]),
        (pa.FixedSizeListArray.from_arrays(pa.array([None] * N * D, pa.float32()), D), ValueError, ["null"]),
        (Bad(np.zeros((3, D))), ValueError, ["shape (len(rows), d), here (4, 5)", "(3, 5)", "Bad"]),
        (Bad(np.zeros((4, D + 1))), ValueError, ["here (4, 5)", "(4, 6)"]),
        (Bad(np.zeros(4)), ValueError, ["here (4, 5)", "(4,)"]),
        (Bad(torch.zeros(4, D, dtype=torch.int32)), TypeError, ["values must be float16", "torch.int32", "Bad"]),
        (Bad("nonsense"), TypeError, ["values must be float16", "<U8"]),
        (Bad(None), TypeError, ["values must be float16", "object"]),
        (Bad(np.zeros((4, D)), (N,)), ValueError, ["shape (n, d) with n = 60", "Bad of shape (60,)"]),
        (Bad(np.zeros((4, D)), None), TypeError, ["the shape of a Bad must be two ints", "got None"]),
        (Bad(np.zeros((4, D)), (60.0, 5)), TypeError, ["the shape of a Bad must be two ints", "60.0"]),
        (Bad([[1.0], [1.0, 2.0]]), ValueError, ["take(rows) must return an array", "list", "Bad"]),
        (Bad(torch.zeros(4, D).to_sparse()), TypeError, ["a dense tensor", "sparse", "Bad"]),
        (Bad(torch.zeros(4, D, device="meta")), TypeError, ["a dense tensor", "meta"]),
        (Bad(np.ma.masked_less(np.zeros((4, D)), 1.0)), TypeError, ["a masked array", "filled"]),
    ],
)  # fmt: skip
def test_errors(source: Any, error: type[Exception], words: list[str]) -> None:
    for use in (lambda: PICKED.apply(source), lambda: knockout.topk(source, SCORES, 4, 50.0)):
        with pytest.raises(error) as caught:
            use()
        for word in words:
            assert any(each in str(caught.value) for each in word.split("|")), (word, str(caught.value))


def test_an_integer_tensor_in_a_safetensors_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="got I64 from a PySafeSlice"):
        check_source(tensors(torch.zeros(N, D, dtype=torch.int64), tmp_path, "pt"), N)


def test_half_numbers_that_numpy_does_not_have(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match="open the safetensors file for PyTorch"):
            PICKED.apply(tensors(torch.zeros(N, D, dtype=torch.bfloat16), tmp_path, "np"))
        pytest.importorskip("ml_dtypes")  # NumPy has them from then on; JAX and ONNX import it too


def test_a_source_that_changes_its_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BLOCK", D)
    dtypes = iter([np.float32, np.float64])
    with pytest.raises(TypeError, match=r"same dtype every time; got torch\.float64 from a Bad"):
        PICKED.apply(Bad(lambda wanted: np.zeros((len(wanted), D), next(dtypes))))


def test_what_is_no_source() -> None:
    for each in (torch.zeros(2, 3), [1.0], "values", None, pa.array([1.0])):
        assert not is_source(each)


def test_nothing_is_imported_that_nobody_passes() -> None:
    code = (
        "import sys, torch, knockout\n"
        "knockout.topk(torch.randn(9, 2), torch.randn(9), 2)\n"
        "assert not {'pyarrow', 'safetensors'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- scores in chunks ---


@pytest.mark.parametrize("kind", ["list", "generator"])
def test_scores_in_chunks(kind: str) -> None:
    values, whole = randn(2, N, D), separated(2, N)
    mask = torch.arange(N) % 7 != 2
    chunks = [each.clone().requires_grad_() for each in whole.split([10, 0, 30, 20], dim=-1)]
    passed: Any = chunks if kind == "list" else (each for each in chunks)
    whole.requires_grad_()
    out, expected = (knockout.topk(values, scores, 6, 0.5, mask=mask) for scores in (passed, whole))
    same_bits(out.values, expected.values)
    same_bits(out.scores, expected.scores)
    gradients = torch.autograd.grad(out.values.square().sum(), chunks)
    same_bits(torch.cat(gradients, -1), torch.autograd.grad(expected.values.square().sum(), whole)[0])
    assert torch.equal(knockout.select(iter(chunks), 6).indices, knockout.select(whole, 6).indices)
    layer = knockout.nn.TopK(6)
    assert torch.equal(layer(values[0].numpy(), iter(chunks)).indices, layer(values, whole).indices)


def test_chunks_are_taken_and_checked_one_after_the_other() -> None:
    made = []

    def chunks() -> Any:
        for number in range(3):
            made.append(number)
            yield randn(4, seed=number).to(torch.float32 if number == 1 else torch.float64)

    with pytest.raises(ValueError, match=r"torch\.float32 in chunk 1"):
        knockout.select(chunks(), 2)
    assert made == [0, 1]  # the third was not computed in vain


@pytest.mark.parametrize(
    ("chunks", "error", "words"),
    [
        ([], ValueError, ["scores must be a torch.Tensor, or chunks of one", "got list without a chunk"]),
        (7, TypeError, ["scores must be a torch.Tensor, or chunks of one", "got int"]),
        ([SCORES, SCORES.tolist()], TypeError, ["got list, whose chunk 1 is of type list"]),
        ([SCORES, SCORES[0]], ValueError, ["without dimensions for chunk 1", "chunk[None]"]),
        ([SCORES, SCORES.float()], ValueError, ["the dtype of chunk 0, torch.float64", "torch.float32 in chunk 1"]),
        ([SCORES, SCORES.to("meta")], ValueError, ["the device of chunk 0, cpu", "meta in chunk 1"]),
        ([SCORES, SCORES, SCORES[None]], ValueError, ["the batch shape of chunk 0, ()", "(1,) in chunk 2"]),
        ([SCORES.long()], TypeError, ["scores must be float16", "int64"]),
    ],
)  # fmt: skip
def test_errors_of_chunks(chunks: Any, error: type[Exception], words: list[str]) -> None:
    for use in (lambda: knockout.select(chunks, 2), lambda: knockout.topk(randn(N, D), chunks, 2)):
        with pytest.raises(error) as caught:
            use()
        for word in words:
            assert word in str(caught.value)


def test_a_source_that_shrinks_before_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knockout.rows.gather.BLOCK", 40)

    class Shrinking:
        def __init__(self) -> None:
            self.table = np.random.default_rng(0).random((200, 4))
            self.shape = self.table.shape

        def take(self, rows: Any) -> Any:
            return self.table[rows]

    source, scores = Shrinking(), randn(200, dtype=torch.float64).requires_grad_()
    out = knockout.topk(source, scores, 7, boost=0.7).values
    source.shape = (100, 4)
    with pytest.raises(RuntimeError, match=r"had shape \(200, 4\) in the forward pass and has \(100, 4\) now"):
        out.sum().backward()
