"""The debug flag's look at a batch in the consumer's hands: tensors are views that other batches
share, not to be written.
"""

import zlib

import numpy as np

from featstore.errors import BatchError
from featstore.tensors.batch import Batch, Column, Jagged
from featstore.tensors.column_keys import LABEL, WEIGHT, Key
from featstore.tensors.dtypes import array_of

_ACCESS = {LABEL: "batch.labels[{!r}]", WEIGHT: "batch.weight ({!r})"}


class Watch:
    """The checksums of a batch's columns when it was made. It makes all of them, and keeps the
    batch: not for production.
    """

    def __init__(self, batch: Batch) -> None:
        self._columns = dict(batch.items())
        self._sums = {key: _checksum(column) for key, column in self._columns.items()}

    def require_unwritten(self) -> None:
        """BatchError, naming the column, where its memory is not what it was."""
        for key, column in self._columns.items():
            if _checksum(column) != self._sums[key]:
                raise BatchError(
                    f"{_access(key)} was written in place: it is a view of decoded memory that "
                    f"other batches share; write to "
                    "a copy, batch.clone() of all columns or .clone() of this one"
                )


def _access(key: Key) -> str:
    role, name = key
    return _ACCESS.get(role, "batch[{!r}]").format(name)


def _checksum(column: Column) -> tuple[int, ...]:
    tensors = (column.values, column.offsets) if isinstance(column, Jagged) else (column,)
    return tuple(zlib.crc32(np.ascontiguousarray(array_of(tensor)).tobytes()) for tensor in tensors)
