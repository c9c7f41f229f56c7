"""Writes the files of this directory, with tensorflow 2.21.0, which the project does not install.

python tests/formats/by_tensorflow/write.py
"""

from pathlib import Path
from typing import Any

import tensorflow as tf

HERE = Path(__file__).parent
ROWS: list[dict[str, Any]] = [
    {"id": [1], "price": [1.5], "name": [b"shoe"], "tags": [3, 1, 2], "raw": [b"\xff\x00"]},
    {"id": [-(2**63)], "price": [float("nan")], "name": ["é".encode()], "tags": [], "raw": [b""]},
    {"id": [2**63 - 1], "tags": [7]},
]


def feature(values: list[Any]) -> tf.train.Feature:
    if values and isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if values and isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def features(row: dict[str, list[Any]]) -> tf.train.Features:
    return tf.train.Features(feature={name: feature(values) for name, values in row.items()})


def steps(values: list[list[Any]]) -> tf.train.FeatureList:
    return tf.train.FeatureList(feature=[feature(step) for step in values])


def main() -> None:
    for name, packed in (("examples.tfrecord", ""), ("examples.tfrecord.gz", "GZIP")):
        with tf.io.TFRecordWriter(str(HERE / name), packed) as writer:
            for row in ROWS:
                writer.write(tf.train.Example(features=features(row)).SerializeToString())
    with tf.io.TFRecordWriter(str(HERE / "sequences.tfrecord")) as writer:
        for user, items, pairs in (([1], [[5], [6]], [[1, 2], [3]]), ([2], [], [[4]])):
            lists = tf.train.FeatureLists(
                feature_list={"items": steps(items), "pairs": steps(pairs)}
            )
            message = tf.train.SequenceExample(
                context=features({"user": user}), feature_lists=lists
            )
            writer.write(message.SerializeToString())


if __name__ == "__main__":
    main()
