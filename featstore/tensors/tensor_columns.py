"""Columns of a batch that are tensors already."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from featstore.reading.buffers import Ragged, Values
from featstore.tensors.batch import Column, Jagged
from featstore.tensors.column_keys import Key, Keys
from featstore.tensors.dtypes import array_of, tensor_of
from featstore.tensors.packed import PackedColumns, pack
from featstore.tensors.writable import writable


@dataclass(frozen=True)
class TensorColumns:
    """Columns in any memory."""

    columns: Mapping[Key, Column]

    @property
    def keys(self) -> Keys:
        return Keys(self.columns)

    def made(self) -> Mapping[Key, Column]:
        return self.columns

    def packed(self) -> PackedColumns:
        return pack(self)

    def moved(self, **how: Any) -> PackedColumns:
        return pack(self).moved(**how)


def values_of(column: Column) -> Values:
    """The memory of a column as arrays."""
    if isinstance(column, Jagged):
        return Ragged(array_of(column.values), array_of(column.offsets))
    return array_of(column)


def column_from(values: Values) -> Column:
    """Arrays as a column that shares their memory."""
    values = writable(values)
    if isinstance(values, Ragged):
        return Jagged(tensor_of(values.values), tensor_of(values.offsets))
    return tensor_of(values)
