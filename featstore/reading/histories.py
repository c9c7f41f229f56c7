"""Reads histories: the lists of row groups, each stored once for all rows with one key, and the
range of it that each row has. These are gathered as other lists are (gather.py), for the rows of
batches only.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from featstore.base.errors import DataFileError
from featstore.base.processes import cached_property
from featstore.base.schema import Slot, SlotSchema
from featstore.histories.file_format import HistoryRanges, StoredHistory, histories_of
from featstore.histories.visibility import MOST_US, oldest_seen
from featstore.native import kernels
from featstore.ops.arrays import array_of, nulls_of, values_of
from featstore.ops.lists import positions_of
from featstore.ops.timestamps import UNITS
from featstore.reading.aligned import aligned_reader
from featstore.reading.buffers import Array, Ragged, SharedLists, chosen_rows, one_array
from featstore.reading.file_columns import FileColumns, Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.pages import Take
from featstore.reading.reader import Rows, chosen_lists

_TIME = pa.timestamp("us", "UTC")
_NO_TIMES, _ANY_LEN = np.empty(0, np.int64), 2**63 - 1
# How many events are looked at at once where single ones may be too old. Chosen, not measured.
_EVENTS_AT_ONCE = 1 << 20
# Of each row: its range, that of ages with time and unit, and the columns of which they are made.
_ROW_BYTES = 16 + 32 + 3 * 4 + 2 * 8


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectedHistory:
    """What is read of a history.

    Attributes:
        history: The history.
        names: The slots that are delivered.
        fields: The table's columns of rows, by name: the ranges, and the time.
        max_len: The most events of a row, the newest ones; None: as many as were extracted.
        window_us: No event is longer before its row; None: as was extracted.
        is_whole: The times are read in any case.
        unique: Whether a batch has each event once, however many of its rows see it.
    """

    history: StoredHistory
    names: frozenset[str]
    fields: Mapping[str, pa.Field]
    max_len: int | None = None
    window_us: int | None = None
    is_whole: bool = False
    unique: bool = False

    @property
    def most_events(self) -> int:
        """The most events of a row."""
        return self.max_len or self.history.max_len

    @property
    def key(self) -> list[int | None]:
        """What of the request's digest is the history's, besides its slots."""
        return [self.max_len, self.window_us]

    @cached_property
    def lists(self) -> tuple[Slot, ...]:
        """The stored lists that are read."""
        history = self.history
        found = [slot for slot in history.lists if slot.name in self.names]
        return (*found, history.times) if self.needs_times or self.is_whole else tuple(found)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that are delivered."""
        return tuple(slot for slot in self.history.slots if slot.name in self.names)

    @cached_property
    def ages(self) -> tuple[tuple[Slot, str], ...]:
        return tuple(each for each in self.history.ages if each[0].name in self.names)

    @property
    def needs_times(self) -> bool:
        return bool(self.ages) or self.oldest_us is not None

    @property
    def oldest_us(self) -> int | None:
        """How long before its row an event may be, if ranges may hold others: the window is
        shorter than that of the extraction, or events became known long after they happened.
        """
        if self.window_us is not None:
            return self.window_us
        return None if self.history.logged_at is None else self.history.window_us

    @cached_property
    def selection(self) -> Selection:
        """The columns of data files that are read."""
        history = self.history
        key = next(each for each in history.hidden_fields if each.name == history.key_column)
        # In the kernels' type, whatever integers another engine has declared them to be.
        others = [self.fields[each.name].with_type(each.type) for each in history.row_fields]
        times = [self.time_of_row] if self.needs_times else []
        return Selection(slots=self.lists, others=(*others, key, *times))

    @property
    def length_field(self) -> pa.Field:
        """The column with how many events a row has as extracted."""
        return self.fields[self.history.length].with_type(pa.int32())

    @property
    def time_of_row(self) -> pa.Field:
        return self.fields[self.history.as_of].with_type(_TIME)


