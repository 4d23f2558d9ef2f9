"""Row sources: NumPy arrays, safetensors files, Arrow data, Parquet files, and anything with ``shape`` and ``take``.

Each kind has a reader, which is a ``RowSource``. A library is imported only when one of its objects is passed.
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

from knockout.checks import how_to_make_a_tensor
from knockout.dtypes import DTYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray


PAGE, PAGES = 2**21, 32  # bytes that one access may map, a huge page; how many such pages are held at most


class RowSource(Protocol):
    """Values (n, d) of which some rows can be read at a time."""

    @property
    def shape(self) -> Sequence[int]:
        """(n, d)."""

    def take(self, rows: NDArray[Any], /) -> Any:
        """The value rows (len(rows), d) with these indices, as a tensor or an array of floating-point numbers.

        ``rows`` is a NumPy array of int64, ascending, without duplicates; empty if all slots are empty.
        """


def is_source(values: object) -> bool:
    """Whether these values are a row source, and not a tensor."""
    return not isinstance(values, Tensor) and _source_kind(values) is not None


def check_source(source: RowSource, n: int) -> None:
    """Check for a row source of shape (n, d), and of a floating-point dtype where that is known before reading."""
    shape = _shape(source)
    if len(shape) != 2 or shape[0] != n:
        hint = ""
        if shape == (n,):
            hint = ". For a number per candidate pass values[:, None]"
        elif len(shape) > 2:
            hint = ". All rows of a batch read the same (n, d); for values with batch dimensions pass a tensor"
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


def _source_kind(source: object) -> str | None:
    """The kind of a source, by which its reader is chosen. By type name, so that no library is imported for it."""
    if isinstance(source, type):
        return None  # a class has the attributes of its objects
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
    """The reader of a source, with ``shape`` and ``take``."""
    kind = _source_kind(source)
    if kind is None:
        raise TypeError(
            f"values must be a torch.Tensor, or a source of rows (n, d): a NumPy array, a slice of a safetensors file, "
            f"Arrow data, a Parquet file, or anything with shape and take(rows); got {type(source).__name__}"
            + how_to_make_a_tensor(source, "values")
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


def as_tensor(returned: Any, reader: object) -> Tensor:
    """The result of a reader's ``take`` as a floating-point tensor."""
    if isinstance(returned, Tensor):
        tensor = returned.detach()
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            raise TypeError(
                f"values: take(rows) must return a dense tensor with numbers in it; got layout {tensor.layout} on "
                f"{tensor.device} from {named(reader)}"
            )
    else:
        import numpy as np

        if isinstance(returned, np.ma.MaskedArray):
            raise TypeError(
                f"values: take(rows) must return an array with a number everywhere; got a masked array from "
                f"{named(reader)}. Return its filled(...)"
            )
        try:
            array = np.asarray(returned)
        except ValueError as error:  # rows of different lengths
            raise ValueError(
                f"values: take(rows) must return an array of shape (len(rows), d); got a {type(returned).__name__} "
                f"from {named(reader)} that is none: {error}"
            ) from None
        try:
            # PyTorch takes arrays in the native byte order, and warns of those that are read-only.
            tensor = torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
        except TypeError:
            raise _not_floating(array.dtype, reader) from None
    if tensor.dtype not in DTYPES:
        raise _not_floating(tensor.dtype, reader)
    return tensor


