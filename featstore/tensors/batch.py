"""What the training loop gets: a batch of tensors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa
import torch

from featstore.errors import nearest
from featstore.tensors.column_keys import LABEL, SLOT, WEIGHT, Key, Keys
from featstore.tensors.keyed_jagged import Bag, keyed_jagged

Device = torch.device | str | int


@dataclass(frozen=True, eq=False, slots=True)
class Jagged:
    """A variable-length column: row i is `values[offsets[i]:offsets[i + 1]]`.

    `values`: int64 or float32 (num_values,). `offsets`: int64 (num_rows + 1,), beginning with 0,
    ending with num_values.
    """

    values: torch.Tensor
    offsets: torch.Tensor

    def lengths(self) -> torch.Tensor:
        """int64 (num_rows,)."""
        return self.offsets.diff()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> torch.Tensor:
        """The values of one row; negative rows count from the end."""
        num_rows = len(self)
        if not -num_rows <= row < num_rows:
            raise IndexError(f"row {row} of {num_rows}")
        row %= num_rows
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[row] for row in range(len(self)))

    def to(self, device: Device, *, non_blocking: bool = False) -> "Jagged":
        values, offsets = (
            part.to(device, non_blocking=non_blocking) for part in (self.values, self.offsets)
        )
        return Jagged(values, offsets)

    def to_nested(self) -> torch.Tensor:
        """The rows as a torch nested tensor of jagged layout, which shares the values' memory."""
        return torch.nested.nested_tensor_from_jagged(self.values, offsets=self.offsets)

    def clone(self) -> "Jagged":
        return Jagged(self.values.clone(), self.offsets.clone())


Column = torch.Tensor | Jagged


def column_of(tensors: Sequence[torch.Tensor]) -> Column:
    """The column of a dense one's values, or of a jagged one's values and offsets."""
    return tensors[0] if len(tensors) == 1 else Jagged(*tensors)


