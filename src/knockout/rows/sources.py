"""Sources of value rows: NumPy arrays, safetensors files, Arrow data, Parquet files, anything with ``take``.

Each kind has a reader here, a ``RowSource``. A library is imported only when one of its objects is passed.
"""

from __future__ import annotations

import mmap
import operator
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from knockout.dtypes import DTYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray


STRETCH, STRETCHES = 2**21, 32  # bytes that one touch may map, a huge page; how many of these are held at most


class RowSource(Protocol):
    """Values (n, d) that can be asked for some of their rows."""

    @property
    def shape(self) -> Sequence[int]:
        """(n, d)."""

    def take(self, rows: NDArray[Any], /) -> Any:
        """The rows (len(rows), d), as a tensor or an array of floating numbers.

        ``rows`` is a NumPy array of int64, ascending, without duplicates; empty if no slot has a member.
        """


def is_source(values: object) -> bool:
    """Whether these can be a row source: not a tensor, and something that rows can be read from."""
    return not isinstance(values, Tensor) and _kind(values) is not None


def check_source(source: RowSource, n: int) -> None:
    """A row source of shape (n, d), of floating numbers as far as it tells beforehand."""
    shape = _shape(source)
    if len(shape) != 2 or shape[0] != n:
        hint = ""
        if shape == (n,):
            hint = ". For a number per candidate pass values[:, None]"
        elif len(shape) > 2:
            hint = ". All rows of a batch read the same (n, d); for values of their own pass a tensor"
        raise ValueError(
            f"values that are no tensor must have shape (n, d) with n = {n}, the number of scores; "
            f"got {named(source)} of shape {shape}{hint}"
        )


def _shape(source: RowSource) -> tuple[int, ...]:
    shape = reader_of(source).shape
    try:
        return tuple(operator.index(size) for size in shape)
    except TypeError:
        raise TypeError(f"the shape of {named(source)} must be two ints, (n, d); got {shape!r}") from None


def _kind(source: object) -> str | None:
    """Which of the readers below takes a source. By name, so that its library need not be imported."""
    if type(source).__module__.partition(".")[0] == "pyarrow":
        name = type(source).__name__
        return name if name in ("ParquetFile", "Table", "RecordBatch", "ChunkedArray", "FixedSizeListArray") else None
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(source, numpy.ndarray):
        return "ndarray"
    if hasattr(source, "get_shape") and hasattr(source, "__getitem__"):
        return "slice"
    return "source" if hasattr(source, "shape") and callable(getattr(source, "take", None)) else None


def reader_of(source: Any) -> RowSource:
    """A source as one that has a shape and a take."""
    kind = _kind(source)
    if kind is None:
        raise TypeError(
            f"values must be a torch.Tensor, or a source of rows (n, d): a NumPy array, a slice of a safetensors file, "
            f"Arrow data, a Parquet file, or anything with shape and take(rows); got {type(source).__name__}"
        )
    if kind == "ndarray":
        return _Array(source)
    if kind == "slice":
        return _Slice(source)
    if kind == "ParquetFile":
        return _Parquet(source)
    if kind != "source":
        return _Arrow(source)
    return source  # type: ignore[no-any-return]


def as_tensor(came: Any, reader: object) -> Tensor:
    """What a source returned, as a tensor of floating numbers."""
    if isinstance(came, Tensor):
        tensor = came.detach()
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            raise TypeError(
                f"values: take(rows) must return a dense tensor with numbers in it; got layout {tensor.layout} on "
                f"{tensor.device} from {named(reader)}"
            )
    else:
        import numpy as np

        if isinstance(came, np.ma.MaskedArray):
            raise TypeError(
                f"values: take(rows) must return an array with a number everywhere; got a masked array from "
                f"{named(reader)}. Return came.filled(...)"
            )
        try:
            array = np.asarray(came)
        except ValueError as error:  # rows of different lengths
            raise ValueError(
                f"values: take(rows) must return an array of shape (len(rows), d); got a {type(came).__name__} from "
                f"{named(reader)} that is none: {error}"
            ) from None
        try:
            # In the byte order of this machine, and writable, as PyTorch wants it.
            tensor = torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
        except TypeError:
            raise _not_floating(array.dtype, reader) from None
    if tensor.dtype not in DTYPES:
        raise _not_floating(tensor.dtype, reader)
    return tensor


