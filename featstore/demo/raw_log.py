"""Raw logs of the demo: Parquet files in Hive directories, one key deep."""

import filecmp
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from featstore.files import storage


@dataclass(frozen=True, kw_only=True)
class RawLog:
    """A raw log as written: where it lies, and how much it is. `num_dropped` rows had no label and
    were left out.
    """

    url: str
    num_rows: int
    num_files: int
    size_bytes: int
    num_dropped: int = 0


def write_raw_file(url: str, batches: Iterable[pa.Table], schema: pa.Schema) -> int:
    """Writes `batches` as one snappy Parquet file, a row group each, whole or not at all; returns
    its bytes.

    A file that already has the same content is left alone, so that an equal run of the demo finds
    its input unchanged.
    """
    path = Path(url)
    new = path.with_name(f".{path.name}.new")
    with storage.open_write(str(new)) as sink, pq.ParquetWriter(sink, schema) as writer:
        for batch in batches:
            writer.write_table(batch)
    if path.exists() and filecmp.cmp(path, new, shallow=False):
        new.unlink()
    else:
        new.replace(path)
    return path.stat().st_size
