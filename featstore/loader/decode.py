"""Rows as read to the columns of a block: filters first, then buffers, buckets and lengths."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from featstore.errors import DataFileError
from featstore.loader.blocks import writable
from featstore.loader.request import DROP, RAISE, LabelRequest, Request
from featstore.loader.shaping import shaped
from featstore.loader.tensors import LABEL, SLOT, WEIGHT, Key
from featstore.reading.columns import Array, Values, scalar_floats
from featstore.reading.missing import marks_to_nulls
from featstore.reading.reader import Rows

NO_EXTRAS = pa.table({})


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A file's partition values, and whether they alone decide that all of its rows match `where`."""

    values: Mapping[str, str | None]
    is_decided: bool


def passing(rows: Rows, request: Request, partition: Partition, counts: Counter[str]) -> Array | None:
    """Which rows get into batches: bool (num_rows,), or None where all do. Counts those dropped for a null label."""
    mask = None
    if request.where is not None and not partition.is_decided:
        mask = _as_bool(request.where.mask(_where_table(rows, request, partition)))
        counts["rows_filtered"] += int(np.count_nonzero(~mask))
    for label in request.labels:
        if label.null == DROP:
            _, valid = scalar_floats(rows.other(label.field))
            if valid is not None:
                before = valid if mask is None else mask
                counts["null_labels_dropped"] += int(np.count_nonzero(~valid if mask is None else before & ~valid))
                mask = valid if mask is None else mask & valid
    return mask


def block_columns(rows: Rows, request: Request, counts: Counter[str]) -> dict[Key, Values]:
    """The slots, labels and weight of rows that passed, as buffers that tensors can be made of."""
    columns: dict[Key, Values] = {
        (SLOT, item.slot.name): writable(shaped(rows.slot(item.slot), item)) for item in request.slots
    }
    for label in request.labels:
        columns[LABEL, label.name] = writable(_number(rows, label, "label", counts))
    if request.weight is not None:
        columns[WEIGHT, request.weight.name] = writable(_number(rows, request.weight, "weight", counts))
    return columns


def block_extras(rows: Rows, request: Request, partition: Partition) -> pa.Table:
    """The extra columns; a partition key is a constant."""
    if not request.extras:
        return NO_EXTRAS
    columns = [
        _constant(field, partition, rows.num_rows) if field.name in request.partition_keys else rows.other(field)
        for field in request.extras
    ]
    return pa.table(columns, schema=pa.schema([field.remove_metadata() for field in request.extras]))


def _number(rows: Rows, label: LabelRequest, what: str, counts: Counter[str]) -> Array:
    values, valid = scalar_floats(rows.other(label.field))
    if valid is None:
        return values
    num_nulls = int(np.count_nonzero(~valid))
    if label.null in (RAISE, DROP):
        fix = f"; `{{name: {label.name}, null: drop}}` leaves such rows out, `null: 0` gives a value" if what == "label" else ""
        raise DataFileError(f"{rows.file_name}: {what} {label.name!r} is null in {num_nulls} of {rows.num_rows} rows{fix}")
    counts["null_labels_filled"] += num_nulls
    return np.where(valid, values, np.float32(label.null))


def _where_table(rows: Rows, request: Request, partition: Partition) -> pa.Table:
    """The columns that `where` reads, with nulls for missing values."""
    assert request.where is not None
    columns = {slot.name: rows.slot_column(slot) for slot in request.where_slots}
    columns |= {field.name: rows.other(field) for field in request.where_others}
    for name, field in request.partition_keys.items():
        if name in request.where.columns:
            columns[name] = _constant(field, partition, rows.num_rows)
    return marks_to_nulls(pa.table(columns), request.where_slots)


def _constant(field: pa.Field, partition: Partition, num_rows: int) -> pa.ChunkedArray:
    value = pa.scalar(partition.values.get(field.name), pa.string()).cast(field.type)
    return pa.chunked_array([pa.repeat(value, num_rows)])


def _as_bool(mask: pa.ChunkedArray) -> Array:
    return np.asarray(mask.combine_chunks().cast(pa.uint8())).astype(bool)