class _Array:
    """A NumPy array, in memory or mapped."""

    def __init__(self, array: Any) -> None:
        if array.dtype.kind != "f":
            raise _not_floating(array.dtype, array)
        self.array, self.shape = array, array.shape

    def take(self, rows: NDArray[Any]) -> Any:
        pages = getattr(self.array, "_mmap", None)
        if not isinstance(pages, mmap.mmap) or self.array.mode == "c" or not hasattr(mmap, "MADV_DONTNEED"):
            return self.array[rows]
        # Pages of a mapped file that were touched count as memory of this process until it lets go of them, and one row
        # may bring a whole stretch with it. So that is done every few stretches. The file has what they hold (but not
        # that of a mapping that copies on write, above).
        import numpy as np

        taken = np.empty((len(rows), *self.shape[1:]), self.array.dtype)
        anew = np.flatnonzero(np.diff(rows * abs(self.array.strides[0]) // STRETCH)) + 1
        for start, stop in pairwise([0, *anew[STRETCHES - 1 :: STRETCHES], len(rows)]):
            taken[start:stop] = self.array[rows[start:stop]]
            pages.madvise(mmap.MADV_DONTNEED)
        return taken


class _Slice:
    """``get_slice(name)`` of a safetensors file: it can only be sliced, so runs of neighbours are read in one."""

    def __init__(self, part: Any) -> None:
        if part.get_dtype() not in ("F16", "BF16", "F32", "F64"):
            raise _not_floating(part.get_dtype(), part)
        self.part, self.shape = part, part.get_shape()

    def take(self, rows: NDArray[Any]) -> Any:
        import numpy as np

        try:
            runs = [
                self.part[int(run[0]) : int(run[-1]) + 1] if len(run) else self.part[0:0]
                for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
            ]
        except TypeError as error:  # NumPy has no bfloat16
            raise TypeError(f'values: {error}; open the safetensors file for PyTorch: safe_open(path, "pt")') from None
        return torch.cat(runs) if isinstance(runs[0], Tensor) else np.concatenate(runs)


class _Arrow:
    """Vectors as a column of lists of one length, or numbers as a column each."""

    def __init__(self, data: Any) -> None:
        import pyarrow

        self.data = data
        if isinstance(data, (pyarrow.Table, pyarrow.RecordBatch)):
            places, width = _columns(data.schema, data)
            columns = [data.column(place) for place in places]
        else:
            _, width = _columns([pyarrow.field("", data.type)], data)
            columns = [data]
        # Chunk by chunk: to take rows of several chunks, Arrow would first put them together.
        self.chunks = [column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column] for column in columns]
        self.types = [column.type for column in columns]
        self.shape = (len(columns[0]), width)

    def take(self, rows: NDArray[Any]) -> Any:
        import numpy as np

        whole = np.empty((len(rows), self.shape[1]), np.result_type(*map(_number_type, self.types)))
        at = 0
        for chunks, kind in zip(self.chunks, self.types, strict=True):
            wide = 1 if len(self.chunks) > 1 else self.shape[1]
            for chunk, part, within in _parts(rows, list(map(len, chunks))):
                whole[part, at : at + wide] = self._numbers(chunks[chunk], within, kind).reshape(-1, wide)
            at += wide
        return whole

    def _numbers(self, chunk: Any, rows: NDArray[Any], kind: Any) -> Any:
        import pyarrow

        taken = chunk.take(pyarrow.array(rows))
        nulls = taken.null_count
        if pyarrow.types.is_fixed_size_list(kind):
            taken = taken.flatten()
            nulls += taken.null_count
        if nulls:
            raise ValueError(
                f"values must have a number everywhere; got a null in the rows of {named(self.data)}. "
                f"Leave them out by mask, or fill them"
            )
        return taken.to_numpy(zero_copy_only=False)


class _Parquet:
    """A Parquet file: the row groups that hold wanted rows, one at a time."""

    def __init__(self, file: Any) -> None:
        groups, schema = file.metadata, file.schema_arrow
        places, width = _columns(schema, file)
        self.file, self.names, self.schema = file, [schema.field(place).name for place in places], schema
        self.sizes = [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
        self.shape = (groups.num_rows, width)
        self.number, self.group = -1, _Arrow(schema.empty_table().select(self.names))  # that is at hand

    def take(self, rows: NDArray[Any]) -> Any:
        import numpy as np

        found = [self.group.take(rows[:0])]
        for number, _, within in _parts(rows, self.sizes):
            if number != self.number:
                self.number, self.group = number, _Arrow(self.file.read_row_group(number, columns=self.names))
            found.append(self.group.take(within))
        return np.concatenate(found)


def _columns(schema: Any, source: object) -> tuple[list[int], int]:
    """Which columns hold the values, by their places, and how many numbers a row has."""
    from pyarrow import types

    fields = list(schema)
    lists = [place for place, field in enumerate(fields) if types.is_fixed_size_list(field.type)]
    if len(lists) == 1:
        kind = fields[lists[0]].type
        if not types.is_floating(kind.value_type):
            raise _not_floating(kind.value_type, source)
        return lists, kind.list_size
    if not lists and fields and all(types.is_floating(field.type) for field in fields):
        return list(range(len(fields))), len(fields)
    told = ", ".join(f"{field.name} {field.type}".strip() for field in fields)
    raise TypeError(
        f"values of {named(source)} must be one column of vectors, fixed_size_list<float>[d], or nothing but columns "
        f"of floating numbers; got {told or 'no column'}. Pass a table of those that are meant: table.select([...])"
    )


def _number_type(kind: Any) -> Any:
    from pyarrow import types

    return (kind.value_type if types.is_fixed_size_list(kind) else kind).to_pandas_dtype()


def _parts(rows: NDArray[Any], sizes: list[int]) -> Iterator[tuple[int, slice, NDArray[Any]]]:
    """Ascending rows by the parts of these sizes that they lie in: which part, which of the rows, where in the part."""
    import numpy as np

    starts = np.cumsum([0, *sizes])
    bounds = np.searchsorted(rows, starts)
    for number in np.flatnonzero(np.diff(bounds)):
        wanted = slice(bounds[number], bounds[number + 1])
        yield int(number), wanted, rows[wanted] - starts[number]


def named(source: object) -> str:
    """What a source is called in an error."""
    for name in ("array", "part", "data", "file"):  # what a reader reads from
        if isinstance(source, (_Array, _Slice, _Arrow, _Parquet)) and hasattr(source, name):
            source = getattr(source, name)
    return f"a {type(source).__name__}"


def _not_floating(dtype: object, source: object) -> TypeError:
    return TypeError(
        f"values must be float16, bfloat16, float32 or float64; got {dtype} from {named(source)}. "
        f"Convert its rows, to float32 say"
    )