def selected_histories(schema: SlotSchema, names: Collection[str]) -> list[SelectedHistory]:
    """The histories of a table that have slots of these names, as they were extracted."""
    fields = {column.name: column for column in schema.kept}
    found = [
        SelectedHistory(
            history=history,
            names=frozenset(slot.name for slot in history.slots if slot.name in names),
            fields=fields,
        )
        for history in histories_of(schema)
    ]
    return [each for each in found if each.names]


class AnyReader(Protocol):
    """The methods of `RowGroupReader`, which other readers have too."""

    @property
    def columns(self) -> FileColumns: ...

    @property
    def parts(self) -> list[tuple[OpenFile, FileColumns]]: ...

    def read(self, row_groups: Iterable[int], chosen: Array | None = None) -> Rows: ...

    def slices(self, row_group: int, num_rows: int) -> Iterator[Rows] | None: ...

    def size_bytes(self, row_groups: Iterable[int]) -> int: ...

    def room_bytes(self, row_groups: Iterable[int], *, in_order: bool = False) -> int: ...


class HistoryReader:
    """Reads rows with their histories. Not thread-safe.

    Args:
        reader: Reads the other columns.
        lists: Reads those of the histories.
        histories: What is read of each.
        row_group_rows: The rows of each row group.
        shared: Columns that `reader` leaves out since `lists` has them, for the rows.
        counts_all: Whether the sizes that `reader` tells are those of both.
    """

    def __init__(
        self,
        reader: AnyReader,
        lists: AnyReader,
        histories: Sequence[SelectedHistory],
        row_group_rows: Sequence[int],
        *,
        shared: Sequence[pa.Field] = (),
        counts_all: bool = False,
    ) -> None:
        self._reader, self._lists, self._histories = reader, lists, histories
        self._row_group_rows, self._counts_all = row_group_rows, counts_all
        others = {field.name: lists.columns.others[field.name] for field in shared}
        leaves = (leaf for leaf in lists.columns.leaves if leaf.column in others.values())
        self._shared = FileColumns(slots={}, others=others, leaves=tuple(leaves))
        found = ((others[field.name], field) for field in shared)
        self._shared_fields = {name: field for name, field in found if name is not None}

    @property
    def columns(self) -> FileColumns:
        """The other columns."""
        return self._reader.columns

    @property
    def parts(self) -> list[tuple[OpenFile, FileColumns]]:
        """As of `RowGroupReader`."""
        return [*self._reader.parts, *self._lists.parts]

    def read(self, row_groups: Iterable[int], chosen: Array | None = None) -> Rows:
        """The rows of these row groups, as of `RowGroupReader`, with their histories.

        Raises:
            DataFileError: Also where a row's range is not one of its own key's list.
        """
        row_groups = list(row_groups)
        rows = self._reader.read(row_groups, chosen)
        # All rows of whole row groups: a row that is left out may hold the list of others.
        lists = self._lists.read(row_groups)
        sizes = [self._row_group_rows[index] for index in row_groups]
        found, own_bytes = lists_of_rows(self._histories, lists, row_groups, sizes)
        if chosen is not None:
            found = chosen_lists(found, chosen)
        if self._shared.others:
            rows = rows.beside(self._shared_columns(lists, chosen), self._shared)
        return replace(rows, histories=found, own_lists_bytes=own_bytes)

    def _shared_columns(self, lists: Rows, chosen: Array | None) -> pa.Table:
        table = pa.table({name: lists.other(field) for name, field in self._shared_fields.items()})
        if chosen is None or not table.num_columns:
            return table
        return table.take(array_of(chosen_rows(chosen)))

    def slices(self, row_group: int, num_rows: int) -> Iterator[Rows] | None:
        """None: lists are read whole."""
        return None

    def size_bytes(self, row_groups: Iterable[int]) -> int:
        """As of `RowGroupReader`: the lists as they are stored, not those of all rows."""
        row_groups = list(row_groups)
        num_rows = sum(self._row_group_rows[index] for index in row_groups)
        own_bytes = _ROW_BYTES * num_rows * len(self._histories)
        counted = [self._reader] if self._counts_all else [self._reader, self._lists]
        return own_bytes + sum(each.size_bytes(row_groups) for each in counted)

    def room_bytes(self, row_groups: Iterable[int], *, in_order: bool = False) -> int:
        """As of `RowGroupReader`."""
        row_groups = list(row_groups)
        own_bytes = self._lists.room_bytes(row_groups)
        return max(own_bytes, self._reader.room_bytes(row_groups, in_order=in_order))


