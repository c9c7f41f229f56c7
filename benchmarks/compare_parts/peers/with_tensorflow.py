"""tf.data over TFRecord: a batch is parsed at once, with the parallelism that tf.data finds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from compare_parts.job import Job
from size_parts.tfrecord import examples, write_records


def convert(files: list[str], folder: str) -> None:
    for path in files:
        with Path(folder, f"{Path(path).stem}.tfrecord").open("wb") as sink:
            write_records(sink, examples(pq.read_table(path)))


def _feature(of: pa.DataType) -> Any:
    if pa.types.is_list(of):
        return tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    if pa.types.is_floating(of):
        return tf.io.FixedLenFeature([], tf.float32, float("nan"))
    return tf.io.FixedLenFeature([], tf.int64, 0)


def _column(found: Any) -> Any:
    if isinstance(found, tf.RaggedTensor):
        return found.values.numpy(), found.row_splits.numpy()
    return found.numpy()


class Reader:
    def __init__(self, job: Job) -> None:
        schema = pq.read_schema(job.files[0])
        wanted = {name: _feature(schema.field(name).type) for name in job.columns}
        files = tf.data.Dataset.list_files(f"{job.folder}/*", shuffle=job.shuffle, seed=0)
        records = files.shard(job.num_ranks, job.rank).interleave(
            tf.data.TFRecordDataset,
            cycle_length=4 if job.shuffle else 1,
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        if job.shuffle:
            records = records.shuffle(16_384, seed=0)
        self._columns, self._rank = job.columns, job.rank
        self._checkpoint_path, self._iterator = f"{job.scratch}/state-{job.rank}", None
        self._batches = (
            records.batch(job.batch_size)
            .map(lambda batch: tf.io.parse_example(batch, wanted), tf.data.AUTOTUNE)
            .prefetch(tf.data.AUTOTUNE)
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        iterator, self._iterator = self._iterator or iter(self._batches), None
        self._checkpoint = tf.train.Checkpoint(iterator=iterator)
        for found in iterator:
            yield {name: _column(found[name]) for name in self._columns}

    def state_dict(self) -> Any:
        return self._checkpoint.write(self._checkpoint_path)

    def load(self, states: list[Any]) -> None:
        self._iterator = iter(self._batches)
        tf.train.Checkpoint(iterator=self._iterator).read(states[self._rank]).assert_consumed()
