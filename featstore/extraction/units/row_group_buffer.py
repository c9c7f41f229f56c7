"""A buffer of rows, column by column, that is written when a row group is full.

Batches are copied in and released. The memory is reused for every row group: with new memory for
each, zeroing its pages (done by the kernel) cost as much as encoding the rows. A batch that is a
whole row group is not copied, nor are a few rows that nothing follows.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from featstore.base.processes import cached_property
from featstore.ops.arrays import array_of, list_of, stored_offsets_of, values_of

_DTYPES: dict[pa.DataType, Any] = {pa.int64(): np.int64, pa.float32(): np.float32}
_MAX_VALUES = 2**31 - 1  # Arrow's lists have offsets of 32 bits
# The first batch of a row group is kept until the next one comes if it is at most this share of the
# row group. Of an hour of thousands of slots it is often the only one, and the columns' memory need
# not be made. Keeping a larger one would need memory for a batch more.
_KEPT_SHARE = 1 / 16


class RowGroupBuffer:
    """A buffer of `rows_per_row_group` rows of one schema. Not thread-safe.

    The arrays that `columns` returns are views of the buffer or of a batch, valid until the next
    `append` after `clear`.
    """

    def __init__(self, schema: pa.Schema, rows_per_row_group: int) -> None:
        self._schema = schema
        self._rows_per_row_group = rows_per_row_group
        self._kept: pa.RecordBatch | None = None
        self.num_rows = 0

    @cached_property
    def _columns(self) -> "list[_ScalarBuffer | _ListBuffer | _ChunkBuffer]":
        return [_column_buffer(field, self._rows_per_row_group) for field in self._schema]

    def append(self, batch: pa.RecordBatch) -> None:
        """Copies a batch into the buffer, or keeps it if the buffer is empty and it fills it, or is
        a small part of it.

        Raises:
            ValueError: The batch has another schema, or a null in a column that is not nullable.
        """
        if not batch.schema.equals(self._schema):
            raise ValueError(
                f"expected the data file's columns:\n{self._schema}\nfound:\n{batch.schema}"
            )
        for field, array in zip(self._schema, batch.columns, strict=True):
            if array.null_count and not field.nullable:
                raise ValueError(
                    f"column {field.name!r}: expected no nulls, found {array.null_count}"
                )
        most = self._rows_per_row_group
        is_kept = batch.num_rows == most or batch.num_rows <= most * _KEPT_SHARE
        if is_kept and not self.num_rows:
            self._kept = batch
        else:
            self._copy(batch)
        self.num_rows += batch.num_rows

    def _copy(self, batch: pa.RecordBatch) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            self._copy(kept)
        for column, array in zip(self._columns, batch.columns, strict=True):
            column.append(array)

    def columns(self, arrow_types: Iterable[pa.DataType]) -> list[pa.Array]:
        """All rows, as one array per column.

        Args:
            arrow_types: The type of each column: that of the schema, or a list type for a fixed
                width.
        """
        if self._kept is not None:
            arrays = zip(self._kept.columns, arrow_types, strict=True)
            return [
                array if array.type == arrow_type else array.cast(arrow_type)
                for array, arrow_type in arrays
            ]
        return [
            column.array(arrow_type)
            for column, arrow_type in zip(self._columns, arrow_types, strict=True)
        ]

    def clear(self) -> None:
        """Empties the buffer, and keeps its memory."""
        if self._kept is None:
            for column in self._columns:
                column.clear()
        self._kept = None
        self.num_rows = 0


def _column_buffer(field: pa.Field, num_rows: int) -> "_ScalarBuffer | _ListBuffer | _ChunkBuffer":
    """The buffer for a column. Slots, which are numbers or lists of numbers without nulls, are
    copied; the chunks of other columns are kept as they are.
    """
    arrow_type = field.type
    if not field.nullable and arrow_type in _DTYPES:
        return _ScalarBuffer(_DTYPES[arrow_type], num_rows)
    has_values = pa.types.is_list(arrow_type) or pa.types.is_fixed_size_list(arrow_type)
    if (
        not field.nullable
        and has_values
        and not arrow_type.value_field.nullable
        and arrow_type.value_type in _DTYPES
    ):
        return _ListBuffer(_DTYPES[arrow_type.value_type], num_rows)
    return _ChunkBuffer(arrow_type)


class _GrowingArray:
    """A numpy array that grows by doubling and keeps its memory. The pages that are not filled yet
    take no physical memory.
    """

    def __init__(self, dtype: Any, capacity: int) -> None:
        self._memory: NDArray[Any] = np.empty(capacity, dtype)
        self.size = 0

    def extend(self, values: NDArray[Any]) -> None:
        size = self.size + len(values)
        # Lists need more than `capacity` values. The larger array is kept for all later row groups.
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


class _ScalarBuffer(_GrowingArray):
    """One number per row."""

    def append(self, array: pa.Array) -> None:
        self.extend(values_of(array))

    def array(self, arrow_type: pa.DataType) -> pa.Array:
        return array_of(self.filled())


class _ListBuffer:
    """Lists of numbers, of variable or fixed length: their values, and the end of each row."""

    def __init__(self, dtype: Any, num_rows: int) -> None:
        self._values = _GrowingArray(dtype, num_rows)
        self._ends = _GrowingArray(np.dtype(np.int32), num_rows)

    def append(self, array: pa.Array) -> None:
        values, size = array.flatten(), self._values.size
        if size + len(values) > _MAX_VALUES:
            raise ValueError(
                f"expected at most {_MAX_VALUES} values of a list in a row group: set fewer "
                f"rows_per_row_group"
            )
        # The batch's offsets count from its own first value, the buffer's from that of the row
        # group.
        self._ends.extend(_offsets(array)[1:] + np.int32(size))
        self._values.extend(values_of(values))

    def array(self, arrow_type: pa.DataType) -> pa.Array:
        offsets = np.concatenate([[0], self._ends.filled()])
        return list_of(offsets, array_of(self._values.filled()), arrow_type=arrow_type)

    def clear(self) -> None:
        self._values.clear()
        self._ends.clear()


class _ChunkBuffer:
    """Values of any type, as chunks in the memory of their batches."""

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


def _offsets(array: pa.Array) -> NDArray[np.int32]:
    """The offsets of the rows, int32 (num_rows + 1,), into the values of this slice alone."""
    if pa.types.is_fixed_size_list(array.type):
        return np.arange(len(array) + 1, dtype=np.int32) * np.int32(array.type.list_size)
    offsets = stored_offsets_of(array)
    from_zero: NDArray[np.int32] = offsets - offsets[0]
    return from_zero
