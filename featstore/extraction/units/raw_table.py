"""Raw rows in the data files of a table whose columns have permanent ids: columns are found in each
file as the table's readers find them, and partition keys are columns too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from featstore.reading.file_columns import FileColumns, Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader, Rows
from featstore.table.open import InputTable, lost_of_range
from featstore.table.snapshot import DataFile


@dataclass(frozen=True, kw_only=True)
class RawTableRows:
    """What a data file's rows are to the table.

    Attributes:
        schema: The columns, in the table's types.
        file: The file, as the table lists it.
        lost: As of `InputTable`.
        range_url: As of `InputTable`.
    """

    schema: pa.Schema
    file: DataFile
    lost: str
    range_url: str = field(repr=False)

    @property
    def partition(self) -> Mapping[str, str | None]:
        """The values of the partition keys, as text."""
        return self.file.partition

    @property
    def urls(self) -> list[str]:
        """The data file, and the files that record its deleted rows."""
        records = () if self.file.mask is None else self.file.mask.records
        return [self.file.url, *(record.url for record in records if record.url)]

    def lost_for_good(self) -> str:
        """What to do if one of them is gone; empty if another look at the table may find others."""
        return lost_of_range(self.range_url, self.file.path) if self.range_url else self.lost


def table_rows(table: InputTable) -> Iterator[RawTableRows]:
    """Yields what the rows of each data file of a table are."""
    columns = table.snapshot.schema.with_foreign_kept()
    schema = columns.to_arrow(nullable=True, partition_keys=True)
    for file in table.snapshot.data_files:
        yield RawTableRows(
            schema=schema,
            file=file,
            lost=table.lost,
            range_url=table.range_url,
        )


class RawTableFile:
    """A data file of a table that is open for its raw rows. Not thread-safe.

    Args:
        file: The file. The caller closes it.
        rows: What its rows are.
        rows_of: How many rows a batch has, by the mean number of values of a row.

    Attributes:
        schema_arrow: The table's columns.
    """

    def __init__(self, file: OpenFile, rows: RawTableRows, rows_of: Callable[[float], int]) -> None:
        self.schema_arrow = rows.schema
        self._file, self._partition, self._rows_of = file, rows.partition, rows_of
        self._deleted = rows.file.deleted_rows()

    def read(self, columns: Sequence[str], row_groups: range) -> Iterator[pa.RecordBatch]:
        """Yields the rows of these row groups that are not deleted, with these columns.

        Raises:
            DataFileError: The file is damaged, or a column has another type.
        """
        schema = pa.schema([self.schema_arrow.field(name) for name in columns])
        others = tuple(field for field in schema if field.name not in self._partition)
        reader = RowGroupReader(self._file, Selection(others=others), num_threads=1)
        first = sum(self._file.row_group_rows[: row_groups.start])
        for row_group in row_groups:
            most_rows = self._rows_of(self._values_per_row(row_group, reader.columns))
            slices = reader.slices(row_group, most_rows)
            for rows in [reader.read([row_group])] if slices is None else slices:
                arrays = [self._column(rows, field) for field in schema]
                table = pa.Table.from_arrays(arrays, schema=schema)
                yield from self._left(table, first).to_batches(max_chunksize=most_rows)
                first += rows.num_rows

    def _left(self, table: pa.Table, first: int) -> pa.Table:
        """The rows, which begin at row `first` of the file, without those that are deleted."""
        if self._deleted is None:
            return table
        begin, end = np.searchsorted(self._deleted, [first, first + table.num_rows])
        if begin == end:
            return table
        is_left = np.ones(table.num_rows, bool)
        is_left[self._deleted[begin:end] - first] = False
        return table.filter(pa.array(is_left))

    def _column(self, rows: Rows, field: pa.Field) -> pa.ChunkedArray:
        if field.name not in self._partition:
            return rows.other(field)
        value = pa.scalar(self._partition[field.name], pa.string()).cast(field.type)
        return pa.chunked_array([pa.repeat(value, rows.num_rows)])

    def _values_per_row(self, row_group: int, columns: FileColumns) -> float:
        chunks = self._file.footer.chunks_of([row_group], columns.leaf_places)
        return float(chunks.num_values.sum() / max(self._file.row_group_rows[row_group], 1))
