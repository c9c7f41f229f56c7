"""Decodes column chunks of local files with the compiled kernels, in one pass: slots into values
without nulls, and other numbers as they are, if they hold no nulls.

Arrow spends most of a row group's time on lists: it decodes levels, builds a validity bitmap, and
then copies values without the nulls. The kernels write directly what a batch holds: a null scalar
becomes the missing mark, a null list a list of one mark, an empty list stays empty, null elements
are dropped. They support what Spark, Arrow and featstore write: int64 and float32, scalars and
lists of them, plain, dictionary-encoded or delta-packed, V1 and V2 pages, snappy, Zstandard or no
compression. Labels, weights and kept columns may be any integers, floating-point numbers or times.
Arrow reads, or refuses, everything else and everything that is damaged. Formats:
parquet.apache.org/docs/file-format.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from featstore.base.processes import cached_property
from featstore.base.schema import Slot, SlotKind
from featstore.native import kernels
from featstore.native.bounds import COLUMN, NUMBERS_OF_CHUNK
from featstore.native.format import Numbers
from featstore.reading.buffers import (
    Array,
    Ragged,
    Values,
    chosen_rows,
    missing_mark,
    num_chosen,
)
from featstore.reading.file_columns import FileColumns
from featstore.reading.open_file import OpenFile

_PHYSICAL = {SlotKind.ID: "INT64", SlotKind.FLOAT: "FLOAT"}
# Types of columns that are no slots: the physical type, and the type as which its values are read.
_OTHERS = {
    pa.int8(): ("INT32", pa.int32()),
    pa.int16(): ("INT32", pa.int32()),
    pa.int32(): ("INT32", pa.int32()),
    pa.int64(): ("INT64", pa.int64()),
    pa.float32(): ("FLOAT", pa.float32()),
    pa.float64(): ("DOUBLE", pa.float64()),
}
# What the kernels return instead of a number of values: the column cannot be decoded by them; or
# pages of row group i (of those that are read) claim too much, as -2 - i.
_NOT_READ, _BEYOND_FIRST = -1, -2
# Of a page, given its decompressed size. An error for another size is an error of the page.
_DECOMPRESS = partial(pa.decompress, codec="zstd", asbytes=True)

_WIDTH, _FOUND = COLUMN["width"], COLUMN["found"]
_OFFSETS_IN, _OFFSETS_AT = COLUMN["offsets_in"], COLUMN["offsets_at"]
_VALUES_IN, _VALUES_AT = COLUMN["values_in"], COLUMN["values_at"]
_REPETITION = COLUMN["repetition"]
_OF_BUFFERS = [_VALUES_IN, _VALUES_AT, _FOUND, _OFFSETS_IN, _OFFSETS_AT, _REPETITION, _FOUND]

# Of shorter runs, on average, rows are looked up one by one once all are decoded: with every second
# row chosen, scalars take two thirds of the time so.
_LEAST_RUN_ROWS = 16

Take = Callable[[int], Array]


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A column, described for the kernels.

    Attributes:
        field: Its field in the file.
        place: The number of its leaf column.
        type: The Arrow type as which it is decoded.
        mark: Bytes of the slot's missing mark; of a column that is no slot as many zeros, which are
            not used.
        max_repetition: Its maximum repetition level: 1 for lists, otherwise 0.
        max_definition: Its maximum definition level.
        is_whole: Whether values are whole numbers, of which differences may be stored.
        null_below: A definition level below this means that the row itself is null. 0: nulls are
            left out, so a column that is no slot has fewer values than rows.
        other: The type of a column that is no slot, which may be narrower than `type`; None: it is
            a slot.
    """

    field: pa.Field
    place: int
    type: pa.DataType
    mark: bytes
    max_repetition: int
    max_definition: int
    null_below: int
    is_whole: bool
    other: pa.DataType | None = None

    @property
    def width(self) -> int:
        """The bytes of a value."""
        return len(self.mark)

    @property
    def dtype(self) -> Any:
        """The dtype of a slot's values."""
        return np.float32 if self.width == 4 else np.int64

    @property
    def numbers(self) -> list[int]:
        """The column as the kernels take it, without what is known of each window only."""
        known = {
            "leaf": self.place,
            "width": self.width,
            "repetition": self.max_repetition,
            "definition": self.max_definition,
            "null_below": self.null_below,
            "mark": int.from_bytes(self.mark, "little", signed=True),
            "is_whole": self.is_whole,
        }
        return [known.get(name, 0) for name in COLUMN]


