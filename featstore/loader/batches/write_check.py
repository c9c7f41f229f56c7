"""Whether somebody wrote to a batch in place."""

import zlib

import numpy as np

from featstore.base.errors import BatchError
from featstore.tensors.batch import Batch, Column, Jagged
from featstore.tensors.column_keys import LABEL, WEIGHT, Key
from featstore.tensors.views import array_of

_ACCESS = {LABEL: "batch.labels[{!r}]", WEIGHT: "batch.weight ({!r})"}


class WriteCheck:
    """Checksums of a batch's columns, to detect writes to them: they are views of memory that other
    batches share. For debugging only, since it makes all columns and keeps the batch.
    """

    def __init__(self, batch: Batch) -> None:
        self._columns = dict(batch.made())
        self._sums = {key: _checksum(column) for key, column in self._columns.items()}

    def require_unwritten(self) -> None:
        """BatchError, with the column's name, if a column has changed."""
        for key, column in self._columns.items():
            if _checksum(column) != self._sums[key]:
                raise BatchError(
                    f"{_access(key)} was written in place: it is a view of decoded memory that "
                    "other batches share; write to a copy, batch.clone() of all columns or "
                    ".clone() of this one"
                )


def _access(key: Key) -> str:
    role, name = key
    return _ACCESS.get(role, "batch[{!r}]").format(name)


def _checksum(column: Column) -> tuple[int, ...]:
    tensors = (column.values, column.offsets) if isinstance(column, Jagged) else (column,)
    return tuple(zlib.crc32(np.ascontiguousarray(array_of(tensor)).tobytes()) for tensor in tensors)
