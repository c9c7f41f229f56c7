"""Rows that wait until a row group is full, column by column.

Batches are copied in and let go of, into memory that serves every row group: what is allotted anew
for each, the system clears first, page by page, which cost as much as encoding it.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from featstore.ops.arrays import array_of, list_of, stored_offsets_of, values_of

_DTYPES: dict[pa.DataType, Any] = {pa.int64(): np.int64, pa.float32(): np.float32}
_MAX_VALUES = 2**31 - 1


class WaitingRows:
    """Rows of one schema, and memory for `rows_per_row_group` of them. What it gave is overwritten
    after `clear`.
    """

    def __init__(self, schema: pa.Schema, rows_per_row_group: int) -> None:
        self._schema = schema
        self._columns = [_column_for(field, rows_per_row_group) for field in schema]
        self.num_rows = 0

    def append(self, batch: pa.RecordBatch) -> None:
        """Takes a batch of the schema; ValueError for any other, and for a null where the schema
        has none.
        """
        if not batch.schema.equals(self._schema):
            raise ValueError(
                f"expected the data file's columns:\n{self._schema}\nfound:\n{batch.schema}"
            )
        for field, column, array in zip(self._schema, self._columns, batch.columns, strict=True):
            if array.null_count and not field.nullable:
                raise ValueError(
                    f"column {field.name!r}: expected no nulls, found {array.null_count}"
                )
            column.append(array)
        self.num_rows += batch.num_rows

    def columns(self, arrow_types: Iterable[pa.DataType]) -> list[pa.Array]:
        """All rows, one array a column, in these types: the schema's, or a list for a fixed
        width.
        """
        return [
            column.array(arrow_type)
            for column, arrow_type in zip(self._columns, arrow_types, strict=True)
        ]

    def clear(self) -> None:
        """Forgets the rows, and keeps their memory."""
        for column in self._columns:
            column.clear()
        self.num_rows = 0


class _Column(Protocol):
    def append(self, array: pa.Array) -> None: ...

    def array(self, arrow_type: pa.DataType) -> pa.Array: ...

    def clear(self) -> None: ...


def _column_for(field: pa.Field, num_rows: int) -> _Column:
    """A slot holds numbers without nulls, or lists of these; any other column is kept as it
    comes.
    """
    arrow_type = field.type
    if not field.nullable and arrow_type in _DTYPES:
        return _Scalars(_DTYPES[arrow_type], num_rows)
    has_values = pa.types.is_list(arrow_type) or pa.types.is_fixed_size_list(arrow_type)
    if (
        not field.nullable
        and has_values
        and not arrow_type.value_field.nullable
        and arrow_type.value_type in _DTYPES
    ):
        return _Lists(_DTYPES[arrow_type.value_type], num_rows)
    return _Chunks(arrow_type)


class _Scalars:
    """One number a row."""

    def __init__(self, dtype: Any, num_rows: int) -> None:
        self._values = _Growing(dtype, num_rows)

    def append(self, array: pa.Array) -> None:
        self._values.extend(values_of(array))

    def array(self, arrow_type: pa.DataType) -> pa.Array:
        return array_of(self._values.filled())

    def clear(self) -> None:
        self._values.clear()


class _Lists:
    """Lists of numbers, of any length or of one: their values, and where each row ends."""

    def __init__(self, dtype: Any, num_rows: int) -> None:
        self._values = _Growing(dtype, num_rows)
        self._ends = _Growing(np.dtype(np.int32), num_rows)

    def append(self, array: pa.Array) -> None:
        values, size = array.flatten(), self._values.size
        if size + len(values) > _MAX_VALUES:
            raise ValueError(
                f"expected at most {_MAX_VALUES} values of a list in a row group: set fewer "
                f"rows_per_row_group"
            )
        self._ends.extend(_offsets(array)[1:] + np.int32(size))
        self._values.extend(values_of(values))

    def array(self, arrow_type: pa.DataType) -> pa.Array:
        offsets = np.concatenate([[0], self._ends.filled()])
        return list_of(offsets, array_of(self._values.filled()), arrow_type=arrow_type)

    def clear(self) -> None:
        self._values.clear()
        self._ends.clear()


class _Chunks:
    """Anything, in the batches' own memory."""

    def __init__(self, arrow_type: pa.DataType) -> None:
        self._type = arrow_type
        self._chunks: list[pa.Array] = []

    def append(self, array: pa.Array) -> None:
        self._chunks.append(array)

    def array(self, arrow_type: pa.DataType) -> pa.Array:
        joined = pa.concat_arrays(self._chunks) if self._chunks else pa.array([], self._type)
        return joined.cast(arrow_type)

    def clear(self) -> None:
        self._chunks.clear()


class _Growing:
    """Numbers in memory that grows and is kept. What of it is not yet filled, the system need not
    have given.
    """

    def __init__(self, dtype: Any, capacity: int) -> None:
        self._memory: NDArray[Any] = np.empty(capacity, dtype)
        self.size = 0

    def extend(self, values: NDArray[Any]) -> None:
        size = self.size + len(values)
        if size > len(self._memory):
            larger = np.empty(max(size, 2 * len(self._memory)), self._memory.dtype)
            larger[: self.size] = self.filled()
            self._memory = larger
        self._memory[self.size : size] = values
        self.size = size

    def filled(self) -> NDArray[Any]:
        return self._memory[: self.size]

    def clear(self) -> None:
        self.size = 0


def _offsets(array: pa.Array) -> NDArray[np.int32]:
    """Where each row begins and ends in the values of this slice alone."""
    if pa.types.is_fixed_size_list(array.type):
        return np.arange(len(array) + 1, dtype=np.int32) * np.int32(array.type.list_size)
    offsets = stored_offsets_of(array)
    moved: NDArray[np.int32] = offsets - offsets[0]
    return moved
