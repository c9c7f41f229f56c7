"""Rows with the events that they see: each key's events once in a row group."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from featstore.extraction.units.blocks import Blocks, RowBlock
from featstore.extraction.units.extractor import EventExtractor, widen
from featstore.extraction.units.findings import Malformed, first_examples
from featstore.extraction.units.raw import Unit
from featstore.extraction.units.unit import UnitReport, extract_unit
from featstore.extraction.units.unit_statistics import history_statistics
from featstore.histories.file_format import HistoryRanges, StoredHistory
from featstore.histories.needed import RowTimes, may_be_seen
from featstore.histories.stored import stored_histories
from featstore.histories.trimming import trim
from featstore.histories.visibility import keys_of_rows, ordered, visible
from featstore.ops.arrays import Integers, array_of, values_of
from featstore.ops.hashing import MISSING
from featstore.ops.lists import offsets_from, positions_of
from featstore.reading.buffers import one_array
from featstore.spec.model import EventHistory, Spec
from featstore.statistics.column_statistics import ColumnStatistics, add_counts

# The events that are put in order at once, unless a single key has more. Their order and what is
# taken of them take as much three times.
_MOST_BYTES = 64 << 20
# The lists of a row group, in memory, unless a single key has more. Half a file's most bytes would
# be 2 GB while they are joined and written.
_LIST_BYTES = 128 << 20
_HASHED_AT_ONCE, _JOINED_KEYS = 1 << 18, 1 << 20
_BLOCK_BYTES = 32 << 20


def event_schema(history: EventHistory) -> pa.Schema:
    """The columns of events on their way to buckets."""
    return pa.schema(list(EventExtractor(history).graph.columns.items()))


class CutEvents:
    """The events of a unit in blocks, each in the order of keys.

    Args:
        extractor: What all of the events come from.
        extracted: The events, as of its `rows`.
        index: The unit's number.
        rows: When rows are; events that none of them sees are left out. None: all events are in
            blocks, since rows are not known yet.
    """

    def __init__(
        self,
        extractor: EventExtractor,
        extracted: Iterator[pa.RecordBatch],
        index: int,
        rows: RowTimes | None = None,
    ) -> None:
        self._extractor, self._extracted, self._index = extractor, extracted, index
        self._rows = rows
        schema = event_schema(extractor.history)
        self._schema = schema.append(pa.field("key", pa.int64()))

    def __iter__(self) -> Iterator[RowBlock]:
        """The blocks, to be taken once; each is one bucket."""
        number, waiting = 0, list[pa.RecordBatch]()
        for events in self._extracted:
            if events.num_rows:
                waiting.append(events)
            if sum(each.nbytes for each in waiting) >= _BLOCK_BYTES:
                yield self._block(waiting, number)
                number, waiting = number + 1, []
        if waiting:
            yield self._block(waiting, number)

    def _block(self, batches: Sequence[pa.RecordBatch], number: int) -> RowBlock:
        events, known = pa.Table.from_batches(batches), map(self._extractor.known, batches)
        keys = values_of(one_array(events.columns[-1]))
        if self._rows is None:
            order = np.argsort(keys, kind="stable")
        else:
            history = self._extractor.history
            order = may_be_seen(history, self._rows, keys, np.concatenate([*known]))
        events = events.take(pa.array(order)).combine_chunks().cast(self._schema)
        [rows] = events.to_batches() or [pa.RecordBatch.from_pylist([], self._schema)]
        ends = np.array([rows.num_rows])
        return RowBlock(place=(self._index, number), rows=rows, first_bucket=0, ends=ends)

    def report(self) -> UnitReport:
        """What was counted, without a file. To be called once all blocks were taken."""
        counts, examples = self._extractor.named_findings()
        return UnitReport(
            path=f"{self._extractor.history.name}/{self._index}",
            partition={},
            counts=counts,
            examples=examples,
            times=self._extractor.times,
        )


def cut_events(history: EventHistory, unit: Unit, rows: RowTimes | None = None) -> CutEvents:
    """The events of a unit of the log in blocks, as of `CutEvents`; errors as of `run_unit`."""
    extractor = EventExtractor(history)
    return CutEvents(extractor, extract_unit(unit, extractor), unit.index, rows)


def row_times(history: EventHistory, blocks: Blocks) -> RowTimes:
    """When the rows of each key are.

    Args:
        history: The history whose events they see.
        blocks: All rows.
    """
    found, waiting = RowTimes.of(*[np.empty(0, np.int64)] * 2), list[RowTimes]()
    for rows in blocks.batches():
        as_of = rows.columns[rows.schema.names.index(history.as_of)]
        waiting.append(RowTimes.of(keys_of_rows(rows.columns[-1], as_of), values_of(as_of)))
        # Joined when there are as many as before, each key of a million blocks is held twice.
        if sum(len(each.keys) for each in waiting) > max(_JOINED_KEYS, len(found.keys)):
            found, waiting = RowTimes.joined([found, *waiting]), []
    return RowTimes.joined([found, *waiting])


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What some rows see of one history.

    Attributes:
        keys: The signs of the rows' keys, int64 (num_rows,); 0 where there is no key or time.
        begin: Where each row's range begins in the values, int64 (num_rows,).
        end: Where it ends, int64 (num_rows,).
        num_events: How many events the first row of each key has in the values, others 0: int64
            (num_rows,).
        values: The events of one key after the other, of each list and the times, by the names of
            the columns: int64 or float32 (num_events,).
    """

    keys: Integers
    begin: Integers
    end: Integers
    num_events: Integers
    values: Mapping[str, NDArray[Any]]

    @property
    def num_bytes(self) -> Integers:
        """The bytes of `num_events`: int64 (num_rows,)."""
        return self.num_events * sum(values.itemsize for values in self.values.values())

    def slice(self, first: int, end: int) -> "_Seen":
        """What some of the rows see."""
        fields = ("keys", "begin", "end", "num_events")
        return replace(self, **{name: getattr(self, name)[first:end] for name in fields})


