"""How many bytes and values the columns of data files have, from their footers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from featstore.parquet.footers import CheckedFooter
from featstore.reading.file_columns import Selection, find_columns
from featstore.table.parquet_dir import each_footer
from featstore.table.snapshot import DataFile


@dataclass(frozen=True, kw_only=True)
class ColumnSizes:
    """The stored bytes and the number of values of each column, over some files.

    A column of a slot group is counted in the group's file, which replaces that of the base file.

    Attributes:
        num_rows: The rows of the files.
        stored_bytes: The compressed bytes of each column, by the name under which it is selected.
        num_values: The values of each column, nulls and empty lists counted as one.
    """

    num_rows: int
    stored_bytes: Counter[str]
    num_values: Counter[str]

    @classmethod
    def of(cls, files: Sequence[DataFile], selection: Selection) -> "ColumnSizes":
        """Reads the footers of the files and of their slot groups.

        Raises:
            DataFileError: A file is damaged, or a column has a type that was not selected.
        """
        urls = [part.url for file in files for part in file.parts]
        footers = each_footer(urls, lambda footer: footer)
        stored_bytes: Counter[str] = Counter()
        num_values: Counter[str] = Counter()
        for file in files:
            of_file: dict[str, tuple[int, int]] = {}
            for part in file.parts:
                of_file |= _column_sizes(next(footers), selection, part.path)
            stored_bytes.update({name: sizes[0] for name, sizes in of_file.items()})
            num_values.update({name: sizes[1] for name, sizes in of_file.items()})
        num_rows = sum(file.num_rows for file in files)
        return cls(num_rows=num_rows, stored_bytes=stored_bytes, num_values=num_values)

    def bytes_per_row(self, name: str) -> float:
        """The mean of a column's stored bytes; 0 if no file has it."""
        return self.stored_bytes[name] / max(self.num_rows, 1)

    def values_per_row(self, name: str) -> float:
        """The mean of a column's values."""
        return self.num_values[name] / max(self.num_rows, 1)


def _column_sizes(
    footer: CheckedFooter, selection: Selection, file_name: str
) -> dict[str, tuple[int, int]]:
    """The stored bytes and the number of values of each selected column that a file has."""
    found = find_columns(footer.file_schema, selection, file_name)
    sizes = {}
    for name, column in (*found.slots.items(), *found.others.items()):
        if column is not None:
            chunks = [
                footer.chunk(group, leaf)
                for group in range(len(footer.row_group_rows))
                for leaf in found.places[column]
            ]
            sizes[name] = (sum(c.stored_bytes for c in chunks), sum(c.num_values for c in chunks))
    return sizes
