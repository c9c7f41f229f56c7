"""Statistics in the same pass: gathered by each unit as it writes, merged per partition before the
commit.

Units write theirs to small files and the driver merges one after the other, so that its memory does
not grow with the units.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from featstore.extraction.extractor import Extractor
from featstore.files.storage import delete, join
from featstore.ops.malformed import without_views
from featstore.table.layout import file_statistics_path, statistics_path
from featstore.table.snapshot import DataFile, files_digest
from featstore.table.statistics.column_statistics import (
    Statistics,
    StatisticsGatherer,
    add_counts,
    merge_statistics,
)
from featstore.table.statistics.sampling import RowSample
from featstore.table.statistics.statistics_file import (
    StoredStatistics,
    read_statistics,
    write_statistics,
)


class Gathering:
    """The statistics of one data file in the making, whose rows all come from `extractor`; does
    nothing where not `wanted`.
    """

    def __init__(self, extractor: Extractor, *, wanted: bool) -> None:
        self._extractor = extractor
        self._gatherer = StatisticsGatherer(extractor.schema) if wanted else None
        self._raw = RowSample()
        if wanted:
            extractor.watch(self.draw)

    def draw(self, raw: pa.RecordBatch) -> None:
        """Takes raw rows that were extracted, a sample of which is kept."""
        layouts = [without_views(column) for column in raw.columns]
        self._raw.update(pa.RecordBatch.from_arrays(layouts, names=raw.schema.names))

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches, counted as they pass; what follows must write each of them."""
        for batch in batches:
            if self._gatherer is not None:
                self._gatherer.update(batch)
            yield batch

    def store(self, table_url: str, path: str) -> None:
        """Writes the statistics of the data file that has been written to `path`."""
        if self._gatherer is not None:
            write_statistics(
                table_url, file_statistics_path(path), StoredStatistics(statistics=self.finish())
            )

    def finish(self) -> Statistics:
        """The statistics of all rows that passed; none where none are wanted."""
        if self._gatherer is None:
            return Statistics()
        return self._gatherer.finish(self._extractor.counts_by_slot, self._witnesses())

    def _witnesses(self) -> dict[str, pa.Array]:
        """By slot the witnesses of the sampled rows' signs."""
        witness, parts = self._extractor.witness, dict[str, list[pa.Array]]()
        for batch in _joined(self._raw.batches):
            for name, column in witness(batch.columns).items():
                parts.setdefault(name, []).append(column)
        return {name: pa.concat_arrays(columns) for name, columns in parts.items()}


def _joined(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows in order, in as few batches as their raw schemas, which differ from file to file,
    allow.
    """
    for _, alike in itertools.groupby(batches, lambda batch: batch.schema):
        yield from pa.Table.from_batches(alike).combine_chunks().to_batches()


def merge_partition(
    table_url: str, tag: str, files: Sequence[DataFile], counts: Iterable[Mapping[str, int]]
) -> None:
    """Merges the statistics of the files of one partition, all that a run wrote there, into its one
    file.
    """
    parts = [file_statistics_path(file.path) for file in files]
    merged = StoredStatistics(
        statistics=merge_statistics(read_statistics(table_url, part).statistics for part in parts),
        data_digest=files_digest(files),
        counts=add_counts(counts),
    )
    write_statistics(table_url, statistics_path(files[0].partition, tag), merged)
    for part in parts:
        delete(join(table_url, part))
