"""Decoded rows of one split in the order of delivery."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from featstore.reading.buffers import Array, Ragged, Values
from featstore.tensors.column_keys import Key, Keys
from featstore.tensors.packed import Packed


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a block lies in its split's stream of rows, which counts every row of the file,
    delivered or not.

    The block stands for the stream's rows `first_row` to `end_row`. `places` are the rows that
    passed the filters, counted from `first_row`, or None where all did. `is_last`: the claim ends
    here. `fence` and `part` tell claims of one split apart; `split_rows` is how many rows the split
    has.
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
        first_row, end_row = (
            self.through(begin, num_rows) if begin else self.first_row,
            self.through(end, num_rows),
        )
        places = (
            None if self.places is None else self.places[begin:end] - (first_row - self.first_row)
        )
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

    @cached_property
    def keys(self) -> Keys:
        """The columns' roles and names, one object for all batches of the block."""
        return Keys(self.columns)

    @cached_property
    def num_lists(self) -> int:
        """How many columns have offsets that are yet to be counted from each batch's first row."""
        return (
            0
            if self.packed is not None
            else sum(isinstance(values, Ragged) for values in self.columns.values())
        )

    @property
    def size_bytes(self) -> int:
        """The memory that the block keeps, views of Arrow's buffers included."""
        if self.packed is not None:
            return sum(buffer.nbytes for buffer in self.packed.buffers.values()) + int(
                self.extras.nbytes
            )
        return sum(_size_bytes(values) for values in self.columns.values()) + int(
            self.extras.nbytes
        )


def _size_bytes(values: Values) -> int:
    return (
        values.values.nbytes + values.offsets.nbytes
        if isinstance(values, Ragged)
        else values.nbytes
    )
