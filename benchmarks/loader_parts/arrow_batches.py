"""Record batches to tensors as careful code does it by hand, and what all readers of the same rows must agree on."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

Column = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
Columns = Mapping[str, Column]
Array = npt.NDArray[Any]


def to_columns(rows: pa.RecordBatch | pa.Table) -> dict[str, Column]:
    """Each column as a tensor, lists as values and offsets; missing ids 0, missing floats NaN, ids never as floats."""
    return {name: _to_column(_one_array(column)) for name, column in zip(rows.schema.names, rows.columns, strict=True)}


class Checksum:
    """Of rows in any order and in any batches: counts rows, adds ids and bits of floats; what is missing adds nothing."""

    def __init__(self) -> None:
        self.num_rows = self.total = 0

    def add(self, columns: Columns) -> None:
        self.num_rows += num_rows(columns)
        for column in columns.values():
            values = (column if isinstance(column, torch.Tensor) else column[0]).numpy()
            self.total = (self.total + _sum(values)) % (1 << 64)

    @property
    def value(self) -> tuple[int, int]:
        return self.num_rows, self.total


def checksum(batches: Iterable[Columns]) -> tuple[int, int]:
    """Rows, and the sum of all values modulo 2^64."""
    total = Checksum()
    for columns in batches:
        total.add(columns)
    return total.value


def num_rows(columns: Columns) -> int:
    first = next(iter(columns.values()))
    return len(first) if isinstance(first, torch.Tensor) else len(first[1]) - 1


def packed(columns: Columns) -> tuple[list[torch.Tensor], list[tuple[str, list[tuple[int, int, int]]]]]:
    """One tensor for each dtype, and of each column its parts: which tensor, first element, number of elements."""
    dtypes: list[torch.dtype] = []
    parts: list[list[torch.Tensor]] = []
    sizes: list[int] = []
    places: list[tuple[str, list[tuple[int, int, int]]]] = []
    for name, column in columns.items():
        places.append((name, []))
        for tensor in [column] if isinstance(column, torch.Tensor) else column:
            if tensor.dtype not in dtypes:
                dtypes.append(tensor.dtype)
                parts.append([])
                sizes.append(0)
            at = dtypes.index(tensor.dtype)
            places[-1][1].append((at, sizes[at], len(tensor)))
            parts[at].append(tensor)
            sizes[at] += len(tensor)
    return [torch.cat(tensors) for tensors in parts], places


def unpacked(tensors: Sequence[torch.Tensor], places: Iterable[tuple[str, list[tuple[int, int, int]]]]) -> dict[str, Column]:
    """The columns as views of the tensors that `packed` made."""
    found: dict[str, Column] = {}
    for name, parts in places:
        views = [tensors[at][first : first + size] for at, first, size in parts]
        found[name] = views[0] if len(views) == 1 else (views[0], views[1])
    return found


def _one_array(column: Any) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _to_column(array: pa.Array) -> Column:
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        return torch.from_numpy(_values(array))
    width = np.int32 if pa.types.is_list(array.type) else np.int64
    offsets = np.frombuffer(array.buffers()[1], dtype=width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    return torch.from_numpy(_values(values)), torch.from_numpy(offsets - offsets[0])


def _values(array: pa.Array) -> Array:
    """The values, writable in name only: torch warns of memory that says it is read-only."""
    if array.null_count:
        array = array.fill_null(float("nan") if pa.types.is_floating(array.type) else 0)
    dtype = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.empty(0, dtype)
    values = np.frombuffer(array.buffers()[1], dtype=dtype)[array.offset : array.offset + len(array)]
    if not values.flags.writeable:
        values = np.asarray(_Lent(values))
    return values


class _Lent:
    """Shows memory as writable, and keeps it."""

    def __init__(self, array: Array) -> None:
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}
        self.owner = array


def _sum(values: Array) -> int:
    if values.dtype.kind == "f":
        bits = np.ascontiguousarray(values[~np.isnan(values)].astype(np.float32)).view(np.uint32)
        return int(bits.sum(dtype=np.uint64))
    return int(values.astype(np.uint64).sum(dtype=np.uint64))