def lists_of_rows(
    histories: Iterable[SelectedHistory],
    rows: Rows,
    row_groups: Sequence[int],
    sizes: Sequence[int],
) -> tuple[dict[str, SharedLists], int]:
    """The slots of histories in rows, by name, and the bytes of lists that were made of others.

    Args:
        histories: The histories.
        rows: All rows of some row groups, with the histories' columns.
        row_groups: The row groups.
        sizes: How many rows each has.

    Raises:
        DataFileError: A row's range is not one of its own key's list.
    """
    found, own_bytes = dict[str, SharedLists](), 0
    for each in histories:
        of_history = _Lists(each, rows, row_groups, sizes)
        found |= of_history.ranges()
        own_bytes += of_history.own_lists_bytes
    return found, own_bytes


def with_histories(
    reader: AnyReader,
    files: Sequence[OpenFile],
    histories: Iterable[SelectedHistory],
    *,
    shared: Sequence[pa.Field] = (),
    num_threads: int | None = None,
    most_room_bytes: int | None = None,
    take: Take | None = None,
) -> AnyReader:
    """A reader of rows with their histories.

    Args:
        reader: Reads the other columns.
        files: The data file, then those of its slot groups.
        histories: What is read of each.
        shared: As of `HistoryReader`.
        num_threads: As of `RowGroupReader`.
        most_room_bytes: As of `RowGroupReader`.
        take: As of `RowGroupReader`.

    Raises:
        DataFileError: A column cannot be what was selected, or a history lacks columns.
    """
    if not (histories := list(histories)):
        return reader
    lists = aligned_reader(
        files[0],
        files[1:],
        joined([each.selection for each in histories]),
        num_threads=num_threads,
        as_values=True,
        most_room_bytes=most_room_bytes,
        take=take,
    )
    for each in histories:
        _require_whole(each, lists.columns, files[0].name)
    return HistoryReader(reader, lists, histories, files[0].row_group_rows, shared=shared)


class StoredReader:
    """Reads what a data file and its slot groups' files store of histories, for rows to be written
    again. Not thread-safe.

    Args:
        file: The data file.
        schema: The table's.
        groups: The files of its slot groups.

    Attributes:
        histories: Those that the files have.

    Raises:
        DataFileError: As of `HistoryReader`.
    """

    def __init__(self, file: OpenFile, schema: SlotSchema, groups: Sequence[OpenFile] = ()) -> None:
        fields = {column.name: column for column in schema.kept}
        selected = [
            SelectedHistory(
                history=history,
                names=frozenset(slot.name for slot in history.lists),
                fields=fields,
                is_whole=True,
            )
            for history in histories_of(schema)
        ]
        self._file = file
        self._reader = aligned_reader(
            file, groups, joined([each.selection for each in selected]), as_values=True
        )
        columns = self._reader.columns
        for each in selected:
            _require_whole(each, columns, file.name)
        self._selected = [each for each in selected if columns.others[each.history.end] is not None]
        self.histories = [each.history for each in self._selected]

    def read(self, row_group: int) -> list[HistoryRanges]:
        """What the rows of a row group see of each history.

        Raises:
            DataFileError: A row's range is not one of its own key's list.
        """
        if not self._selected:
            return []
        rows, sizes = self._reader.read([row_group]), [self._file.row_group_rows[row_group]]
        return [_Lists(each, rows, [row_group], sizes).stored() for each in self._selected]


