"""Batches as a `tf.data.Dataset`: what `FeatureLoader.to_tf()` returns.

The only module that imports tensorflow, which featstore does not install.
"""

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from featstore.base.errors import ConfigError, MissingDependencyError
from featstore.loader.request.options import SlotRequest
from featstore.loader.request.request import Request
from featstore.tensors.numpy_batch import JaggedArray, NumpyBatch


def tensorflow_dataset(batches: Iterable[NumpyBatch], request: Request) -> Any:
    """The batches as a dataset.

    Lists cross into tensorflow as their values and offsets, two plain tensors, and become ragged
    there: ragged tensors of a generator are packed and unpacked for each batch.

    Args:
        batches: What each iteration of the dataset iterates over from the start.
        request: What the batches hold.

    Returns:
        A `tf.data.Dataset` of `(slots, labels)`, or `(slots, labels, weight)` if there are weights:
        `slots` and `labels` are dicts by name, a list is a `tf.RaggedTensor`.

    Raises:
        MissingDependencyError: tensorflow is not installed.
        ConfigError: A slot is bfloat16, which numpy does not have, or rows share its lists.
    """
    if request.unique_slots:
        raise ConfigError(
            f"to_tf(): slot {request.unique_slots[0]!r}: expected a list of its own in each row, "
            "found a history with unique: true: leave `unique` out"
        )
    for item in request.slots:
        if item.batch_dtype == "bfloat16":
            raise ConfigError(
                f"to_tf(): slot {item.slot.name!r}: expected a dtype that numpy has, found "
                "bfloat16: select float16, or cast in the dataset's map()"
            )
    try:
        tf = import_module("tensorflow")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "to_tf(): tensorflow is not installed: pip install tensorflow"
        ) from error
    has_weight = request.weight is not None or request.negatives is not None

    def parts() -> Iterator[Any]:
        for batch in batches:
            slots = {
                name: tuple(column) if isinstance(column, JaggedArray) else column
                for name, column in batch.slots.items()
            }
            weight = (batch.weight,) if has_weight else ()
            yield slots, dict(batch.labels), *weight

    slots = {item.slot.name: _slot_spec(tf, item) for item in request.slots}
    number = tf.TensorSpec((None,), tf.float32)
    labels = {label.name: number for label in request.labels}
    signature = (slots, labels, number) if has_weight else (slots, labels)
    dataset = tf.data.Dataset.from_generator(parts, output_signature=signature)
    jagged = {item.slot.name for item in request.slots if item.is_jagged}

    def ragged(slots: Any, *others: Any) -> Any:
        made = {
            name: tf.RaggedTensor.from_row_splits(*column, validate=False)
            if name in jagged
            else column
            for name, column in slots.items()
        }
        return (made, *others)

    return dataset.map(ragged) if jagged else dataset


def _slot_spec(tf: Any, item: SlotRequest) -> Any:
    dtype = tf.as_dtype(item.batch_dtype)
    if item.is_jagged:
        return tf.TensorSpec((None,), dtype), tf.TensorSpec((None,), tf.int64)
    width = item.batch_width
    return tf.TensorSpec((None,) if width is None else (None, width), dtype)