def shaped(flat: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The elements in a shape, as a view."""
    return flat if len(shape) == 1 else flat.view(shape)


class Columns(Protocol):
    """Where a batch finds its columns."""

    @property
    def keys(self) -> Keys:
        """The columns there are."""

    def made(self) -> Mapping[Key, Column]:
        """All columns as tensors; not to be changed."""

    def packed(self) -> "Columns":
        """The same columns as views of few buffers, which share memory with nothing."""

    def moved(self, **how: Any) -> "Columns":
        """Packed columns whose buffers were moved by `Tensor.to`, or pinned (`pin=True`)."""


class Batch:
    """Rows in the order of delivery: `batch["slot"]` is int64 or float32 `(num_rows,)`, `(num_rows,
    width)`, or `Jagged`.

    As the loader delivers it in the same process, tensors are views of decoded memory that other
    batches share: read-only by contract, `clone()` is yours to write. A batch that was moved,
    pinned or cloned is packed into one buffer, a shuffled one lies in one buffer per dtype; one
    that was sent from another process is in one shared-memory buffer. `is_padding`: rows that were
    delivered before, so that ranks make equal numbers of steps; they must not count. Tensors are
    made, all at once, when a column is first asked for. Not thread-safe while that happens.
    """

    def __init__(
        self, columns: Columns, *, num_rows: int, extras: pa.Table, is_padding: bool = False
    ) -> None:
        self.num_rows = num_rows
        self.is_padding = is_padding
        self.extras = extras
        self._columns = columns
        self._made: Mapping[Key, Column] | None = None
        self.last_asked: str | None = None

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots' names, in the order of the selection."""
        return self._names(SLOT)

    @property
    def columns(self) -> Columns:
        """Where the columns are, for what moves a batch as a whole."""
        return self._columns

    def __getitem__(self, slot: str) -> Any:
        """The slot's Tensor or Jagged; KeyError with the nearest names where the batch has no such
        slot.
        """
        try:
            return self._column((SLOT, slot))
        except KeyError:
            raise KeyError(f"no slot {slot!r} in the batch{nearest(slot, self.slots)}") from None

    def __contains__(self, slot: object) -> bool:
        return slot in self.slots

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        return (
            f"Batch(num_rows={self.num_rows}, slots={list(self.slots)}, "
            f"labels={list(self._names(LABEL))})"
        )

    def items(self) -> Iterator[tuple[Key, Column]]:
        """Every column with its role (`slot`, `label`, `weight`) and name."""
        return iter(self._all().items())

    @cached_property
    def labels(self) -> Mapping[str, torch.Tensor]:
        """Each label as float32 (num_rows,)."""
        return {name: self._column((LABEL, name)) for name in self._names(LABEL)}

    @property
    def weight(self) -> torch.Tensor | None:
        """float32 (num_rows,), or None where the loader was given no weight."""
        names = self._names(WEIGHT)
        return self._column((WEIGHT, names[0])) if names else None

    def dense(self, slots: Sequence[str]) -> torch.Tensor:
        """Float slots side by side: float32 (num_rows, k), in the order named, a fixed width or a
        padded list as its columns.

        Missing values are NaN. TypeError for ids and for lists that were not padded.
        """
        columns = [self._dense_column(name) for name in _names_of("dense()", slots)]
        if not columns:
            raise ValueError("dense(): expected at least one slot, found none")
        dense = columns[0].new_empty(
            (self.num_rows, sum(column.shape[1] for column in columns)), dtype=torch.float32
        )
        # Slice by slice: `torch.cat` wakes torch's threads, which then spin on the cores that
        # decode.
        first = 0
        for column in columns:
            dense[:, first : first + column.shape[1]] = column
            first += column.shape[1]
        return dense

    def to_kjt(self, slots: Sequence[str] | None = None) -> Any:
        """The id slots, or those named, as a TorchRec KeyedJaggedTensor with the slots' names as
        keys.

        A scalar is a bag of one, a fixed width and a padded list a bag of so many, a list one of
        its length; a missing value is the id 0. int64, or int32 where all slots are. TypeError for
        float slots; MissingDependencyError without torchrec.
        """
        names = (
            [n for n in self.slots if _is_ids(self[n])]
            if slots is None
            else _names_of("to_kjt()", slots)
        )
        if not names:
            raise ValueError("to_kjt(): expected at least one id slot, found none")
        return keyed_jagged(names, [self._bag(name) for name in names])

    def to(self, device: Device, *, non_blocking: bool = False) -> "Batch":
        """The batch on a device, packed: one copy per dtype. `extras` stay where they are."""
        return self._with(
            self._columns.moved(device=torch.device(device), non_blocking=non_blocking)
        )

    def pin_memory(self) -> "Batch":
        """The batch packed in page-locked memory, from where copies to a device need not block."""
        return self._with(self._columns.moved(pin=True))

    def clone(self) -> "Batch":
        """A packed copy that shares memory with nothing, yours to write."""
        return self._with(self._columns.packed())

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (
            self._columns.packed(),
            self.num_rows,
            _to_ipc(self.extras),
            self.is_padding,
        )

    def _dense_column(self, name: str) -> torch.Tensor:
        """The slot's values, (num_rows, width)."""
        column: Column = self[name]
        if isinstance(column, Jagged):
            raise TypeError(
                f"dense(): slot {name!r} is a list: select it with {{name: {name}, pad: 8}}, or "
                f"take batch[{name!r}]"
            )
        if not column.is_floating_point():
            raise TypeError(
                f"dense(): slot {name!r} holds ids, which float32 cannot keep: look them up, by "
                f"to_kjt() for example"
            )
        return column.reshape(self.num_rows, -1) if column.dim() > 1 else column[:, None]

    def _bag(self, name: str) -> Bag:
        column = self[name]
        if not _is_ids(column):
            raise TypeError(
                f"to_kjt(): slot {name!r} holds floats, expected ids: take floats by dense()"
            )
        if isinstance(column, Jagged):
            return column.values, column.lengths()
        lengths = torch.full(
            (self.num_rows,), column.shape[1] if column.dim() > 1 else 1, device=column.device
        )
        return column.reshape(-1), lengths

    def _names(self, role: str) -> tuple[str, ...]:
        return self._columns.keys.names[role]

    def _column(self, key: Key) -> Any:
        self.last_asked = key[1]
        return self._all()[key]

    def _all(self) -> Mapping[Key, Column]:
        made = self._made
        if made is None:
            made = self._made = self._columns.made()
        return made

    def _with(self, columns: Columns) -> "Batch":
        return Batch(
            columns, num_rows=self.num_rows, extras=self.extras, is_padding=self.is_padding
        )


def _is_ids(column: Column) -> bool:
    values = column.values if isinstance(column, Jagged) else column
    return not values.is_floating_point()


def _names_of(what: str, slots: Sequence[str]) -> list[str]:
    if isinstance(slots, str):
        raise TypeError(f"{what}: expected a list of slots, found {slots!r}")
    return list(slots)


def _to_ipc(table: pa.Table) -> bytes | int:
    """Arrow pickles the whole memory under a slice; its stream format only the slice. Without
    columns, the row count.
    """
    if not table.num_columns:
        return int(table.num_rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _received(columns: Columns, num_rows: int, extras: bytes | int, is_padding: bool) -> Batch:
    table = pa.table({}) if isinstance(extras, int) else pa.ipc.open_stream(extras).read_all()
    return Batch(columns, num_rows=num_rows, extras=table, is_padding=is_padding)