class ColumnPlan:
    """How the columns of files with one schema are decoded, as far as the kernels support them.

    Args:
        columns: The columns.

    Attributes:
        columns: As given.
        places: The place of each column, by its name in the file.
        numbers: The columns as the kernels take them: int64 (num_columns, num_numbers), without
            what is known of each window only.
        delivery: What who delivers the columns has worked out for all windows.
    """

    def __init__(self, columns: Sequence[_Column]) -> None:
        self.columns = tuple(columns)
        self.places = {column.field.name: place for place, column in enumerate(self.columns)}
        self.numbers = np.array([column.numbers for column in columns], np.int64).reshape(
            -1, len(COLUMN)
        )
        self.others = [name for name, at in self.places.items() if columns[at].other is not None]
        self.delivery: Any = None


class PageReader:
    """Decodes the pages of those columns that the kernels support.

    All columns are decoded in one call that releases the GIL. Zstandard pages, which Arrow's codec
    decompresses, take it again for a moment.

    Args:
        file: An open file, which the caller closes. A remote file has no such columns.
        slots: The slots to decode.
        columns: Where they are in the file.
        take: Gives memory of at least that many bytes, uint8, in which all columns of one call lie;
            they keep it alive together. None: each column has its own.
        others: The columns to decode that are no slots.
        is_portable: Whether only instructions are used that any CPU has, as tests do to compare.
    """

    def __init__(
        self,
        file: OpenFile,
        slots: Iterable[Slot],
        columns: FileColumns,
        take: Take | None = None,
        *,
        others: Iterable[pa.Field] = (),
        is_portable: bool = False,
    ) -> None:
        self._file, self._take, self._is_portable = file, take, is_portable
        self._plan = _NOTHING
        if file.is_local:
            self._plan = _plan(file, tuple(slots), tuple(others), columns)

    def read(
        self, row_groups: Sequence[int], num_threads: int = 1, chosen: Array | None = None
    ) -> "DecodedColumns":
        """Decodes columns of these row groups.

        Args:
            row_groups: The row groups.
            num_threads: In how many threads.
            chosen: As of `RowGroupReader.read`.

        Returns:
            The columns without nulls, by their names in the file. Those that the kernels cannot
            decode are left out, for Arrow to read, and so are columns with nulls that are no slots.

        Raises:
            StateError: Reading was cancelled.
            DataFileError: The pages of a column claim more than the footer allows. Arrow must not
                read them either.
        """
        is_empty = chosen is not None and not num_chosen(chosen)
        if is_empty or not self._plan.columns or not row_groups:
            return NOTHING_DECODED
        try:
            found = self._decoded(row_groups, num_threads, chosen)
        except (ValueError, OverflowError, MemoryError):
            return NOTHING_DECODED  # Arrow reads the columns, and reports what is wrong.
        self._file.require_not_cancelled()
        for place, outcome in enumerate(found.outcomes):
            if outcome < _NOT_READ:
                name = self._plan.columns[place].field.name
                raise self._file.beyond_bounds(row_groups[_BEYOND_FIRST - outcome], name)
        return found

    def _decoded(
        self, row_groups: Sequence[int], num_threads: int, chosen: Array | None
    ) -> "DecodedColumns":
        footer, numbers = self._file.footer.numbers, self._plan.numbers.copy()
        which = np.array(row_groups, np.int64)
        rows = np.array([self._file.row_group_rows[index] for index in row_groups], np.int64)
        chunks = np.empty((len(numbers), len(rows), NUMBERS_OF_CHUNK), np.int64)
        order, kept = _as_kernels_take(chosen)
        room_bytes, num_bytes = kernels.plan_columns(
            *(footer, footer.shape[1], which, rows, numbers, chunks),
            *(self._take is not None, len(order) > 0),
        )
        buffers = allocated(numbers, int(rows.sum()), num_bytes, self._take)
        num_threads = min(num_threads, len(numbers))
        room_bytes = -(-room_bytes // 64) * 64
        kernels.decode_columns(
            self._file.descriptor,
            chunks,
            rows,
            order,
            kept,
            numbers,
            buffers,
            pa.allocate_buffer(room_bytes * num_threads),
            num_threads,
            self._file.cancelled,
            not self._file.is_checked,
            _DECOMPRESS,
            self._is_portable,
        )
        num_rows = int(rows.sum()) if chosen is None else num_chosen(chosen)
        return DecodedColumns(self._plan, numbers, buffers, num_rows)


def _plan(
    file: OpenFile, slots: tuple[Slot, ...], others: tuple[pa.Field, ...], columns: FileColumns
) -> ColumnPlan:
    """The plan for these columns, made once for all files with the same schema."""
    key = tuple(each.name for each in (*slots, *others))
    if key not in columns.plans:
        described = [_column(file, slot, columns) for slot in slots]
        described += [_other_column(file, field, columns) for field in others]
        columns.plans[key] = ColumnPlan([column for column in described if column is not None])
    plan: ColumnPlan = columns.plans[key]
    return plan


def _column(file: OpenFile, slot: Slot, columns: FileColumns) -> _Column | None:
    """The slot's column; None if the kernels do not support it."""
    name = columns.slots[slot.name]
    if (
        name is None
        or name in columns.others.values()
        or slot.width is not None
        or len(columns.places[name]) != 1
    ):
        return None
    place, field = columns.places[name][0], file.schema.field(name)
    leaf = file.footer.leaves[place]
    is_list = pa.types.is_list(field.type)
    element = field.type.value_field if is_list else field
    nulls = int(field.nullable)
    max_definition = nulls + 1 + element.nullable if is_list else nulls
    wanted = pa.int64() if slot.kind is SlotKind.ID else pa.float32()
    levels = (int(is_list), max_definition)
    is_as_said = (
        f"{leaf.path}.".startswith(f"{name}.")
        and leaf.physical_type == _PHYSICAL[slot.kind]
        and levels == (leaf.max_repetition, leaf.max_definition)
    )
    if is_list is not slot.is_list or element.type != wanted or not is_as_said:
        return None
    return _Column(
        field=field,
        place=place,
        type=field.type,
        mark=missing_mark(slot),
        max_repetition=levels[0],
        max_definition=max_definition,
        null_below=nulls,
        is_whole=slot.kind is SlotKind.ID,
    )


def _other_column(file: OpenFile, field: pa.Field, columns: FileColumns) -> _Column | None:
    """The column of a field that is no slot; None if the kernels do not support it."""
    name = columns.others[field.name]
    if name is None or name in columns.slots.values() or len(columns.places[name]) != 1:
        return None
    place, found = columns.places[name][0], file.schema.field(name)
    leaf, max_definition = file.footer.leaves[place], int(found.nullable)
    known = ("INT64" if pa.types.is_timestamp(found.type) else None), found.type
    physical, type_ = _OTHERS.get(found.type, known)
    levels = (leaf.max_repetition, leaf.max_definition)
    if leaf.path != name or leaf.physical_type != physical or levels != (0, max_definition):
        return None
    return _Column(
        field=found,
        place=place,
        type=type_,
        mark=bytes(type_.byte_width),
        max_repetition=0,
        max_definition=max_definition,
        null_below=0,
        is_whole=physical in ("INT32", "INT64"),
        other=found.type,
    )


class DecodedColumn:
    """A column that the kernels have decoded, without nulls.

    Attributes:
        field: Its field in the file.
    """

    def __init__(self, column: _Column, numbers: Sequence[int], of: "DecodedColumns") -> None:
        self.field, self._column, self._num_rows = column.field, column, of.num_rows
        self._num_values = numbers[_FOUND]
        self._offsets = of.buffers[numbers[_OFFSETS_IN]], numbers[_OFFSETS_AT]
        self._values = of.buffers[numbers[_VALUES_IN]], numbers[_VALUES_AT]

    @property
    def is_complete(self) -> bool:
        """Whether it is all of the column: not if it is no slot and has nulls, or values that its
        type does not hold.
        """
        return self._column.other is None or self.array is not None

    @property
    def values(self) -> Values:
        """The values of a slot, views of the column's memory."""
        column = self._column
        (memory, first), num_values = self._values, self._num_values
        values: Array = np.frombuffer(memory, column.dtype, num_values, first)
        if not column.max_repetition:
            return values
        memory, first = self._offsets
        return Ragged(values, np.frombuffer(memory, np.int32, self._num_rows + 1, first))

    @cached_property
    def array(self) -> Any:
        """The column as an Arrow array; None unless it `is_complete`."""
        column, num_values = self._column, self._num_values
        value_type = column.type.value_type if column.max_repetition else column.type
        if column.other is not None and num_values != self._num_rows:
            return None
        of_values = _part(*self._values, num_values * column.width)
        values = pa.Array.from_buffers(value_type, num_values, [None, of_values], 0)
        if column.other not in (None, column.type):
            try:
                return values.cast(column.other)
            except pa.ArrowInvalid:
                return None
        if not column.max_repetition:
            return values
        offsets = _part(*self._offsets, 4 * (self._num_rows + 1))
        return pa.Array.from_buffers(
            column.type, self._num_rows, [None, offsets], 0, children=[values]
        )


class DecodedColumns(Mapping[str, DecodedColumn]):
    """The columns of a window that the kernels have decoded, by their names in the file.

    Args:
        plan: How they were decoded.
        numbers: What came of it: int64 (num_columns, num_numbers), as `plan.numbers`.
        buffers: The memory in which they lie.
        num_rows: How many rows each column has.
    """

    def __init__(
        self, plan: ColumnPlan, numbers: Numbers, buffers: tuple[Any, ...], num_rows: int
    ) -> None:
        self.plan, self.numbers, self.buffers, self.num_rows = plan, numbers, buffers, num_rows
        self.outcomes: list[int] = numbers[:, _FOUND].tolist()
        self._made = dict[str, DecodedColumn]()
        self._missing = set[str]()
        if min(self.outcomes, default=0) < 0:
            self._missing |= {
                name for name, place in plan.places.items() if self.outcomes[place] < 0
            }
        for name in plan.others:
            if name in self and not self[name].is_complete:
                self._missing.add(name)

    @property
    def is_whole(self) -> bool:
        """Whether all columns of the plan are there."""
        return not self._missing

    def in_buffers(self, places: Array) -> Array:
        """Where columns of slots lie, as of `ColumnBuffers.numbers`.

        Args:
            places: Their places in the plan.
        """
        found = self.numbers[places][:, _OF_BUFFERS]
        found[:, 5] *= 4  # bytes of an offset of lists
        found[:, 6] = self.num_rows
        return found

    def size_bytes(self, places: Array) -> int:
        """The memory of these columns."""
        values = self.numbers[places, _FOUND] * self.numbers[places, _WIDTH]
        offsets = 4 * (self.num_rows + 1) * self.numbers[places, _REPETITION]
        return int(values.sum() + offsets.sum())

    def __getitem__(self, name: str) -> DecodedColumn:
        if name in self._missing:
            raise KeyError(name)
        if (found := self._made.get(name)) is None:
            place = self.plan.places[name]
            found = DecodedColumn(self.plan.columns[place], self.numbers[place].tolist(), self)
            self._made[name] = found
        return found

    def __contains__(self, name: object) -> bool:
        return name in self.plan.places and name not in self._missing

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.plan.places if name not in self._missing)

    def __len__(self) -> int:
        return len(self.plan.places) - len(self._missing)


