"""Statistics gathered while units write, and merged per partition before the commit.

Each unit writes its statistics to a small file. The driver merges these files one by one, so that
its memory does not grow with the number of units.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from featstore.base.schema import SlotSchema
from featstore.extraction.units.extractor import Extractor
from featstore.extraction.units.stand_ins import Witness
from featstore.files.storage import delete, join
from featstore.ops.malformed import without_views
from featstore.reading.tables import nulls_to_marks
from featstore.statistics.column_statistics import (
    Statistics,
    StatisticsGatherer,
    add_counts,
    merge_statistics,
)
from featstore.statistics.sketches import RowSample
from featstore.statistics.statistics_file import (
    StoredStatistics,
    copy_statistics,
    read_statistics,
    write_statistics,
)
from featstore.table.layout import file_statistics_path, statistics_path
from featstore.table.snapshot import DataFile, files_digest


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
        witness, parts = Witness(self._extractor.graph), dict[str, list[pa.Array]]()
        for batch in _joined(self._raw.batches):
            for name, column in witness(batch.columns).items():
                parts.setdefault(name, []).append(column)
        return {
            name: columns[0] if len(columns) == 1 else pa.concat_arrays(columns)
            for name, columns in parts.items()
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


def _joined(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
