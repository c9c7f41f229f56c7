"""Batches of TFRecord files: a thread downloads them ahead, tf.data reads and parses them.

tf.data is used as its guide to performance says: records are batched before they are parsed, so
that one call parses a batch; parsing runs in parallel; batches are prefetched. Only the selected
features are parsed, ids are put into buckets in the same parallel call, and ids and floats come as
one tensor each, which takes fewer calls. The function is traced before the epoch begins.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import tensorflow as tf
import torch
from obstore.store import from_url
from torch.utils.dlpack import from_dlpack

from training_parts.dlrm import BUCKETS, Inputs
from training_parts.rows import LABEL, AdsRows

_BLOCK_BYTES = 8 << 20


class RecordReader:
    """Reads the records of one epoch.

    One thread downloads the files, one after the other, as fast as the line allows.

    Args:
        of: The rows.
        urls: The files, in order.
        directory: Where to download to.
        batch_size: Rows of a batch.
    """

    def __init__(self, of: AdsRows, urls: Sequence[str], directory: Path, batch_size: int) -> None:
        self._of, self._urls, self._directory = of, urls, directory
        self._batch_size = batch_size
        ids, lists, floats = (of.selected(kind) for kind in "ilf")
        self._lists = lists
        features = {name: tf.io.FixedLenFeature([], tf.int64, 0) for name in ids}
        features |= {name: tf.io.FixedLenFeature([], tf.float32, float("nan")) for name in floats}
        features |= {
            name: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for name in lists
        }
        features[LABEL] = tf.io.FixedLenFeature([], tf.float32)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])  # type: ignore[untyped-decorator]
        def parse(records: Any) -> Any:
            found = tf.io.parse_example(records, features)
            # A slot a row, so that a slot is contiguous.
            signs = tf.stack([found[name] for name in ids])
            numbers = tf.stack([found[name] for name in floats], axis=1)
            # A tuple, since tf.data makes a list one tensor.
            values = tuple((_buckets(found[n].values), found[n].row_splits) for n in lists)
            return _buckets(signs), numbers, values, found[LABEL]

        self._parse = parse
        self._parse.get_concrete_function()

    def __call__(self) -> Iterator[Inputs]:
        packed = "GZIP" if self._urls[0].endswith(".gz") else ""
        with ThreadPoolExecutor(1) as thread:
            paths = [thread.submit(self._download, *of) for of in enumerate(self._urls)]
            files = tf.data.Dataset.from_generator(
                lambda: map(Future.result, paths), output_signature=tf.TensorSpec([], tf.string)
            )
            records = files.flat_map(
                lambda path: tf.data.TFRecordDataset(path, packed, buffer_size=_BLOCK_BYTES)
            )
            batches = records.batch(self._batch_size)
            parsed = batches.map(self._parse, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
            for signs, numbers, values, label in parsed:
                yield Inputs(
                    ids=list(_tensor(signs)),
                    lists=[(_tensor(of), _tensor(splits)) for of, splits in values],
                    floats=_tensor(numbers),
                    label=_tensor(label),
                )

    def _download(self, index: int, url: str) -> str:
        root, _, name = url.rpartition("/")
        path = self._directory / f"{index}-{name}"
        store = from_url(root, client_options={"allow_http": True})
        with path.open("wb") as file:
            for block in obstore.get(store, name).stream(min_chunk_size=_BLOCK_BYTES):
                file.write(memoryview(block))
        return str(path)


def _buckets(signs: Any) -> Any:
    """As featstore's loader makes them: missing 0."""
    return tf.where(signs == 0, signs, 1 + tf.math.floormod(signs, BUCKETS - 1))


def _tensor(found: Any) -> torch.Tensor:
    """A view of a tensor's memory."""
    return from_dlpack(found)
