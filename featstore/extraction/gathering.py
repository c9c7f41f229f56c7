"""Statistics in the same pass: gathered by each unit as it writes, merged per partition before the commit.

Units write theirs to small files and the driver merges one after the other, so that its memory does not grow with the units.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from featstore.files import delete, join
from featstore.schema import SlotSchema
from featstore.table.layout import file_statistics_path, statistics_path
from featstore.table.snapshot import DataFile, files_digest
from featstore.table.statistics import Gatherer, merge_statistics
from featstore.table.statistics_file import StoredStatistics, add_counts, read_statistics, write_statistics


class Gathering:
    """The statistics of one data file in the making; does nothing where none are wanted."""

    def __init__(self, schema: SlotSchema, *, wanted: bool) -> None:
        self._gatherer = Gatherer(schema) if wanted else None

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches, counted as they pass; what follows must write each of them."""
        for batch in batches:
            if self._gatherer is not None:
                self._gatherer.update(batch)
            yield batch

    def store(self, table_url: str, path: str) -> None:
        """Writes the statistics of the data file that has been written to `path`."""
        if self._gatherer is not None:
            stored = StoredStatistics(statistics=self._gatherer.finish())
            write_statistics(table_url, file_statistics_path(path), stored)


def merge_partition(table_url: str, tag: str, files: Sequence[DataFile], counts: Iterable[Mapping[str, int]]) -> None:
    """Merges the statistics of the files of one partition, all that a run wrote there, into its one file."""
    parts = [file_statistics_path(file.path) for file in files]
    merged = StoredStatistics(
        statistics=merge_statistics(read_statistics(table_url, part).statistics for part in parts),
        data_digest=files_digest(files),
        counts=add_counts(counts),
    )
    write_statistics(table_url, statistics_path(files[0].partition, tag), merged)
    for part in parts:
        delete(join(table_url, part))
