"""What is stored of a partition beside its data files, after rows were removed: statistics of the
rows that are left, and texts of values that still occur.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featstore.base.schema import SlotSchema
from featstore.extraction.rewriting import open_part
from featstore.extraction.units.unit_statistics import gather_rows
from featstore.ops.arrays import Integers, values_of
from featstore.reading.tables import read_tables
from featstore.statistics.statistics_file import StoredStatistics, write_statistics
from featstore.statistics.values_file import StoredValues, partition_values, recounted, write_values
from featstore.table.layout import statistics_path, values_path
from featstore.table.snapshot import DataFile, Snapshot, files_digest


class TextCounter:
    """Counts how often the values with a text occur. One thread uses it.

    Args:
        values: The texts of a partition.
        schema: The table's slots. Texts of other slots do not occur.
    """

    def __init__(self, values: StoredValues, schema: SlotSchema) -> None:
        self._values = values
        ids = values_of(values.table["id"].combine_chunks())
        numbers = values_of(values.table["number"].combine_chunks())
        self._counts: Integers = np.zeros(len(ids), np.int64)
        # By slot: the places of its texts in the table, in ascending order of ids, and the ids.
        self._known: dict[str, tuple[Integers, Integers]] = {}
        for slot in schema:
            places = np.flatnonzero(numbers == slot.number)
            if len(places):
                places = places[np.argsort(ids[places], kind="stable")]
                self._known[slot.name] = places, ids[places]

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Passes batches on and counts their values."""
        for batch in batches:
            for name, (places, ids) in self._known.items():
                column = batch.column(name)
                flat = pc.list_flatten(column) if pa.types.is_nested(column.type) else column
                found = values_of(pc.drop_null(flat))
                at = np.minimum(np.searchsorted(ids, found), len(ids) - 1)
                at = at[ids[at] == found]
                self._counts[places] += np.bincount(at, minlength=len(ids))
            yield batch

    def counted(self) -> StoredValues:
        """The texts of values that occurred, with their counts."""
        return recounted(self._values, self._counts)


def store_remains(snapshot: Snapshot, tag: str, files: Sequence[DataFile]) -> None:
    """Writes the statistics of a partition's new files, and the texts of values in them.

    Args:
        snapshot: The table as it was.
        tag: The run's tag.
        files: The partition's new files, at least one.
    """
    partition = files[0].partition
    schema = snapshot.schema.with_partition_keys(())
    counter = TextCounter(partition_values(snapshot, partition), schema)
    statistics = gather_rows(schema, counter.watch(_rows(schema, files)))
    stored = StoredStatistics(statistics=statistics, data_digest=files_digest(files))
    write_statistics(snapshot.url, statistics_path(partition, tag), stored)
    texts = counter.counted()
    if texts.table.num_rows or texts.left_out:
        write_values(snapshot.url, values_path(partition, tag), texts)


def _rows(schema: SlotSchema, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
    for file in files:
        with open_part(file) as opened:
            for table in read_tables(opened, schema, file.partition):
                yield from table.combine_chunks().to_batches()
