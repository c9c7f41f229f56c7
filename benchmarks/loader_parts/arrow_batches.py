"""Record batches to tensors, as careful code does it by hand."""

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
    """Each column as a tensor, lists as values and offsets; missing ids 0, missing floats NaN, a
    label float32.
    """
    return {
        name: _to_column(_one_array(column))
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    }


def packed(
    columns: Columns,
) -> tuple[list[torch.Tensor], list[tuple[str, list[tuple[int, int, int]]]]]:
    """One tensor for each dtype, and of each column its parts: which tensor, first element, number
    of elements.
    """
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


def unpacked(
    tensors: Sequence[torch.Tensor], places: Iterable[tuple[str, list[tuple[int, int, int]]]]
) -> dict[str, Column]:
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
        is_label = pa.types.is_integer(array.type) and array.type != pa.int64()
        return torch.from_numpy(_values(array.cast(pa.float32()) if is_label else array))
    width = np.int32 if pa.types.is_list(array.type) else np.int64
    offsets = np.frombuffer(array.buffers()[1], dtype=width)[
        array.offset : array.offset + len(array) + 1
    ].astype(np.int64)
    values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    return torch.from_numpy(_values(values)), torch.from_numpy(offsets - offsets[0])


def _values(array: pa.Array) -> Array:
    """The values, writable in name only: torch warns of memory that says it is read-only."""
    if array.null_count:
        array = array.fill_null(float("nan") if pa.types.is_floating(array.type) else 0)
    dtype = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.empty(0, dtype)
    values = np.frombuffer(array.buffers()[1], dtype=dtype)[
        array.offset : array.offset + len(array)
    ]
    if not values.flags.writeable:
        values = np.asarray(_Lent(values))
    return values


class _Lent:
    """Shows memory as writable, and keeps it."""

    def __init__(self, array: Array) -> None:
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}
        self.owner = array
