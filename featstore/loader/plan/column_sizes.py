"""How many bytes and values the columns of data files have, from their footers, and how many events
rows have of histories.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from featstore.files.storage import source_of
from featstore.native.footers import CheckedFooter
from featstore.reading.aligned import aligned_reader
from featstore.reading.buffers import one_array
from featstore.reading.file_columns import Selection, find_columns
from featstore.reading.histories import SelectedHistory
from featstore.reading.open_file import OpenFile
from featstore.table.parquet_dir import each_footer
from featstore.table.snapshot import DataFile

# Of which the lengths of histories are read, or somewhat more. Chosen, not measured.
_MAX_ROW_GROUPS = 16


@dataclass(frozen=True, kw_only=True)
class ColumnSizes:
    """The stored bytes and the number of values of each column, over some files.

    A column of a slot group is counted in the group's file, which replaces that of the base file.

    Attributes:
        num_rows: The rows of the files.
        stored_bytes: The compressed bytes of each column, by the name under which it is selected.
        num_values: The values of each column, nulls and empty lists counted as one.
        num_nulls: The nulls of columns that are not slots, as far as statistics tell. A column that
            a file lacks is null in all of its rows.
    """

    num_rows: int
    stored_bytes: Counter[str]
    num_values: Counter[str]
    num_nulls: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, files: Sequence[DataFile], selection: Selection) -> "ColumnSizes":
        """Reads the footers of the files and of their slot groups.

        Raises:
            DataFileError: A file is damaged, or a column has a type that was not selected.
        """
        urls = [part.url for file in files for part in file.parts]
        footers = each_footer(urls, lambda footer: footer)
        num_rows = sum(file.num_rows for file in files)
        found = cls(num_rows=num_rows, stored_bytes=Counter(), num_values=Counter())
        for file in files:
            of_file: dict[str, tuple[int, int]] = {}
            nulls = {field.name: file.num_rows for field in selection.others}
            for part in file.parts:
                footer = next(footers)
                of_file |= _column_sizes(footer, selection, part.path)
                nulls |= _null_counts(footer, selection, part.path)
            found.stored_bytes.update({name: sizes[0] for name, sizes in of_file.items()})
            found.num_values.update({name: sizes[1] for name, sizes in of_file.items()})
            found.num_nulls.update(nulls)
        return found

    def bytes_per_row(self, name: str) -> float:
        """The mean of a column's stored bytes; 0 if no file has it."""
        return self.stored_bytes[name] / max(self.num_rows, 1)

    def values_per_row(self, name: str) -> float:
        """The mean of a column's values."""
        return self.num_values[name] / max(self.num_rows, 1)


def events_per_row(
    histories: Sequence[SelectedHistory], files: Sequence[DataFile]
) -> dict[str, float]:
    """The mean number of events that a row has of each history, by the lengths in row groups that
    are spread over the files: those that `max_len` leaves, of whatever age.

    Raises:
        DataFileError: As of `ColumnSizes.of`.
    """
    if not histories:
        return {}
    fields = {each.history.name: each.length_field for each in histories}
    selection, counts, num_rows = Selection(others=tuple(fields.values())), Counter[str](), 0
    for number, file in enumerate(files):
        with ExitStack() as opened:
            base, *groups = (
                opened.enter_context(OpenFile(source_of(part.url), part.path))
                for part in file.parts
            )
            reader, num_groups = aligned_reader(base, groups, selection), len(base.row_group_rows)
            step = max(1, -(-num_groups * len(files) // _MAX_ROW_GROUPS))
            # Another place in each file: rows early and late in one may differ.
            if not (chosen := range(num_groups)[number % step :: step]):
                continue
            rows = reader.read(chosen)
            num_rows += sum(base.row_group_rows[index] for index in chosen)
            for each in histories:
                lengths = one_array(rows.other(fields[each.history.name])).fill_null(0)
                cut = np.minimum(lengths.to_numpy(zero_copy_only=False), each.most_events)
                counts[each.history.name] += int(cut.sum(dtype=np.int64))
    return {name: counts[name] / max(1, num_rows) for name in fields}


def _null_counts(footer: CheckedFooter, selection: Selection, file_name: str) -> dict[str, int]:
    """The nulls of each selected column of a file that is no slot; 0 where nothing tells."""
    places = find_columns(footer.file_schema, selection, file_name).others
    counts = {}
    for name, column in places.items():
        if column is not None:
            roots = footer.file_schema.by_name[column]
            metadata = footer.arrow_metadata(roots, with_statistics=True)
            chunks = [metadata.row_group(i).column(0) for i in range(metadata.num_row_groups)]
            found = [chunk.statistics for chunk in chunks if chunk.is_stats_set]
            counts[name] = sum(one.null_count for one in found if one.has_null_count)
    return counts


def _column_sizes(
    footer: CheckedFooter, selection: Selection, file_name: str
) -> dict[str, tuple[int, int]]:
    """The stored bytes and the number of values of each selected column that a file has."""
    found = find_columns(footer.file_schema, selection, file_name)
    sizes = {}
    for name, column in (*found.slots.items(), *found.others.items()):
        if column is not None:
            chunks = footer.chunks_of(range(len(footer.row_group_rows)), found.places[column])
            sizes[name] = int(chunks.stored_bytes.sum()), int(chunks.num_values.sum())
    return sizes
