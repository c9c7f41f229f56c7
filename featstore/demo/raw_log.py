"""Raw logs of the demo: Parquet files in Hive directories, one key deep."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from featstore import files


@dataclass(frozen=True, kw_only=True)
class RawLog:
    """A raw log as written: where it lies, and how much it is. `num_dropped` rows had no label and were left out."""

    url: str
    num_rows: int
    num_files: int
    size_bytes: int
    num_dropped: int = 0


def write_raw_file(url: str, batches: Iterable[pa.Table], schema: pa.Schema) -> int:
    """Writes `batches` as one snappy Parquet file, a row group each, whole or not at all; returns its bytes."""
    with files.open_write(url) as sink, pq.ParquetWriter(sink, schema) as writer:
        for batch in batches:
            writer.write_table(batch)
    return files.size_bytes(url)
