"""Statistics on disk: a small Parquet file beside the partition, bound to the very data files that
it tells of.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.parquet as pq

from featstore.errors import DataFileError
from featstore.files.storage import join, open_read, open_write
from featstore.parquet.damage import DAMAGE, first_line
from featstore.parquet.footers import read_checked
from featstore.table.layout import statistics_path, tag_of
from featstore.table.metadata import KEY, to_json
from featstore.table.snapshot import DataFile, files_digest
from featstore.table.statistics.column_statistics import Statistics

FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class StoredStatistics:
    """Statistics of the data files that `data_digest` names; `counts` says what was dropped or
    replaced in their rows.
    """

    statistics: Statistics
    data_digest: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)


def write_statistics(table_url: str, path: str, stored: StoredStatistics) -> None:
    """Writes them under `path` of the table; the file appears whole or not at all."""
    said = {
        "format": FORMAT,
        "num_rows": stored.statistics.num_rows,
        "data_digest": stored.data_digest,
    }
    table = stored.statistics.to_table()
    metadata = {KEY: to_json({**said, "counts": dict(stored.counts)})}
    with open_write(join(table_url, path)) as file:
        told = table.replace_schema_metadata(metadata)
        pq.write_table(
            told, file, compression="zstd", use_dictionary=False, write_page_checksum=True
        )


def read_statistics(table_url: str, path: str) -> StoredStatistics:
    """What `write_statistics` wrote. FileNotFoundError where there is none, DataFileError for
    another format.
    """
    found, number = _read(table_url, path)
    if found is None:
        raise DataFileError(
            f"{path}: statistics of format {number!r}, expected {FORMAT}: they are of an older "
            f"featstore"
        )
    return found


def find_statistics(
    table_url: str, partition: Mapping[str, str | None], files: Sequence[DataFile]
) -> StoredStatistics | None:
    """The statistics of just these files, which are all of a partition; None where there are none,
    or of others.

    Those of an older format, which say less, are as if there were none.
    """
    tags = {tag_of(file.path) for file in files}
    tag = tags.pop() if len(tags) == 1 else None
    if tag is None:
        return None
    try:
        found, _ = _read(table_url, statistics_path(partition, tag))
    except FileNotFoundError:
        return None
    return found if found is not None and found.data_digest == files_digest(files) else None


def _read(table_url: str, path: str) -> tuple[StoredStatistics | None, object]:
    """The statistics of a file, None where its format is older, and the number of its format."""
    with open_read(join(table_url, path)) as file:
        try:
            footer = read_checked(file)
            metadata = footer.arrow_metadata()
            table = pq.ParquetFile(file, metadata=metadata, page_checksum_verification=True).read()
        except DAMAGE as error:
            raise DataFileError(
                f"{path}: statistics cannot be read: {first_line(error)}"
            ) from error
    said = json.loads(footer.key_values.get(KEY.encode(), b"{}"))
    number = said.get("format")
    if number in range(1, FORMAT):
        return None, number
    if number != FORMAT:
        raise DataFileError(
            f"{path}: statistics of format {number!r}, this featstore reads {FORMAT}; upgrade it"
        )
    statistics = Statistics.from_table(table, said["num_rows"])
    return StoredStatistics(
        statistics=statistics, data_digest=said["data_digest"], counts=said["counts"]
    ), number
