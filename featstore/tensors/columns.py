"""The columns of a batch: `Jagged`, which holds lists, and `Columns`, which are all of them in
whatever memory they lie.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
import torch

from featstore.reading.buffers import Array, BatchValues
from featstore.tensors.column_arrays import Key, Keys

Device = torch.device | str | int


@dataclass(frozen=True, eq=False, slots=True)
class Jagged:
    """A variable-length column: row i is `values[offsets[i]:offsets[i + 1]]`.

    Attributes:
        values: int64 or float32 (num_values,), or the dtype that the slot was requested with.
        offsets: int64 (num_rows + 1,), from 0 to num_values.
    """

    values: torch.Tensor
    offsets: torch.Tensor

    def lengths(self) -> torch.Tensor:
        """The length of each row: int64 (num_rows,)."""
        return self.offsets.diff()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> torch.Tensor:
        """The values of one row. Negative rows count from the end; IndexError beyond it."""
        num_rows = len(self)
        if not -num_rows <= row < num_rows:
            raise IndexError(f"row {row} of {num_rows}")
        row %= num_rows
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[row] for row in range(len(self)))

    def to(self, device: Device, *, non_blocking: bool = False) -> "Jagged":
        return Jagged(
            self.values.to(device, non_blocking=non_blocking),
            self.offsets.to(device, non_blocking=non_blocking),
        )

    def to_nested(self) -> torch.Tensor:
        """The rows as a torch nested tensor of jagged layout, which shares the values' memory.

        torch adds or multiplies two of them only if they were made of one offsets tensor, as
        columns of a batch are whose lists have the same lengths.
        """
        return torch.nested.nested_tensor_from_jagged(self.values, offsets=self.offsets)

    def expand(self, values: torch.Tensor | None = None) -> "Jagged":
        """As of `SharedJagged`, so that one model serves both: each row has its values already.

        Args:
            values: What was computed of each value: (num_values, ...). None: the column's own.

        Raises:
            ValueError: There are not as many as the column has.
        """
        if values is None:
            return self
        _require_one_of_each(values, self.values)
        return Jagged(values, self.offsets)

    def clone(self) -> "Jagged":
        return Jagged(self.values.clone(), self.offsets.clone())


def _require_one_of_each(found: torch.Tensor, values: torch.Tensor) -> None:
    if len(found) != len(values):
        raise ValueError(
            f"expand(): expected one for each of the {len(values)} values, found {len(found)}: "
            "compute them of this column's `values`"
        )


_SHARED = (
    "{0} of a SharedJagged: expected a Jagged, found values that rows share (`unique`): expand() "
    "makes one, expand().{0} has it"
)


@dataclass(frozen=True, eq=False, slots=True)
class SharedJagged:
    """A variable-length column whose rows share values: row i is
    `values[ranges[i, 0]:ranges[i, 1]]`. Ranges overlap where rows have the same values.

    Attributes:
        values: int64 or float32 (num_values,), or the dtype that the slot was requested with.
        ranges: int64 (num_rows, 3): where each row begins and ends, and a number that the first
            value of its range has among all that this process has read.
    """

    values: torch.Tensor
    ranges: torch.Tensor

    def lengths(self) -> torch.Tensor:
        """The length of each row: int64 (num_rows,)."""
        return self.ranges[:, 1] - self.ranges[:, 0]

    def __len__(self) -> int:
        return len(self.ranges)

    def expand(self, values: torch.Tensor | None = None) -> Jagged:
        """The lists of all rows, one after the other, on the column's device.

        Args:
            values: What was computed of each value, such as its embedding: (num_values, ...). None:
                the column's own values.

        Raises:
            ValueError: There are not as many as the column has.
        """
        if values is None:
            values = self.values
        _require_one_of_each(values, self.values)
        lengths = self.lengths()
        offsets = lengths.new_zeros(len(self) + 1)
        torch.cumsum(lengths, 0, out=offsets[1:])
        places = torch.repeat_interleave(self.ranges[:, 0] - offsets[:-1], lengths)
        places += torch.arange(len(places), device=places.device)
        return Jagged(values[places], offsets)

    @property
    def offsets(self) -> NoReturn:
        raise AttributeError(_SHARED.format("offsets"))

    @property
    def to_nested(self) -> NoReturn:
        raise AttributeError(_SHARED.format("to_nested()"))

    def to(self, device: Device, *, non_blocking: bool = False) -> "SharedJagged":
        return SharedJagged(
            self.values.to(device, non_blocking=non_blocking),
            self.ranges.to(device, non_blocking=non_blocking),
        )

    def clone(self) -> "SharedJagged":
        return SharedJagged(self.values.clone(), self.ranges.clone())


Column = torch.Tensor | Jagged | SharedJagged


def column_of(tensors: Sequence[torch.Tensor]) -> Column:
    """A column from one tensor, or from the values and the offsets or ranges of its lists."""
    if len(tensors) == 1:
        return tensors[0]
    values, of_rows = tensors
    return Jagged(values, of_rows) if of_rows.dim() == 1 else SharedJagged(values, of_rows)


def tensors_of(column: Column) -> tuple[torch.Tensor, ...]:
    """The tensors of which `column_of` makes the column."""
    if isinstance(column, Jagged):
        return column.values, column.offsets
    return (column.values, column.ranges) if isinstance(column, SharedJagged) else (column,)


def first_equal(lists: Sequence[tuple[int, Array]]) -> list[int]:
    """For each column of lists, the number of the first one whose rows have the same lengths.

    Args:
        lists: The number of values and the offsets, from 0, of each column.
    """
    found, seen = list[int](), dict[tuple[int, np.dtype[Any]], list[int]]()
    for number, (num_values, offsets) in enumerate(lists):
        candidates = seen.setdefault((num_values, offsets.dtype), [])
        for first in candidates:
            if np.array_equal(lists[first][1], offsets):
                break
        else:
            candidates.append(first := number)
        found.append(first)
    return found


def with_shared_offsets(columns: Mapping[Key, Column]) -> Mapping[Key, Column]:
    """The columns; those on the CPU whose lists have the same lengths have one offsets tensor."""
    lists = [
        (key, column)
        for key, column in columns.items()
        if isinstance(column, Jagged) and column.offsets.device.type == "cpu"
    ]
    firsts = first_equal([(len(of.values), of.offsets.numpy()) for _, of in lists])
    found = {
        key: Jagged(column.values, lists[first][1].offsets)
        for (key, column), first in zip(lists, firsts, strict=True)
        if column.offsets is not lists[first][1].offsets
    }
    return {**columns, **found} if found else columns


def sliced(columns: Mapping[Key, Column], begin: int, end: int) -> dict[Key, Column]:
    """Some rows of the columns: views, except for offsets, which begin with 0 again and are shared
    as before. Values that rows share are all there.
    """
    known, found = dict[int, tuple[torch.Tensor, int, int]](), dict[Key, Column]()
    for key, column in columns.items():
        if isinstance(column, SharedJagged):
            found[key] = SharedJagged(column.values, column.ranges[begin:end])
            continue
        if not isinstance(column, Jagged):
            found[key] = column[begin:end]
            continue
        if id(column.offsets) not in known:
            offsets = column.offsets[begin : end + 1]
            known[id(column.offsets)] = offsets - offsets[0], int(offsets[0]), int(offsets[-1])
        offsets, first, last = known[id(column.offsets)]
        found[key] = Jagged(column.values[first:last], offsets)
    return found


def each_tensor(
    columns: Mapping[Key, Column], function: Callable[[torch.Tensor], torch.Tensor]
) -> dict[Key, Column]:
    """The columns with `function(tensor)` for each tensor. Offsets that are shared stay so."""
    known = dict[int, torch.Tensor]()

    def of(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = function(tensor)
        return known[id(tensor)]

    return {key: column_of([*map(of, tensors_of(column))]) for key, column in columns.items()}


def shaped(flat: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A view of the elements in this shape."""
    return flat if len(shape) == 1 else flat.view(shape)


class Columns(Protocol):
    """The columns of a batch, in whatever memory they are."""

    @property
    def keys(self) -> Keys:
        """The roles and names of the columns."""

    def made(self) -> Mapping[Key, Column]:
        """All columns as tensors. The mapping must not be changed."""

    @property
    def whole(self) -> Any:
        """The columns as `PackedColumns`, if that is how they lie; otherwise None."""

    def arrays(self) -> Mapping[Key, BatchValues]:
        """All columns on the CPU as contiguous arrays. Offsets may begin above 0; values begin with
        those of the first list.
        """

    def packed(self) -> "Columns":
        """A copy that shares no memory with anything, on the CPU in few buffers."""

    def moved(self, **how: Any) -> "Columns":
        """Columns whose buffers, packed first if they are on the CPU, are moved by
        `Tensor.to(**how)`, or pinned (`pin=True`).
        """