class _Log:
    """The events of one history, of all keys. Not thread-safe."""

    def __init__(self, history: EventHistory, stored: StoredHistory, blocks: Blocks) -> None:
        self.blocks, self.stored = blocks, stored
        self.extractor = EventExtractor(history)
        self._history = history

    def seen(self, signs: Integers, as_of: pa.Array) -> _Seen:
        """What rows see, given the signs of their keys and their times."""
        history = self._history
        events = self.blocks.of_keys(np.unique(signs[signs != 0])).combine_chunks()
        columns = {name: one_array(events.column(name)) for name in events.column_names}
        found = ordered(history, columns)
        keys = keys_of_rows(array_of(signs), as_of)
        ranges = visible(found, history, keys, values_of(as_of))
        trimmed = trim(keys, ranges.begin, ranges.end)
        positions = positions_of(trimmed.starts, trimmed.counts)
        holders = np.arange(len(keys)) - trimmed.back
        end = offsets_from(trimmed.counts)[holders] + trimmed.end
        parts = list[pa.RecordBatch]()
        for first in range(0, len(positions), _HASHED_AT_ONCE):
            parts.append(self.extractor(found.take(positions[first : first + _HASHED_AT_ONCE])))
        lists = pa.Table.from_batches(parts, self.extractor.graph.arrow_schema)
        values = {name: values_of(one_array(lists.column(name))) for name in lists.column_names}
        values[self.stored.times.name] = found.at[positions]
        return _Seen(
            keys=keys,
            begin=end - trimmed.length,
            end=end,
            num_events=trimmed.counts,
            values=values,
        )