class _Array:
    """Reads a NumPy array, in memory or memory-mapped."""

    def __init__(self, array: Any) -> None:
        if array.dtype.kind != "f":
            raise _not_floating(array.dtype, array)
        self.array, self.shape = array, array.shape

    def take(self, rows: NDArray[Any]) -> Any:
        pages = getattr(self.array, "_mmap", None)
        if not isinstance(pages, mmap.mmap) or self.array.mode == "c" or not hasattr(mmap, "MADV_DONTNEED"):
            return self.array[rows]
        # The pages of a mapped file that were read count as memory of this process until it releases them, and one row
        # may map a whole huge page. So they are released every few pages. The file still holds their content (except
        # for a copy-on-write mapping, which is excluded above).
        import numpy as np

        out = np.empty((len(rows), *self.shape[1:]), self.array.dtype)
        page_starts = np.flatnonzero(np.diff(rows * abs(self.array.strides[0]) // PAGE)) + 1
        for start, stop in pairwise([0, *page_starts[PAGES - 1 :: PAGES], len(rows)]):
            out[start:stop] = self.array[rows[start:stop]]
            pages.madvise(mmap.MADV_DONTNEED)
        return out


_OPEN_FOR_PYTORCH = 'open the safetensors file for PyTorch: safe_open(path, "pt")'


class _Slice:
    """Reads ``get_slice(name)`` of a safetensors file. It can only be sliced: runs of adjacent rows are one slice."""

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
            raise TypeError(f"values: {error}; {_OPEN_FOR_PYTORCH}") from None
        if isinstance(runs[0], Tensor):
            return torch.cat(runs)
        if runs[0].dtype.kind != "f":  # once ml_dtypes is imported it has, but PyTorch does not take it
            raise TypeError(f"values: {runs[0].dtype} is not a type that PyTorch takes from NumPy; {_OPEN_FOR_PYTORCH}")
        return np.concatenate(runs)


class _Arrow:
    """Reads Arrow data: one column of fixed-size lists, or one column for each of the d numbers."""

    def __init__(self, data: Any) -> None:
        import pyarrow

        self.data = data
        if isinstance(data, (pyarrow.Table, pyarrow.RecordBatch)):
            indices, width = _columns(data.schema, data)
            columns = [data.column(index) for index in indices]
        else:
            _, width = _columns([pyarrow.field("", data.type)], data)
            columns = [data]
        # Chunk by chunk: to take rows from several chunks, Arrow would first concatenate all of these.
        self.chunks = [column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column] for column in columns]
        self.types = [column.type for column in columns]
        self.shape = (len(columns[0]), width)

    def take(self, rows: NDArray[Any]) -> Any:
        import numpy as np

        out = np.empty((len(rows), self.shape[1]), np.result_type(*map(_number_type, self.types)))
        width = 1 if len(self.chunks) > 1 else self.shape[1]  # numbers in each column
        for column, (chunks, arrow_type) in enumerate(zip(self.chunks, self.types, strict=True)):
            start = column * width
            for number, part, within in _parts(rows, list(map(len, chunks))):
                read = self._numbers(chunks[number], within, arrow_type)
                out[part, start : start + width] = read.reshape(-1, width)
        return out

    def _numbers(self, chunk: Any, rows: NDArray[Any], arrow_type: Any) -> Any:
        import pyarrow

        taken = chunk.take(pyarrow.array(rows))
        nulls = taken.null_count
        if pyarrow.types.is_fixed_size_list(arrow_type):
            taken = taken.flatten()
            nulls += taken.null_count
        if nulls:
            raise ValueError(
                f"values must have a number everywhere; got a null in the rows of {named(self.data)}. "
                f"Leave them out by mask, or fill them"
            )
        return taken.to_numpy(zero_copy_only=False)


class _Parquet:
    """Reads a Parquet file: the row groups that hold wanted rows, one at a time."""

    def __init__(self, file: Any) -> None:
        groups, schema = file.metadata, file.schema_arrow
        indices, width = _columns(schema, file)
        self.file, self.names, self.schema = file, [schema.field(index).name for index in indices], schema
        self.sizes = [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
        self.shape = (groups.num_rows, width)
        # The row group that was read last; none yet.
        self.number, self.group = -1, _Arrow(schema.empty_table().select(self.names))

    def take(self, rows: NDArray[Any]) -> Any:
        import numpy as np

        found = [self.group.take(rows[:0])]
        for number, _, within in _parts(rows, self.sizes):
            if number != self.number:
                self.number, self.group = number, _Arrow(self.file.read_row_group(number, columns=self.names))
            found.append(self.group.take(within))
        return np.concatenate(found)


def _columns(schema: Any, source: object) -> tuple[list[int], int]:
    """The indices of the columns that hold the values, and how many numbers a value row has."""
    from pyarrow import types

    fields = list(schema)
    lists = [index for index, field in enumerate(fields) if types.is_fixed_size_list(field.type)]
    if len(lists) == 1:
        list_type = fields[lists[0]].type
        if not types.is_floating(list_type.value_type):
            raise _not_floating(list_type.value_type, source)
        return lists, list_type.list_size
    if not lists and fields and all(types.is_floating(field.type) for field in fields):
        return list(range(len(fields))), len(fields)
    found = ", ".join(f"{field.name} {field.type}".strip() for field in fields)
    raise TypeError(
        f"values of {named(source)} must be one column of vectors, fixed_size_list<float>[d], or nothing but columns "
        f"of floating numbers; got {found or 'no column'}. Pass a table of the right columns: table.select([...])"
    )


def _number_type(arrow_type: Any) -> Any:
    """The NumPy dtype of the numbers in a column."""
    from pyarrow import types

    return (arrow_type.value_type if types.is_fixed_size_list(arrow_type) else arrow_type).to_pandas_dtype()


def _parts(rows: NDArray[Any], sizes: list[int]) -> Iterator[tuple[int, slice, NDArray[Any]]]:
    """Split ascending rows by the parts, of these sizes, that they lie in.

    Yields the number of the part, the slice of ``rows`` that lies in it, and the indices of these within the part.
    """
    import numpy as np

    starts = np.cumsum([0, *sizes])
    bounds = np.searchsorted(rows, starts)
    for number in np.flatnonzero(np.diff(bounds)):
        part = slice(bounds[number], bounds[number + 1])
        yield int(number), part, rows[part] - starts[number]


def named(source: object) -> str:
    """The name of a source in an error message; for a reader, that of what it reads from."""
    for name in ("array", "part", "data", "file"):
        if isinstance(source, (_Array, _Slice, _Arrow, _Parquet)) and hasattr(source, name):
            source = getattr(source, name)
    return f"a {type(source).__name__}"


def _not_floating(dtype: object, source: object) -> TypeError:
    return TypeError(
        f"values must be float16, bfloat16, float32 or float64; got {dtype} from {named(source)}. "
        f"Convert its rows, to float32 say"
    )
