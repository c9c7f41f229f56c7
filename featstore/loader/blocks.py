"""Decoded rows of one split in the order of delivery, and views of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from featstore.loader.dtypes import array_of, tensor_of
from featstore.loader.packed import Packed, pack
from featstore.loader.tensors import Column, Jagged, Key
from featstore.reading.columns import Array, Ragged, Values
from featstore.reading.gather import rebased


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

    def stretch(self, begin: int, end: int, num_rows: int) -> "Origin":
        """Where rows `begin` to `end` of the block's `num_rows` lie, as a block of their own."""
        first_row, end_row = self.through(begin, num_rows) if begin else self.first_row, self.through(end, num_rows)
        places = None if self.places is None else self.places[begin:end] - (first_row - self.first_row)
        is_last = self.is_last and end == num_rows
        return replace(self, first_row=first_row, end_row=end_row, places=places, is_last=is_last)

    def row_at(self, position: int) -> int:
        """The first row of the block that is not before `position` of the stream."""
        ahead = max(0, position - self.first_row)
        return ahead if self.places is None else int(np.searchsorted(self.places, ahead))


@dataclass(frozen=True, kw_only=True)
class Block:
    """Decoded columns of `num_rows` rows, of which those before `begin` were delivered earlier.

    `packed`: the same columns, where they lie in one buffer per dtype already.
    """

    num_rows: int
    columns: Mapping[Key, Values]
    extras: pa.Table
    origin: Origin
    begin: int = 0
    packed: Packed | None = None

    @property
    def size_bytes(self) -> int:
        """The memory that the block keeps, views of Arrow's buffers included."""
        if self.packed is not None:
            return sum(buffer.nbytes for buffer in self.packed.buffers.values()) + int(self.extras.nbytes)
        return sum(_size_bytes(values) for values in self.columns.values()) + int(self.extras.nbytes)


class Unpacked(Mapping[Key, Values]):
    """Packed columns as arrays."""

    def __init__(self, packed: Packed) -> None:
        self._packed = packed

    def __getitem__(self, key: Key) -> Values:
        column = self._packed.get(key)
        return Ragged(array_of(column.values), array_of(column.offsets)) if isinstance(column, Jagged) else array_of(column)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._packed.keys)

    def __len__(self) -> int:
        return len(self._packed.keys)


class Slices:
    """Consecutive stretches of a block's rows; the tensors of all of them are made at once, when a column is first asked for,
    in one call for each column instead of one for each view."""

    __slots__ = ("_block", "_cuts", "_made")

    def __init__(self, block: Block, cuts: Sequence[int]) -> None:
        self._block, self._cuts = block, np.array(cuts, np.int64)
        self._made: dict[Key, Sequence[Column]] = {}

    def get(self, key: Key, number: int) -> Column:
        """The column in rows `cuts[number]` to `cuts[number + 1]`."""
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._tensors(self._block.columns[key])
        return made[number]

    def _tensors(self, values: Values) -> Sequence[Column]:
        cuts, lengths = self._cuts, np.diff(self._cuts)
        if not isinstance(values, Ragged):
            return torch.split_with_sizes(tensor_of(values[cuts[0] : cuts[-1]]), lengths.tolist())
        ends = values.offsets[cuts]
        parts = torch.split_with_sizes(tensor_of(values.values[ends[0] : ends[-1]]), np.diff(ends).tolist())
        offsets = torch.split_with_sizes(tensor_of(rebased(values.offsets, cuts)), (lengths + 1).tolist())
        return list(map(Jagged, parts, offsets))


@dataclass(frozen=True, slots=True)
class Span:
    """Rows `begin` to `end` of a block, the stretch `number` of its `slices` where it was cut."""

    block: Block
    begin: int
    end: int
    slices: Slices | None = field(default=None, compare=False)
    number: int = field(default=0, compare=False)

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def packed(self) -> Packed | None:
        """The block's columns in their buffers, where the span is all of it."""
        return self.block.packed if self.begin == 0 and self.end == self.block.num_rows else None

    def get(self, key: Key) -> Values:
        values = self.block.columns[key]
        if not isinstance(values, Ragged):
            return values[self.begin : self.end]
        offsets = values.offsets[self.begin : self.end + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return Ragged(values.values[first:last], np.subtract(offsets, first, dtype=np.int64))

    def tensors(self, key: Key) -> Column:
        if self.packed is not None:
            return self.packed.get(key)
        return _tensors(self.get(key)) if self.slices is None else self.slices.get(key, self.number)


@dataclass(frozen=True, slots=True)
class Spans:
    """The columns of a batch as views of blocks; a column of a batch that straddles blocks is put together when asked for."""

    spans: Sequence[Span]

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(self.spans[0].block.columns)

    def get(self, key: Key) -> Column:
        if len(self.spans) == 1:
            return self.spans[0].tensors(key)
        return _tensors(_joined([span.get(key) for span in self.spans]))

    def packed(self) -> Packed:
        packed = self.spans[0].packed if len(self.spans) == 1 else None
        return pack(self) if packed is None else packed.packed()

    def moved(self, **how: Any) -> Packed:
        packed = self.spans[0].packed if len(self.spans) == 1 else None
        return (pack(self) if packed is None else packed).moved(**how)


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