def allocated(
    numbers: Numbers, num_rows: int, num_bytes: int, take: Take | None
) -> tuple[Any, ...]:
    """The memory of columns that are planned: their offsets and values.

    Both lie in one allocation, since each allocation by Arrow may lose the GIL to another thread.
    Under sanitizers each has its own, so that a write beyond its end is detected
    (fuzz/separate.py).

    Args:
        numbers: The columns, as of `DecodedColumns`, which say where in the memory they lie.
        num_rows: How many rows each has.
        num_bytes: The bytes of all columns together.
        take: As of `PageReader`.
    """
    if take is not None:
        return (take(num_bytes),)
    sizes = numbers[:, _VALUES_AT] + numbers[:, _FOUND].clip(min=0) * numbers[:, _WIDTH]
    return tuple(map(pa.allocate_buffer, sizes.tolist()))


def _as_kernels_take(chosen: Array | None) -> tuple[Array, Array]:
    """Chosen rows as `order` and `kept` of `kernels.decode_columns`."""
    order, kept = np.zeros(0, np.uint32), np.zeros(0, np.int64)
    if chosen is None:
        return order, kept
    if chosen.dtype == bool:
        kept = np.flatnonzero(np.diff(chosen, prepend=False, append=False)).astype(np.int64)
        if _LEAST_RUN_ROWS * len(kept) <= 2 * num_chosen(chosen):
            return order, kept
    return chosen_rows(chosen).astype(np.uint32), kept[:0]


def _part(memory: Any, first: int, num_bytes: int) -> pa.Buffer:
    return pa.py_buffer(memory).slice(first, num_bytes)


_NOTHING = ColumnPlan(())
NOTHING_DECODED = DecodedColumns(_NOTHING, _NOTHING.numbers, (), 0)
