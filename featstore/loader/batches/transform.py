"""Adds candidates to each batch and applies a user's function to it, in a thread of its own. For
debugging, detects writes to batches in place.
"""

import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from featstore.base.errors import BatchError
from featstore.loader.batches.batch_slices import BatchSlice
from featstore.loader.batches.stats import Stats
from featstore.loader.request.options import function_of
from featstore.tensors.batch import Batch
from featstore.tensors.column_arrays import (
    CANDIDATE,
    CANDIDATE_LENGTHS,
    LABEL,
    LOG_Q,
    SLOT,
    WEIGHT,
)
from featstore.tensors.columns import Column, SharedJagged, tensors_of
from featstore.tensors.packed import TensorColumns, array_of

# Takes a batch, and returns it, another batch, or slots by name that are added to it or replace its
# own.
Transform = Callable[[Batch], Batch | Mapping[str, Column]]
_ACCESS = {
    SLOT: "batch[{!r}]",
    LABEL: "batch.labels[{!r}]",
    WEIGHT: "batch.weight ({!r})",
    CANDIDATE: "batch.candidates[{!r}]",
    CANDIDATE_LENGTHS: "the lengths of batch.candidates[{!r}]",
    LOG_Q: "batch.log_q ({!r})",
}


def checked_transform(transform: Transform | str | None) -> Transform | None:
    """The option `transform`: a function, or the name of one as `package.module:function`.
    ConfigError if it cannot be imported or called.
    """
    return None if transform is None else function_of("transform", transform)


def transformed(
    slices: Iterator[BatchSlice],
    draw: Callable[[Batch], Batch] | None,
    transform: Transform | None,
    stats: Stats,
    *,
    debug: bool = False,
) -> Generator[BatchSlice, None, None]:
    """The batch slices with their batches made and transformed.

    Args:
        slices: Batch slices.
        draw: Adds candidates; None: there are none.
        transform: The function; None: there is none.
        stats: Where seconds are counted.
        debug: Whether to check for writes of the function to the batch that it gets.

    Raises:
        BatchError: The function raised, or wrote to its batch in place; the error names the rows.
    """
    for rows in slices:
        if rows.blocks:
            with stats.timed("transform_s"):
                batch = rows.batch() if draw is None else draw(rows.batch())
                if transform is not None:
                    batch = _applied(transform, batch, rows, debug=debug)
            yield replace(rows, made=batch)
            del batch  # As below.
        else:
            yield rows
        del rows  # Frees its memory before the next slice is waited for.


def _applied(transform: Transform, batch: Batch, rows: BatchSlice, *, debug: bool) -> Batch:
    check = write_check(batch) if debug else None
    try:
        result = _result(batch, transform(batch))
        if check is not None:
            check()
        return result
    except Exception as error:  # a boundary: the function is the user's
        slot = f", after asking for {batch.last_asked!r}" if batch.last_asked is not None else ""
        name = getattr(transform, "__qualname__", repr(transform))
        raise BatchError(
            f"transform {name} failed on {_places(rows)}{slot}: {type(error).__name__}: {error}"
        ) from error


def _places(rows: BatchSlice) -> str:
    """The rows of a batch as text, for errors: rows of their splits' streams, which without shuffle
    are in the order of the files.
    """
    found: list[tuple[str, int, int]] = []
    for block in rows.blocks:
        for source, first, end in block.places():
            split = source.claim.split.id
            if found and (found[-1][0], found[-1][2]) == (split, first):
                first = found.pop()[1]
            found.append((split, first, end))
    return ", ".join(f"rows {first} to {end} of {split}" for split, first, end in found)


def _result(batch: Batch, result: Any) -> Batch:
    if isinstance(result, Batch):
        return result
    if not isinstance(result, Mapping):
        raise TypeError(
            f"expected a Batch or a mapping of slots to tensors, found {type(result).__name__}"
        )
    for name, column in result.items():
        _require_column(name, column, len(batch))
    columns = dict(batch.made()) | {(SLOT, name): column for name, column in result.items()}
    slots_first = sorted(columns, key=lambda key: key[0] != SLOT)
    return batch.with_columns(TensorColumns({key: columns[key] for key in slots_first}))


def _require_column(name: Any, column: Any, num_rows: int) -> None:
    """TypeError or ValueError for a column that cannot be packed with the batch: it has to be a CPU
    tensor without gradient, of the batch's rows.
    """
    for tensor in tensors_of(column):
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.device.type != "cpu"
            or tensor.requires_grad
        ):
            found = (
                f"{tensor.device} tensor"
                if isinstance(tensor, torch.Tensor)
                else type(tensor).__name__
            )
            raise TypeError(
                f"slot {name!r}: expected a CPU tensor without gradient, or a Jagged of such, "
                f"found a {found}"
            )
    found_rows = len(column) if not isinstance(column, torch.Tensor) or column.dim() else None
    if found_rows != num_rows:
        raise ValueError(f"slot {name!r}: expected {num_rows} rows, found {found_rows}")
    if isinstance(column, SharedJagged):
        ranges = column.ranges
        if ranges.dtype != torch.int64 or ranges.shape != (num_rows, 3):
            raise ValueError(
                f"slot {name!r}: expected ranges of torch.int64 {(num_rows, 3)}, as those of the "
                f"batch that the function gets, found {ranges.dtype} {(*ranges.shape,)}"
            )


def write_check(batch: Batch) -> Callable[[], None]:
    """Takes checksums of a batch's columns, to detect writes to them: they are views of memory that
    other batches share. This makes all columns, and keeps the batch.

    Returns:
        Raises BatchError, with the column's name, if a column has changed.
    """
    columns = dict(batch.made())
    sums = {key: _checksum(column) for key, column in columns.items()}

    def require_unwritten() -> None:
        for (role, name), column in columns.items():
            if _checksum(column) != sums[role, name]:
                raise BatchError(
                    f"{_ACCESS[role].format(name)} was written in place: it is a view of decoded "
                    "memory that other batches share; write to a copy, batch.clone() of all "
                    "columns or .clone() of this one"
                )

    return require_unwritten


def _checksum(column: Column) -> tuple[int, ...]:
    return tuple(
        zlib.crc32(np.ascontiguousarray(array_of(tensor)).tobytes())
        for tensor in tensors_of(column)
    )
