"""Statistics gathered while units write, and merged per partition before the commit.

Each unit writes its statistics to a small file. The driver merges these files one by one, so that
its memory does not grow with the number of units.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.stand_ins import Witness
from featstore.files.storage import delete, join
from featstore.histories.file_format import HistoryRanges, StoredHistory
from featstore.histories.visibility import oldest_seen
from featstore.ops.arrays import Integers
from featstore.ops.lists import offsets_from, positions_of
from featstore.ops.malformed import without_views
from featstore.reading.tables import nulls_to_marks
from featstore.statistics.column_statistics import (
    ColumnStatistics,
    Statistics,
    StatisticsGatherer,
    add_counts,
    merge_statistics,
    reduced_points,
)
from featstore.statistics.sketches import NUM_POINTS, RowSample
from featstore.statistics.statistics_file import (
    StoredStatistics,
    copy_statistics,
    read_statistics,
    write_statistics,
)
from featstore.statistics.summary import SlotSummary, summary_of
from featstore.table.layout import file_statistics_path, statistics_path
from featstore.table.snapshot import DataFile, files_digest

_US = 1e6
# Of a row group's events, as often as rows have them: a share is then off by 2 % at most.
_MOST_SAMPLED = 4096
# Where single events are looked at. Chosen, not measured.
_EVENTS_AT_ONCE = 1 << 20


class Gathering:
    """Gathers the statistics of one unit while its data files are written.

    Args:
        extractor: The extractor that all rows of the unit come from; watched from now on.
    """

    def __init__(self, extractor: Extractor) -> None:
        self._extractor = extractor
        self._gatherer = StatisticsGatherer(extractor.schema)
        self._raw = RowSample()
        # No method: a cycle with the extractor would keep batches until Python's collector comes.
        extractor.watch(partial(_draw, self._raw))

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Passes batches on and counts them; the caller must write every one."""
        for batch in batches:
            self._gatherer.update(batch)
            yield batch

    def store(self, table_url: str, path: str) -> None:
        """Writes the statistics beside those of the data file at `path`: the unit's last one."""
        stored = StoredStatistics(statistics=self.finish())
        write_statistics(table_url, file_statistics_path(path), stored)

    def finish(self) -> Statistics:
        """Returns the statistics of all rows that passed."""
        return self._gatherer.finish(self._extractor.counts_by_slot, self._witnesses())

    def _witnesses(self) -> dict[str, pa.Array]:
        """Witnesses of the sampled rows' signs, by slot."""
        witness = Witness(self._extractor.graph)
        parts = [witness(batch.columns) for batch in joined_alike(self._raw.batches)]
        return {
            name: pa.concat_arrays([part[name] for part in parts])
            for name in (parts[0] if parts else ())
        }


def _draw(sample: RowSample, raw: pa.RecordBatch) -> None:
    """Draws a sample of the raw rows that were extracted."""
    layouts = [without_views(column) for column in raw.columns]
    sample.update(pa.RecordBatch.from_arrays(layouts, names=raw.schema.names))


def gather_rows(schema: SlotSchema, batches: Iterable[pa.RecordBatch]) -> Statistics:
    """Gathers the statistics of rows of a table, without what only their extraction knew.

    Args:
        schema: The slots and labels to gather.
        batches: Rows with columns by the names in `schema`, and missing values as null.
    """
    gatherer = StatisticsGatherer(schema)
    for batch in batches:
        if batch.num_rows:
            gatherer.update(nulls_to_marks(batch, schema.slots))
    return gatherer.finish()


def store_histories(table_url: str, path: str, found: Iterable[ColumnStatistics]) -> None:
    """Writes the statistics of histories beside those of the data file at `path`; those of its rows
    are stored by the units that they came from.
    """
    stored = StoredStatistics(statistics=merged_histories(found))
    write_statistics(table_url, file_statistics_path(path), stored)


