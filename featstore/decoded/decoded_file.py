"""The decoded columns of one data file as its row groups, in the place of the file itself."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

import pyarrow as pa

from featstore.base.closing import Closing
from featstore.decoded.decoded_columns import columns_of
from featstore.decoded.entry_file import MappedEntry
from featstore.reading.buffers import Array
from featstore.reading.file_columns import FileColumns, Selection
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import Rows

_ROW_GROUPS = b"row_groups"


def with_row_groups(
    schema: pa.Schema, row_group_rows: Sequence[int], row_group_bytes: Sequence[int]
) -> pa.Schema:
    """The schema of an entry, with the row groups of its data file as `DecodedFile` has them."""
    pairs = list(zip(row_group_rows, row_group_bytes, strict=True))
    return schema.with_metadata({_ROW_GROUPS: json.dumps(pairs)})


def has_columns(schema: pa.Schema) -> bool:
    """Whether the data file of an entry with this schema had any of the entry's columns."""
    row_groups = json.loads(schema.metadata[_ROW_GROUPS])
    return any(num_bytes or not num_rows for num_rows, num_bytes in row_groups)


class DecodedFile(Closing):
    """An entry of a data file, open. Whoever opened it closes it. For one thread.

    Args:
        entry: The entry, whose ownership passes to this object.
        name: The data file's name in errors, and for what is chosen by it.
        on_close: Called once it is closed.

    Attributes:
        name: As above.
        row_group_rows: Rows of each row group of the data file.
        row_group_bytes: The memory that the entry's columns of each row group take if they are
            read from the data file, as `RowGroupReader.size_bytes` says.
        has_columns: Whether the data file had any of the entry's columns.
    """

    def __init__(self, entry: MappedEntry, name: str, on_close: Callable[[], object]) -> None:
        self.name = name
        self._entry, self._on_close = entry, on_close
        self._table = pa.Table.from_batches(entry.batches, entry.schema)
        found = json.loads(entry.schema.metadata[_ROW_GROUPS])
        self.row_group_rows: tuple[int, ...] = tuple(num_rows for num_rows, _ in found)
        self.row_group_bytes: tuple[int, ...] = tuple(num_bytes for _, num_bytes in found)
        self.has_columns = has_columns(entry.schema)

    def reader(self, selection: Selection) -> "DecodedReader":
        """A reader of these columns, which must be among those of the entry."""
        return DecodedReader(
            self._entry, self._table, columns_of(self._table.schema, selection), self
        )

    def close(self) -> None:
        """Allows eviction. Rows that were read stay valid. To be called once."""
        self._entry.close()
        self._on_close()


class DecodedReader:
    """Reads row groups of a `DecodedFile`: views of its memory; made by `DecodedFile.reader`.

    Has the methods of `RowGroupReader`. Row groups that were decoded together, and follow each
    other, are one contiguous array.
    """

    def __init__(
        self, entry: MappedEntry, table: pa.Table, columns: FileColumns, file: DecodedFile
    ) -> None:
        self.columns, self._entry, self._file = columns, entry, file
        names = {*columns.slots.values(), *columns.others.values()} - {None}
        self._table = table.select([name for name in table.column_names if name in names])
        self._first_rows = [0, *accumulate(file.row_group_rows)]

    @property
    def parts(self) -> list[tuple[OpenFile, FileColumns]]:
        """No file is read."""
        return []

    def read(self, row_groups: Iterable[int], order: Array | None = None) -> Rows:
        """The rows of these row groups, in this order as of `RowGroupReader`, which copies them.

        Raises:
            StagingError: Somebody wrote to the entry, or truncated it.
        """
        self._entry.require_unchanged()
        runs = list(self._runs(row_groups)) or [(0, 0)]
        tables = [self._table.slice(first, end - first) for first, end in runs]
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        rows = Rows(
            file_name=self._file.name,
            num_rows=sum(end - first for first, end in runs),
            table=table,
            columns=self.columns,
        )
        return rows if order is None else rows.take(order)

    def slices(self, row_group: int, num_rows: int) -> Iterator[Rows] | None:
        """None: rows that are views need no slices."""
        return None

    def size_bytes(self, row_groups: Iterable[int]) -> int:
        """The memory of all columns of the entry in these row groups, whichever are read."""
        return sum(self._file.row_group_bytes[index] for index in row_groups)

    def room_bytes(self, row_groups: Iterable[int], *, in_order: bool = False) -> int:
        """0: nothing is decoded."""
        return 0

    def _runs(self, row_groups: Iterable[int]) -> Iterator[tuple[int, int]]:
        """The rows of row groups that follow each other, without those that have none."""
        first = end = 0
        for index in row_groups:
            if self._first_rows[index] != end and first < end:
                yield first, end
            if self._first_rows[index] != end or first == end:
                first = self._first_rows[index]
            end = self._first_rows[index + 1]
        if first < end:
            yield first, end
