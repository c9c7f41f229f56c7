"""Batches as numpy arrays, for numpy, JAX and others that do not compute with torch:
`FeatureLoader.numpy()` returns a `NumpyFeed`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import torch

from featstore.reading.buffers import Array
from featstore.tensors.batch import Batch
from featstore.tensors.columns import Column, Jagged, SharedJagged
from featstore.tensors.packed import array_of


class JaggedArray(NamedTuple):
    """A variable-length column: row i is `values[offsets[i]:offsets[i + 1]]`. JAX takes it as a
    tree of two arrays, as all named tuples.

    Attributes:
        values: int64 or float32 (num_values,), or the dtype that the slot was requested with.
        offsets: int64 (B + 1,), from 0 to num_values.
    """

    values: Array
    offsets: Array


class SharedJaggedArray(NamedTuple):
    """A variable-length column whose rows share values, as of `SharedJagged`.

    Attributes:
        values: int64 or float32 (num_values,), or the dtype that the slot was requested with.
        ranges: int64 (B, 3).
    """

    values: Array
    ranges: Array


NumpyColumn = Array | JaggedArray | SharedJaggedArray


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class NumpyBatch:
    """A batch of B rows as read-only arrays, which share the memory of the batch.

    Attributes:
        slots: Each slot's array, (B,) or (B, width), `JaggedArray`, or, of a history with `unique`,
            `SharedJaggedArray`, by name.
        labels: Each label as float32 (B,), by name.
        weight: float32 (B,); None if the loader was given no weight.
        candidates: Each slot of the rows' candidates, by name, as of `Batch`.
        log_q: float32 (B, per_row), as of `Batch`; None without candidates.
        extras: The extra columns, an Arrow table of B rows.
        num_rows: How many rows count: B, or 0 in a padding batch.
        is_padding: Whether this is a padding batch of `tail: pad`.
    """

    slots: Mapping[str, NumpyColumn]
    labels: Mapping[str, Array]
    weight: Array | None
    candidates: Mapping[str, NumpyColumn]
    log_q: Array | None
    extras: pa.Table
    num_rows: int
    is_padding: bool


def numpy_batch(batch: Batch) -> NumpyBatch:
    """The batch as arrays.

    Raises:
        TypeError: A slot is bfloat16, which numpy does not have, or on a device.
    """
    return NumpyBatch(
        slots={name: _column(name, column) for name, column in batch.items()},
        labels={name: _array(name, label) for name, label in batch.labels.items()},
        weight=None if batch.weight is None else _array("weight", batch.weight),
        candidates={name: _column(name, column) for name, column in batch.candidates.items()},
        log_q=None if batch.log_q is None else _array("log_q", batch.log_q),
        extras=batch.extras,
        num_rows=batch.num_rows,
        is_padding=batch.is_padding,
    )


def _column(name: str, column: Column) -> NumpyColumn:
    if isinstance(column, Jagged):
        return JaggedArray(_array(name, column.values), _array(name, column.offsets))
    if isinstance(column, SharedJagged):
        return SharedJaggedArray(_array(name, column.values), _array(name, column.ranges))
    return _array(name, column)


def _array(name: str, tensor: torch.Tensor) -> Array:
    if tensor.dtype == torch.bfloat16 or tensor.device.type != "cpu":
        raise TypeError(
            f"column {name!r}: expected a CPU tensor of a dtype that numpy has, found "
            f"{tensor.dtype} on {tensor.device}: select the slot with dtype float16 or without "
            "dtype, and take arrays from the loader, not from to_device()"
        )
    array: Array = array_of(tensor).view()
    array.flags.writeable = False
    return array


class NumpyFeed:
    """Iterates like its source, with arrays in place of tensors. Nothing is copied, and the state
    of a loader follows the loop. An iteration begins with its first batch.

    Args:
        source: A loader, or a DataLoader over one.
    """

    def __init__(self, source: Iterable[Batch]) -> None:
        self._source = source

    def __iter__(self) -> Iterator[NumpyBatch]:
        for batch in self._source:
            yield numpy_batch(batch)
