"""Statistics on disk: a small Parquet file for each partition, tied by a digest to the data files
that it describes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from featstore.base.errors import DataFileError
from featstore.files.storage import join, open_read, open_write
from featstore.native.damage import damage_as, first_line
from featstore.native.footers import read_checked
from featstore.statistics.column_statistics import Statistics
from featstore.table.layout import statistics_path, tag_of
from featstore.table.metadata import KEY, to_json
from featstore.table.snapshot import DataFile, files_digest

# Format 1 had no counts and no sign collisions, format 2 no exact counts and no errors. In format 3
# 0 was missing in columns of other writers.
FORMAT = 4


class _OlderFormatError(DataFileError):
    """The file is of an older featstore."""


@dataclass(frozen=True, kw_only=True)
class StoredStatistics:
    """Statistics of some data files.

    Attributes:
        statistics: The statistics by column.
        data_digest: The `files_digest` of the data files.
        counts: Counts of the extraction of their rows, by name.
    """

    statistics: Statistics
    data_digest: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)


def write_statistics(table_url: str, path: str, stored: StoredStatistics) -> None:
    """Writes statistics to `path` below the table. The file appears whole or not at all."""
    metadata = {
        "num_rows": stored.statistics.num_rows,
        "data_digest": stored.data_digest,
        "counts": dict(stored.counts),
        "format": FORMAT,
    }
    write_own(table_url, path, stored.statistics.to_table(), metadata)


def copy_statistics(
    table_url: str, part: str, path: str, data_digest: str, counts: Mapping[str, int]
) -> None:
    """Writes the statistics in the file `part` to `path`, with another digest and other counts.

    They are not decoded: for thousands of slots that takes a quarter of a second.

    Raises:
        FileNotFoundError: There is no file `part`.
        DataFileError: The file is damaged or of another format.
    """
    table, metadata = _read(table_url, part)
    metadata |= {"data_digest": data_digest, "counts": dict(counts)}
    write_own(table_url, path, table, metadata)


def read_statistics(table_url: str, path: str) -> StoredStatistics:
    """Reads what `write_statistics` wrote.

    Raises:
        FileNotFoundError: There is no such file.
        DataFileError: The file is damaged or of another format.
    """
    table, stored = _read(table_url, path)
    return StoredStatistics(
        statistics=Statistics.from_table(table, stored["num_rows"]),
        data_digest=stored["data_digest"],
        counts=stored["counts"],
    )


def find_statistics(
    table_url: str, partition: Mapping[str, str | None], files: Sequence[DataFile]
) -> StoredStatistics | None:
    """The stored statistics of exactly these files.

    Args:
        table_url: The table.
        partition: The partition.
        files: All data files of the partition.

    Returns:
        The statistics. None if there are none, if they describe other files, or if they are of an
        older format.

    Raises:
        DataFileError: The file is damaged or of a newer format.
    """
    # Statistics are merged per run and partition: files of two runs have none in common.
    tags = {tag_of(file.path) for file in files}
    tag = tags.pop() if len(tags) == 1 else None
    if tag is None:
        return None
    try:
        stored = read_statistics(table_url, statistics_path(partition, tag))
    except (FileNotFoundError, _OlderFormatError):
        return None
    return stored if stored.data_digest == files_digest(files) else None


def _read(table_url: str, path: str) -> tuple[pa.Table, dict[str, Any]]:
    table, stored = read_own(table_url, path, "statistics")
    number = stored.get("format")
    if number in range(1, FORMAT):
        raise _OlderFormatError(
            f"{path}: statistics of format {number!r}, expected {FORMAT}: they are of an older "
            f"featstore"
        )
    if number != FORMAT:
        raise DataFileError(
            f"{path}: statistics of format {number!r}, this featstore reads {FORMAT}; upgrade it"
        )
    return table, stored


def write_own(
    table_url: str,
    path: str,
    table: pa.Table,
    metadata: Mapping[str, Any],
    dictionaries: Sequence[str] = (),
) -> None:
    """Writes a small file beside the data files, which `read_own` reads. It appears whole or not at
    all.

    Args:
        table_url: The table.
        path: The file's path in it.
        table: The rows.
        metadata: The metadata, as JSON types.
        dictionaries: The columns with a dictionary.
    """
    with open_write(join(table_url, path)) as file:
        pq.write_table(
            table.replace_schema_metadata({KEY: to_json(metadata)}),
            file,
            compression="zstd",
            use_dictionary=list(dictionaries),
            write_page_checksum=True,
            write_statistics=False,  # of binary values they would be as large as the values
        )


def read_own(table_url: str, path: str, what: str) -> tuple[pa.Table, dict[str, Any]]:
    """The rows of a small file that featstore wrote beside the data files, and its metadata.

    Args:
        table_url: The table.
        path: The file's path in it.
        what: What the file holds, for errors.

    Raises:
        FileNotFoundError: There is no such file.
        DataFileError: The file is damaged.
    """

    def unreadable(error: Exception) -> DataFileError:
        return DataFileError(f"{path}: {what} cannot be read: {first_line(error)}")

    with open_read(join(table_url, path)) as file, damage_as(unreadable, path):
        footer = read_checked(file)
        metadata = footer.arrow_metadata()
        # A thread of Arrow's pool may free memory of Python later, at the interpreter's end.
        read = pq.ParquetFile(
            file, metadata=metadata, pre_buffer=False, page_checksum_verification=True
        )
        table = read.read(use_threads=False)
    return table, json.loads(footer.key_values.get(KEY.encode(), b"{}"))