class HistoryRows:
    """Adds histories to the rows of buckets. Not thread-safe.

    Args:
        spec: A spec with histories, all of one key.
        events: By history, the events of all keys.

    Attributes:
        stored: How data files hold the histories.
        statistics: Those of each history of each row group, if the spec stores any.
        times: As of `UnitReport`, of the rows so far.
    """

    def __init__(self, spec: Spec, events: Mapping[str, Blocks]) -> None:
        self.stored = stored_histories(spec)
        pairs = zip(spec.histories, self.stored, strict=True)
        self._logs = [_Log(history, stored, events[history.name]) for history, stored in pairs]
        self.statistics: list[ColumnStatistics] | None = [] if spec.output.statistics else None
        self.times = dict[str, tuple[int, int]]()
        self._list_bytes = min(_LIST_BYTES, spec.output.bytes_per_file)

    def row_groups(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yields row groups, which have the columns of the data file, and others.

        Each has the rows of one table, or of some of its keys where the lists of all are too long.
        Its rows are in the order of the first history's `as_of`, then of the input.

        Args:
            tables: Extracted rows, then their places in the input and the signs of their keys, in
                whose order they are: int64.
        """
        for table in tables:
            waiting, num_bytes = list[tuple[pa.Table, list[_Seen]]](), 0
            for rows, seen in map(self._with_seen, self._split(table)):
                sizes = np.add.reduce([each.num_bytes for each in seen])
                first = 0
                # Only before the first row of a key, wherever `_split` has cut.
                for row in np.flatnonzero(sizes).tolist():
                    if num_bytes and num_bytes + sizes[row] > self._list_bytes:
                        yield self._row_group([*waiting, *_part(rows, seen, first, row)])
                        waiting, num_bytes, first = [], 0, row
                    num_bytes += int(sizes[row])
                waiting += _part(rows, seen, first, rows.num_rows)
            yield self._row_group(waiting)

    def of_row_group(self, rows: pa.Table) -> dict[str, pa.Array]:
        """The columns of the histories, by name, for the rows of a given row group, in their order.

        Args:
            rows: With the times of the rows, and the signs of their keys as the last column.
        """
        keys = values_of(one_array(rows.columns[-1]))
        by_key = np.argsort(keys, kind="stable")
        parts = [self._with_seen(some) for some in self._split(rows.take(pa.array(by_key)))]
        order = np.argsort(by_key)
        return self._columns([seen for _, seen in parts], order, self._times_us(rows))

    def findings(self) -> tuple[dict[str, int], tuple[Malformed, ...]]:
        """What was counted while the events that rows see were extracted, and examples."""
        found = (log.extractor.named_findings() for log in self._logs)
        counts, examples = zip(*found, strict=True)
        return add_counts(counts), first_examples(one for some in examples for one in some)

    def _with_seen(self, rows: pa.Table) -> tuple[pa.Table, list[_Seen]]:
        """Rows in the order of their keys, and what they see of each history."""
        keys = values_of(one_array(rows.columns[-1]))
        seen = [self._seen(log, keys, rows) for log in self._logs]
        for log in self._logs:
            log.blocks.let_go()
        return rows, seen

    def _seen(self, log: _Log, keys: Integers, rows: pa.Table) -> _Seen:
        as_of = self._times(rows, log)
        seen = log.seen(keys, as_of)
        given = values_of(as_of)[seen.keys != MISSING]
        widen(self.times, log.stored.name, given)
        return seen

    def _split(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Cuts rows between keys, as often as they have too many events together."""
        keys = values_of(one_array(rows.columns[-1]))
        given = np.unique(keys[keys != 0])
        between = np.flatnonzero(np.diff(keys)) + 1
        if len(given) and len(between):
            sizes = [log.blocks.size_of_keys(given) for log in self._logs]
            if sum(sizes) > _MOST_BYTES:
                middle = int(between[np.abs(between - len(keys) // 2).argmin()])
                yield from self._split(rows.slice(0, middle))
                yield from self._split(rows.slice(middle))
                return
        yield rows

    def _row_group(self, parts: Sequence[tuple[pa.Table, list[_Seen]]]) -> pa.Table:
        rows = pa.concat_tables([rows for rows, _ in parts]).combine_chunks()
        times = self._times_us(rows)
        order = np.lexsort((values_of(one_array(rows.columns[-2])), times))
        rows = rows.select(range(rows.num_columns - 2)).take(pa.array(order))
        columns = self._columns([seen for _, seen in parts], order, times[order])
        for name, column in columns.items():
            rows = rows.append_column(name, column)
        return rows

    def _columns(
        self, parts: Sequence[list[_Seen]], order: Integers, times: Integers
    ) -> dict[str, pa.Array]:
        """The columns of all histories for the rows of a row group, by name.

        Args:
            parts: What they see, in the order of keys.
            order: The position in `parts` of each row, int64 (num_rows,).
            times: The times of the rows, int64 (num_rows,).
        """
        found = dict[str, pa.Array]()
        for i, stored in enumerate(self.stored):
            ranges = _ranges(stored, [seen[i] for seen in parts], order)
            if self.statistics is not None:
                self.statistics.extend(history_statistics(ranges, times))
            found |= ranges.columns()
        return found

    def _times_us(self, rows: pa.Table) -> Integers:
        """The rows' times for the first history, the least int64 where there is none."""
        as_of = self._times(rows, self._logs[0]).cast(pa.int64())
        first = pa.scalar(np.iinfo(np.int64).min, pa.int64())
        return values_of(pc.fill_null(as_of, first))

    @staticmethod
    def _times(rows: pa.Table, log: _Log) -> pa.Array:
        # The first of this name: others may be named like those that come after the extracted ones.
        return one_array(rows.columns[rows.column_names.index(log.stored.as_of)])


def _ranges(stored: StoredHistory, parts: Sequence[_Seen], order: Integers) -> HistoryRanges:
    """What the rows of a row group see of a history.

    Args:
        stored: The history.
        parts: What all rows see, in the order of keys.
        order: The position in `parts` of each row, int64 (num_rows,).
    """
    lengths = [len(part.values[stored.times.name]) for part in parts]
    firsts = np.repeat(offsets_from(np.array(lengths))[:-1], [len(part.keys) for part in parts])
    keys, begin, end = (
        np.concatenate([getattr(part, name) for part in parts])[order]
        for name in ("keys", "begin", "end")
    )
    return HistoryRanges(
        history=stored,
        keys=keys,
        sharing=keys,
        begin=begin + firsts[order],
        end=end + firsts[order],
        values={name: [part.values[name] for part in parts] for name in parts[0].values},
    )


def _part(
    rows: pa.Table, seen: Sequence[_Seen], first: int, end: int
) -> list[tuple[pa.Table, list[_Seen]]]:
    """Some rows with what they see; nothing for no rows."""
    if first == end:
        return []
    return [(rows.slice(first, end - first), [each.slice(first, end) for each in seen])]
