"""The demo's raw logs: Parquet files in Hive directories with one partition key."""

import filecmp
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from featstore.files import storage


@dataclass(frozen=True, kw_only=True)
class RawLog:
    """A raw log that was written.

    Attributes:
        url: The directory.
        num_rows: The number of rows.
        num_files: The number of files.
        size_bytes: The size of all files.
        num_dropped: Rows left out because they have no label.
    """

    url: str
    num_rows: int
    num_files: int
    size_bytes: int
    num_dropped: int = 0


def write_raw_file(url: str, batches: Iterable[pa.Table], schema: pa.Schema) -> int:
    """Writes a snappy Parquet file, atomically, with a row group per batch.

    An existing file with the same content is left untouched, so that an equal run of the demo finds
    its input unchanged.

    Returns:
        The size of the file in bytes.
    """
    path = Path(url)
    new = path.with_name(f".{path.name}.new")
    with storage.open_write(str(new)) as sink, pq.ParquetWriter(sink, schema) as writer:
        for batch in batches:
            writer.write_table(batch)
    # A new modification time alone would make the extraction run again.
    if path.exists() and filecmp.cmp(path, new, shallow=False):
        new.unlink()
    else:
        new.replace(path)
    return path.stat().st_size
