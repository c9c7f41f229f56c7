"""Decoded rows of one split in the order of delivery, and views of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from featstore.loader.dtypes import tensor_of
from featstore.loader.packed import Packed, pack
from featstore.loader.tensors import Column, Jagged, Key
from featstore.reading.columns import Array, Ragged, Values


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a block lies in its split's stream of rows, which counts every row of the file, delivered or not.

    The block stands for the stream's rows `first_row` to `end_row`. `places` are the rows that passed the filters, counted
    from `first_row`, or None where all did. `is_last`: the claim ends here. `fence` and `part` tell claims of one split apart;
    `split_rows` is how many rows the split has.
    """

    split_index: int
    fence: int
    first_row: int
    end_row: int
    is_last: bool
    places: Array | None = None
    part: int = 0
    split_rows: int | None = None

    @property
    def claim_key(self) -> tuple[int, int, int]:
        """`Claim.key` of the claim under which the block was read."""
        return (self.split_index, self.part, self.fence)

    def through(self, row: int, num_rows: int) -> int:
        """How far in the stream one is after `row` of the block's `num_rows` rows."""
        if row == num_rows:
            return self.end_row
        if self.places is None:
            return self.first_row + row
        return self.first_row + (int(self.places[row - 1]) + 1 if row else 0)

    def row_at(self, position: int) -> int:
        """The first row of the block that is not before `position` of the stream."""
        ahead = max(0, position - self.first_row)
        return ahead if self.places is None else int(np.searchsorted(self.places, ahead))


@dataclass(frozen=True, kw_only=True)
class Block:
    """Decoded columns of `num_rows` rows, of which those before `begin` were delivered earlier."""

    num_rows: int
    columns: Mapping[Key, Values]
    extras: pa.Table
    origin: Origin
    begin: int = 0

    @property
    def size_bytes(self) -> int:
        """The memory that the block keeps, views of Arrow's buffers included."""
        return sum(_size_bytes(values) for values in self.columns.values()) + int(self.extras.nbytes)


@dataclass(frozen=True, slots=True)
class Span:
    """Rows `begin` to `end` of a block."""

    block: Block
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    def get(self, key: Key) -> Values:
        values = self.block.columns[key]
        if not isinstance(values, Ragged):
            return values[self.begin : self.end]
        offsets = values.offsets[self.begin : self.end + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return Ragged(values.values[first:last], np.subtract(offsets, first, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Spans:
    """The columns of a batch as views of blocks; a column of a batch that straddles blocks is put together when asked for."""

    spans: Sequence[Span]

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(self.spans[0].block.columns)

    def get(self, key: Key) -> Column:
        parts = [span.get(key) for span in self.spans]
        return _tensors(parts[0] if len(parts) == 1 else _joined(parts))

    def packed(self) -> Packed:
        return pack(self)

    def moved(self, **how: Any) -> Packed:
        return pack(self).moved(**how)


def _tensors(values: Values) -> Column:
    if isinstance(values, Ragged):
        return Jagged(tensor_of(values.values), tensor_of(values.offsets))
    return tensor_of(values)


def _joined(parts: Sequence[Values]) -> Values:
    """One column of several. In numpy: `torch.cat` wakes torch's threads, which then spin on the cores that decode."""
    ragged = [part for part in parts if isinstance(part, Ragged)]
    if not ragged:
        return np.concatenate([part for part in parts if not isinstance(part, Ragged)])
    offsets, before = [ragged[0].offsets[:1]], 0
    for part in ragged:
        offsets.append(part.offsets[1:] + before)
        before += len(part.values)
    return Ragged(np.concatenate([part.values for part in ragged]), np.concatenate(offsets))


def writable(values: Values) -> Values:
    """The same memory under arrays that call themselves writable: torch knows no read-only tensors and warns of them."""
    if isinstance(values, Ragged):
        return Ragged(_lent(values.values), values.offsets)
    return _lent(values)


def _lent(array: Array) -> Array:
    return array if array.flags.writeable else np.asarray(_Lent(array))


class _Lent:
    """Shows an array's memory as writable; numpy keeps this object, and so the memory, as long as a view lives."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, array: Array) -> None:
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}
        self.owner = array


def _size_bytes(values: Values) -> int:
    return values.values.nbytes + values.offsets.nbytes if isinstance(values, Ragged) else values.nbytes
