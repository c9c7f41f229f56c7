"""The rows of Parquet files as samples.

Apart from the other imports, since it loads pyarrow, which a process that reads a store does
without.
"""

from collections.abc import Iterable, Iterator, Set
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from featstore.errors import DataFileError, SampleError, all_nearest
from featstore.files.listings import FileEntry
from featstore.files.storage import open_read
from featstore.parquet.footers import read_checked
from featstore.parquet.walk import FooterError
from featstore.redaction import redact, shown
from featstore.sampling.sample_imports import WHOLE

_BATCH_ROWS = 1_000  # samples may be large


def parquet_rows(
    entry: FileEntry, num_skipped: int, names: list[str], optional: Set[str]
) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file after the first `num_skipped`, with the columns of `names`, of
    which those in `optional` may be missing.

    Raises:
        SampleError: A column is missing.
        DataFileError: It is no Parquet file, or damaged.
    """
    with open_read(entry.url, entry.size_bytes) as source:
        try:
            footer = read_checked(source)
        except FooterError as error:
            raise DataFileError(f"{redact(entry.url)} is no Parquet file: {error}") from error
        with closing(
            pq.ParquetFile(
                source, metadata=footer.arrow_metadata(), page_checksum_verification=True
            )
        ) as file:
            columns = _columns(file.schema_arrow.names, names, optional, redact(entry.url))
            try:
                yield from _rows(file, footer.row_group_rows, num_skipped, columns)
            except (pa.ArrowException, OSError) as error:
                raise DataFileError(f"{redact(entry.url)} cannot be read: {error}") from error


def _rows(
    file: pq.ParquetFile, row_group_rows: Iterable[int], num_skipped: int, columns: list[str] | None
) -> Iterator[dict[str, Any]]:
    for index, num_rows in enumerate(row_group_rows):
        if num_skipped >= num_rows:
            num_skipped -= num_rows
            continue
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=[index], columns=columns):
            yield from batch.slice(min(num_skipped, len(batch))).to_pylist()
            num_skipped = max(0, num_skipped - len(batch))


def _columns(
    known: list[str], names: list[str], optional: Set[str], where: str
) -> list[str] | None:
    """The columns to read for names, which may be of fields in structs; None: all.

    Raises:
        SampleError: There is no such column.
    """
    column_of = {name: name if name in known else name.partition(".")[0] for name in names}
    column_of.pop(WHOLE, None)
    columns = set(column_of.values())
    if absent := {column_of[name] for name in column_of.keys() - optional} - set(known):
        raise SampleError(
            f"{where}: no column {all_nearest(sorted(absent), known)}; there are {shown(known)}"
        )
    return None if WHOLE in names else sorted(columns & set(known))