def joined_alike(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Joins neighbouring batches of equal schema; raw schemas may differ from file to file."""
    for _, alike in itertools.groupby(batches, lambda batch: batch.schema):
        yield from pa.Table.from_batches(alike).combine_chunks().to_batches()


def merge_partition(
    table_url: str,
    tag: str,
    files: Sequence[DataFile],
    counts: Iterable[Mapping[str, int]],
    paths: Sequence[str] | None = None,
) -> None:
    """Merges the statistics files of one partition into a single file.

    Args:
        tag: The run's tag, part of the file's name.
        files: All files that the run wrote to the partition.
        counts: The counts of the partition's unit reports.
        paths: The data files that have statistics files, which are those of a whole unit; by
            default all.
    """
    parts = [
        file_statistics_path(path)
        for path in ([file.path for file in files] if paths is None else paths)
    ]
    path = statistics_path(files[0].partition, tag)
    digest, total = files_digest(files), add_counts(counts)
    if len(parts) == 1:
        copy_statistics(table_url, parts[0], path, digest, total)
    else:
        merged = merge_statistics(read_statistics(table_url, part).statistics for part in parts)
        stored = StoredStatistics(statistics=merged, data_digest=digest, counts=total)
        write_statistics(table_url, path, stored)
    for part in parts:
        delete(join(table_url, part))


def history_summaries(
    statistics: Statistics, histories: Iterable[StoredHistory]
) -> dict[str, SlotSummary]:
    """What gathered statistics know of histories, by name: those of the lists of ages, in seconds.
    Those that were not gathered are left out.
    """
    known = statistics.columns
    return {
        history.name: summary_of(_ages(history), known[history.times.name], statistics.num_rows)
        for history in histories
        if history.times.name in known
    }


def history_statistics(ranges: HistoryRanges, as_of: Integers) -> Iterator[ColumnStatistics]:
    """The statistics of a row group's ranges, in parts. Those of ages are of each event as often as
    a row sees it, at the row's time. Sums and extremes are exact; quantiles come from a sample of
    the events that rows see, evenly spaced.

    Args:
        ranges: The ranges.
        as_of: The rows' times in microseconds, int64 (num_rows,); any where a row has no events.
    """
    history, at = ranges.history, np.concatenate(ranges.values[ranges.history.times.name])
    begin, end = ranges.begin, ranges.end
    if history.logged_at is None or history.window_us is None:
        yield _of_ranges(history, at, begin, end, as_of)
        return
    # Ranges may hold events that the window hides, so single events are looked at.
    before = offsets_from(end - begin)[:-1]
    cuts = np.flatnonzero(np.diff(before // _EVENTS_AT_ONCE)) + 1
    for rows in np.split(np.arange(len(as_of)), cuts):
        lengths, times = (end - begin)[rows], as_of[rows]
        found, of_rows = at[positions_of(begin[rows], lengths)], np.repeat(times, lengths)
        is_seen = found >= oldest_seen(of_rows, history.window_us)
        ends = offsets_from(is_seen)[offsets_from(lengths)]
        yield _of_ranges(history, found[is_seen], ends[:-1], ends[1:], times)


def _of_ranges(
    history: StoredHistory, at: Integers, begin: Integers, end: Integers, as_of: Integers
) -> ColumnStatistics:
    """The statistics of ranges in the events' times `at`, all of which their rows see."""
    has_events = begin < end
    begin, end, times = (each[has_events] for each in (begin, end, as_of))
    ends = offsets_from(end - begin)
    found = ColumnStatistics.of_slot(_ages(history))
    found.column, found.role = history.times.name, "history"
    found.num_rows, found.num_present = len(as_of), len(begin)
    if not len(begin):
        return found
    lengths, total = end - begin, int(ends[-1])
    found.num_values = found.num_numbers = found.length_sum = total
    found.length_max = int(lengths.max())
    first = at.min()
    before = np.zeros(len(at) + 1)
    np.cumsum((at - first) / _US, out=before[1:])
    found.sum = float((lengths * ((times - first) / _US) - (before[end] - before[begin])).sum())
    newest, oldest = at[end - 1], at[begin]
    if history.logged_at is not None:
        # In order of known time, so that any event of a range may be the newest or the oldest.
        pairs, padded = np.stack([begin, end], axis=1).ravel(), np.append(at, first)
        newest = np.maximum.reduceat(padded, pairs)[::2]
        oldest = np.minimum.reduceat(padded, pairs)[::2]
    found.min = float((times - newest).min() / _US)
    found.max = float((times - oldest).max() / _US)
    num_sampled = min(total, _MOST_SAMPLED)
    sampled = np.arange(num_sampled) * total // num_sampled
    rows = np.searchsorted(ends, sampled, side="right") - 1
    ages = (times[rows] - at[begin[rows] + sampled - ends[rows]]) / _US
    weight = total / num_sampled
    found.points, found.points_error = reduced_points(
        ages, np.full(num_sampled, weight), NUM_POINTS
    )
    # As if rows had been sampled, of which errors are told.
    found.sampled = (weight - 1.0) * found.num_rows**2 / total
    found.lengths, found.lengths_error = reduced_points(
        lengths.astype(np.float64), np.ones(len(lengths)), NUM_POINTS
    )
    return found


def merged_histories(found: Iterable[ColumnStatistics]) -> Statistics:
    """The statistics of parts of rows as one, to be merged with those of their rows: of no rows."""
    return merge_statistics(Statistics(columns={each.column: each}) for each in found)


def _ages(history: StoredHistory) -> Slot:
    return Slot(name=history.name, kind=SlotKind.FLOAT, shape=(None,))
