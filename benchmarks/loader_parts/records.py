"""The same rows as TFRecord through tf.data. Written once by the protobuf package; of fewer rows, as that takes its time."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from loader_parts.arrow_batches import Columns
from loader_parts.peers import Batches
from size_parts.tfrecord import examples, write_records

NUM_ROWS = 8_192


def to_records(paths: Sequence[str], directory: Path) -> Sequence[str]:
    """All columns of the first rows, as rows are stored by those who store rows."""
    return _written(paths, directory / "rows.tfrecord")


def to_gzip(paths: Sequence[str], directory: Path) -> Sequence[str]:
    """The same, compressed."""
    return _written(paths, directory / "rows.tfrecord.gz")


def by_tensorflow(paths: Sequence[str], columns: Sequence[str], batch_size: int) -> Batches:
    """Batches of records, parsed at once, with the parallelism that tf.data finds."""
    import tensorflow as tf

    schema = pq.read_schema(paths[1])
    wanted = {name: _feature(tf, schema.field(name).type) for name in columns}
    records = tf.data.TFRecordDataset(paths[:1], compression_type="GZIP" if paths[0].endswith(".gz") else "")
    parsed = records.batch(batch_size).map(lambda batch: tf.io.parse_example(batch, wanted), tf.data.AUTOTUNE)
    for found in parsed.prefetch(tf.data.AUTOTUNE):
        yield _columns(found)


def _feature(tf: Any, of: pa.DataType) -> Any:
    if pa.types.is_list(of):
        return tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    is_float = pa.types.is_floating(of)
    return tf.io.FixedLenFeature([], tf.float32 if is_float else tf.int64, float("nan") if is_float else 0)


def _columns(found: dict[str, Any]) -> Columns:
    return {
        name: (torch.from_numpy(part.values.numpy()), torch.from_numpy(part.row_splits.numpy()))
        if hasattr(part, "row_splits")
        else torch.from_numpy(part.numpy())
        for name, part in found.items()
    }


def _written(paths: Sequence[str], path: Path) -> Sequence[str]:
    rows = next(pq.ParquetFile(paths[0]).iter_batches(NUM_ROWS))
    schema_path = path.with_suffix(path.suffix + ".parquet")
    pq.write_table(pa.Table.from_batches([rows]), schema_path)
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as sink:
        write_records(sink, examples(pa.Table.from_batches([rows])))  # type: ignore[arg-type]
    return [str(path), str(schema_path)]