def joined(selections: Iterable[Selection]) -> Selection:
    """The columns of all selections, each once."""
    slots, others = dict[str, Slot](), dict[str, pa.Field]()
    for each in selections:
        slots |= {slot.name: slot for slot in each.slots if slot.name not in slots}
        others |= {field.name: field for field in each.others if field.name not in others}
    return Selection(slots=tuple(slots.values()), others=tuple(others.values()))


def _require_whole(selected: SelectedHistory, columns: FileColumns, file_name: str) -> None:
    """DataFileError if a file has the ranges of a history and not its lists: another engine wrote
    it again. A file from before the history has neither.
    """
    found = {**columns.slots, **columns.others}
    own = (*selected.selection.slots, *selected.selection.others)
    names = [each.name for each in own if each.name != selected.history.as_of]
    has = [name for name in names if found[name] is not None]
    if has and len(has) < len(names):
        lacks = next(name for name in names if found[name] is None)
        raise DataFileError(
            f"{file_name}: history {selected.history.name!r}: expected a column {lacks!r} beside "
            f"{has[0]!r}, found none: another program wrote the file again; extract its partition "
            "again"
        )


class _Lists:
    """One history of some row groups.

    Args:
        selected: What is read of it.
        rows: All rows of the row groups, with the history's columns.
        row_groups: The row groups.
        sizes: How many rows each has.

    Attributes:
        own_lists_bytes: After `ranges`, as of `Rows`.
    """

    def __init__(
        self, selected: SelectedHistory, rows: Rows, row_groups: Sequence[int], sizes: Sequence[int]
    ) -> None:
        self._selected, self._history, self._rows = selected, selected.history, rows
        self._row_groups, self._firsts = row_groups, np.cumsum([0, *sizes])[:-1]
        self._sizes = sizes
        self.own_lists_bytes = 0

    def ranges(self) -> dict[str, SharedLists]:
        """The ranges of all rows, by slot.

        Raises:
            DataFileError: One is not of its own key's list.
        """
        selected, history = self._selected, self._history
        as_of = self._times_of_rows() if selected.needs_times else None
        if not self._has_history():
            lists = {slot.name: _no_lists(slot, self._rows.num_rows) for slot in selected.lists}
            of_rows = np.zeros((self._rows.num_rows, 2), np.int64)
        else:
            lists = self._lists()
            of_rows = self._checked(lists, as_of)
        found = dict[str, SharedLists]()
        if as_of is not None:
            if selected.oldest_us is not None:
                lists, of_rows = self._in_window(lists, of_rows, as_of, selected.oldest_us)
            found |= self._ages(lists[history.times.name].values, of_rows, as_of)
        for slot in history.lists:
            if slot.name in selected.names:
                found[slot.name] = SharedLists(lists[slot.name].values, of_rows)
        return found

    def _has_history(self) -> bool:
        """Whether the file has it. Decoded columns that it lacks are null."""
        names = (self._history.end, self._history.key_column)
        columns = (each for each in self._selected.selection.others if each.name in names)
        num_rows = self._rows.num_rows
        return any(self._rows.other(each).null_count < num_rows for each in columns)

    def stored(self) -> HistoryRanges:
        """The ranges of all rows in the lists of their holders, as they are stored.

        Raises:
            DataFileError: As of `ranges`.
        """
        history = self._history
        lists = self._lists()
        begins, ends = self._checked(lists, None).T
        back, keys = (self._numbers(name) for name in (history.back, history.key_column))
        return HistoryRanges(
            history=history,
            keys=keys,
            sharing=np.arange(1, len(back) + 1) - back,
            begin=begins,
            end=ends,
            values={name: [each.values] for name, each in lists.items()},
        )

    def _in_window(
        self, lists: dict[str, Ragged], of_rows: Array, as_of: Array, window_us: int
    ) -> tuple[dict[str, Ragged], Array]:
        """The lists, and ranges of them without events that are longer before their rows."""
        at = lists[self._history.times.name].values
        oldest = oldest_seen(as_of, window_us)
        if self._history.logged_at is not None:
            found, of_rows = without_old(lists, of_rows, at, oldest)
            # Where lists were added, all of them are copies.
            self.own_lists_bytes = sum(
                each.values.nbytes
                for name, each in found.items()
                if each.values is not lists[name].values
            )
            return found, of_rows
        begins, ends = of_rows.T
        return lists, np.stack([first_since(at, begins, ends, oldest), ends], axis=1)

    def _ages(self, at: Array, of_rows: Array, as_of: Array) -> dict[str, SharedLists]:
        found = dict[str, Array]()
        for _, unit in self._selected.ages:
            if unit not in found:
                found[unit] = np.empty((len(as_of), 4), np.int64)
                found[unit][:, :2], found[unit][:, 2], found[unit][:, 3] = (
                    of_rows,
                    as_of,
                    UNITS[unit],
                )
        return {slot.name: SharedLists(at, found[unit]) for slot, unit in self._selected.ages}

    def _lists(self) -> dict[str, Ragged]:
        """The lists of all holders, which have as many events in each."""
        lists = {slot.name: self._list(slot) for slot in self._selected.lists}
        [(first, of_first), *others] = lists.items()
        for name, other in others:
            if not np.array_equal(other.offsets, of_first.offsets):
                lengths = np.diff(other.offsets)
                row = int(np.flatnonzero(lengths != np.diff(of_first.offsets))[0])
                raise self._wrong(name, row, f"as many events as {first}", lengths[row])
        return lists

    def _checked(self, lists: Mapping[str, Ragged], as_of: Array | None) -> Array:
        """Where in the lists each row's range begins and ends, not more than its newest `max_len`
        events: int64 (num_rows, 2).

        Args:
            lists: The lists of all holders.
            as_of: The times of the rows; None: they are not compared.
        """
        history, offsets = self._history, next(iter(lists.values())).offsets
        names = (history.end, history.length, history.back, history.key_column)
        end, length, back, key = (self._numbers(name) for name in names)
        at = _NO_TIMES if as_of is None else lists[history.times.name].values
        if len(at) and not -MOST_US < int(at.min()) <= int(at.max()) < MOST_US:
            raise DataFileError(
                f"{self._rows.file_name}: column {history.times.name!r}: expected times "
                "within 146,000 years of 1970, found others; write the file again"
            )
        ranges = np.empty((len(key), 2), np.int64)
        what, row = kernels.history_ranges(
            *(end, length, back, key, np.array(self._sizes, np.int64)),
            *(
                offsets,
                offsets.itemsize,
                int(offsets[-1]),
                _NO_TIMES if as_of is None else as_of,
                at,
            ),
            *(MOST_US, self._selected.max_len or _ANY_LEN, ranges),
        )
        if what:
            column, found, expected = (
                (history.back, back, "a row before it, or 0"),
                (history.key_column, key, f"the key of the row that {history.back} names"),
                (history.end, end, "at most as many events as the key's list"),
                (history.length, length, f"0 to {history.end}, and 0 without a key"),
                (history.end, end, "events before the row's time"),
            )[what - 1]
            raise self._wrong(column, row, expected, found[row])
        return ranges

    def _numbers(self, name: str) -> Array:
        """A column of numbers; DataFileError at a null."""
        field = next(each for each in self._selected.selection.others if each.name == name)
        column = one_array(self._rows.other(field))
        if (nulls := nulls_of(column)) is not None:
            raise self._wrong(name, int(np.flatnonzero(nulls)[0]), "a number", None)
        return values_of(column)

    def _list(self, slot: Slot) -> Ragged:
        """The lists of a slot, whose offsets begin with 0."""
        lists = self._rows.slot(slot)
        assert isinstance(lists, Ragged)
        first, last = int(lists.offsets[0]), int(lists.offsets[-1])
        return Ragged(lists.values[first:last], lists.offsets - first) if first else lists

    def _times_of_rows(self) -> Array:
        """The time of each row in microseconds; 0 where it is null, and the row has no events."""
        column = one_array(self._rows.other(self._selected.time_of_row))
        return values_of(column.fill_null(0) if column.null_count else column)

    def _wrong(self, column: str, row: int, expected: str, found: Any) -> DataFileError:
        group = int(np.searchsorted(self._firsts, row, side="right")) - 1
        return DataFileError(
            f"{self._rows.file_name}: column {column!r}: row group {self._row_groups[group]}: row "
            f"{row - int(self._firsts[group])}: expected {expected}, found {found}: the "
            "ranges of the history do not fit its lists; extract the partition again"
        )


