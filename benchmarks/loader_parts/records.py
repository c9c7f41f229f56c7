"""The same rows as TFRecord through tf.data. Written once by the protobuf package; of fewer rows,
as that takes its time.
"""

import gzip
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from loader_parts.arrow_batches import Column
from loader_parts.peers import Batches
from size_parts.tfrecord import examples, write_records

IS_INSTALLED = importlib.util.find_spec("tensorflow") is not None


def write_rows(paths: Sequence[str], *, is_compressed: bool) -> str:
    """All columns of the rows of these files, as a TFRecord file beside their folder; its path."""
    path = Path(paths[0]).parent.with_suffix(".tfrecord.gz" if is_compressed else ".tfrecord")
    if not path.exists():
        with gzip.open(path, "wb") if is_compressed else path.open("wb") as sink:
            for of in paths:
                write_records(sink, examples(pq.read_table(of)))  # type: ignore[arg-type]
    return str(path)


def by_records(
    paths: Sequence[str], columns: Sequence[str], batch_size: int, *, is_compressed: bool = False
) -> Batches:
    """A `Reader` of the rows of these files, from the TFRecord file that the first call writes."""
    return by_tensorflow(
        write_rows(paths, is_compressed=is_compressed),
        pq.read_schema(paths[0]),
        columns,
        batch_size,
    )


def by_tensorflow(path: str, schema: pa.Schema, columns: Sequence[str], batch_size: int) -> Batches:
    """Batches of records, parsed at once, with the parallelism that tf.data finds."""
    import tensorflow as tf

    wanted = {name: _feature(tf, schema.field(name).type) for name in columns}
    records = tf.data.TFRecordDataset(
        [path], compression_type="GZIP" if path.endswith(".gz") else ""
    )
    parsed = records.batch(batch_size).map(
        lambda batch: tf.io.parse_example(batch, wanted), tf.data.AUTOTUNE
    )
    for found in parsed.prefetch(tf.data.AUTOTUNE):
        yield {name: _column(found[name], schema.field(name).type) for name in columns}


def _feature(tf: Any, of: pa.DataType) -> Any:
    if pa.types.is_list(of):
        return tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    if pa.types.is_floating(of):
        return tf.io.FixedLenFeature([], tf.float32, float("nan"))
    return tf.io.FixedLenFeature([], tf.int64, 0)


def _column(found: Any, of: pa.DataType) -> Column:
    """Lists as values and offsets; a label, which is no int64 in the Parquet file, as float32 like
    everywhere.
    """
    if hasattr(found, "row_splits"):
        return torch.from_numpy(found.values.numpy()), torch.from_numpy(found.row_splits.numpy())
    tensor = torch.from_numpy(found.numpy())
    return tensor.to(torch.float32) if pa.types.is_integer(of) and of != pa.int64() else tensor