def _no_lists(slot: Slot, num_rows: int) -> Ragged:
    dtype = slot.arrow_type().value_type.to_pandas_dtype()
    return Ragged(np.empty(0, dtype), np.zeros(num_rows + 1, np.int64))


def first_since(at: Array, begins: Array, ends: Array, since: Array) -> Array:
    """The first event of each range that is not before a time; where it ends, if all are. Times of
    each range ascend.

    Args:
        at: The times: int64 (num_events,).
        begins: int64 (num_rows,).
        ends: int64 (num_rows,).
        since: int64 (num_rows,).
    """
    low, high = begins.copy(), ends.copy()
    while len(rows := np.flatnonzero(low < high)):
        middle = (low[rows] + high[rows]) // 2
        is_before = at[middle] < since[rows]
        low[rows[is_before]] = middle[is_before] + 1
        high[rows[~is_before]] = middle[~is_before]
    return low


def without_old(
    lists: Mapping[str, Ragged], of_rows: Array, at: Array, oldest: Array
) -> tuple[dict[str, Ragged], Array]:
    """Ranges without the events that happened before `oldest`, in whatever order. They begin at the
    first that did not. Rows with others behind it get lists of their own, after those of all keys.

    Args:
        lists: The lists, those of times among them.
        of_rows: As of `SharedLists.ranges`: int64 (num_rows, 2).
        at: The times: int64 (num_events,).
        oldest: In microseconds: int64 (num_rows,).
    """
    kept, counts = list[Array](), list[Array]()
    lengths, of_rows = of_rows[:, 1] - of_rows[:, 0], of_rows.copy()
    ends = np.cumsum(lengths)
    first = 0
    while first < len(of_rows):
        before = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, before + _EVENTS_AT_ONCE, side="right")))
        rows = np.repeat(np.arange(end - first), lengths[first:end])
        places = positions_of(of_rows[first:end, 0], lengths[first:end])
        is_kept = at[places] >= oldest[first:end][rows]
        rows, places = rows[is_kept], places[is_kept]
        of_rows[first:end, 0] = of_rows[first:end, 1]
        begin_at = np.flatnonzero(np.diff(rows, prepend=-1))
        of_rows[first + rows[begin_at], 0] = places[begin_at]
        num_kept = np.bincount(rows, minlength=end - first)
        has_gaps = num_kept < of_rows[first:end, 1] - of_rows[first:end, 0]
        kept.append(places[has_gaps[rows]])
        counts.append(np.where(has_gaps, num_kept, 0))
        first = end
    moved, num_moved = (np.concatenate([np.zeros(0, np.int64), *each]) for each in (kept, counts))
    if not len(moved):
        return dict(lists), of_rows
    has_gaps = num_moved > 0
    of_rows[has_gaps, 1] = len(at) + np.cumsum(num_moved[has_gaps])
    of_rows[has_gaps, 0] = of_rows[has_gaps, 1] - num_moved[has_gaps]
    found = {
        name: replace(each, values=np.concatenate([each.values, each.values[moved]]))
        for name, each in lists.items()
    }
    return found, of_rows
