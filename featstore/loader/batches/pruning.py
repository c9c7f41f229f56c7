"""Prunes row groups: `where` is evaluated over the ranges in their Parquet statistics."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.base.schema import SlotKind
from featstore.loader.request.request import Request
from featstore.reading.buffers import converted
from featstore.reading.field_ids import absent_value
from featstore.reading.file_columns import FileColumns
from featstore.reading.open_file import OpenFile
from featstore.selection.predicate import Flags, Range, Ranges

Parts = Sequence[tuple[OpenFile, FileColumns]]


def may_match(parts: Parts, request: Request, constants: Callable[[pa.Field], pa.Scalar]) -> Flags:
    """Whether any row of each row group can match: bool (num_row_groups,).

    Args:
        parts: The files from which the columns of `where` are read.
        request: A request with a `where`.
        constants: Gives the value of a partition key.
    """
    assert request.where is not None
    rows = parts[-1][0].row_group_rows
    found: dict[str, Range | None] = {}
    for slot in request.where_slots:
        file, name = _place(parts, slot.name, of="slots")
        if not slot.shape:
            range_ = _range(file, name, slot.to_field(), rows)
            if range_ is not None and slot.kind is SlotKind.ID:  # whose 0 is null to `where`
                bounds = zip(range_.low.to_pylist(), range_.high.to_pylist(), strict=True)
                may_be_zero = [low is None or low <= 0 <= high for low, high in bounds]
                may_be_null = range_.may_be_null | range_.may_be_value & np.array(may_be_zero, bool)
                range_ = replace(range_, may_be_null=may_be_null)
            found[slot.name] = range_
    for field in request.where_others:
        found[field.name] = _range(*_place(parts, field.name, of="others"), field, rows)
    for field in request.partition_keys.values():
        if field.name in request.where.columns:
            found[field.name] = _constant(constants(field), len(rows))
    known = {name: range_ for name, range_ in found.items() if range_ is not None}
    return request.where.can_match(Ranges(num_row_groups=len(rows), columns=known))


def _place(parts: Parts, name: str, *, of: str) -> tuple[OpenFile, str | None]:
    """The file that has the column, and the column's name there (None: no file has it)."""
    for file, columns in parts:
        if (found := getattr(columns, of).get(name)) is not None:
            return file, found
    return parts[-1][0], None


def _range(file: OpenFile, name: str | None, field: pa.Field, rows: Sequence[int]) -> Range | None:
    """The column's range in each row group; None for a type whose statistics cannot be used.

    Statistics say nothing about NaN, which is null to `where`, so a floating-point column may
    always be null.
    """
    if name is None:
        return _constant(absent_value(field), len(rows))
    stored = file.schema.field(name).type
    if not _has_bounds(stored):  # False for nested types, too.
        return None
    metadata = file.metadata_of([name], with_statistics=True)
    chunks = [metadata.row_group(i).column(0) for i in range(metadata.num_row_groups)]
    statistics = [chunk.statistics if chunk.is_stats_set else None for chunk in chunks]
    try:
        low, high = (
            converted(_bounds(statistics, side, stored), field.type) for side in ("min", "max")
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
        return None
    num_nulls = [
        None if found is None or not found.has_null_count else found.null_count
        for found in statistics
    ]
    return Range(
        low=low,
        high=high,
        may_be_null=np.array(
            [count != 0 or pa.types.is_floating(stored) for count in num_nulls], bool
        ),
        may_be_value=np.array(
            [count is None or count < num for count, num in zip(num_nulls, rows, strict=True)], bool
        ),
    )


def _has_bounds(type_: pa.DataType) -> bool:
    """Whether Parquet orders the type's statistics as `where` compares its values."""
    kinds = (
        pa.types.is_signed_integer,
        pa.types.is_boolean,
        pa.types.is_string,
        pa.types.is_float32,
        pa.types.is_float64,
    )
    return any(is_kind(type_) for is_kind in kinds) or _is_time(type_)


def _is_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) or pa.types.is_date32(type_))


def _bounds(statistics: Sequence[pq.Statistics | None], side: str, type_: pa.DataType) -> pa.Array:
    """The least or the largest values; null where there are none, or where either is NaN."""
    ends = ("min_raw", "max_raw") if _is_time(type_) else ("min", "max")
    values: list[Any] = []
    for found in statistics:
        low, high = (
            (getattr(found, end) for end in ends)
            if found is not None and found.has_min_max
            else (None, None)
        )
        is_known = low == low and high == high  # NaN is not equal to itself.
        values.append((low if side == "min" else high) if is_known else None)
    if not _is_time(type_):
        return pa.array(values, type_)
    return pa.array(values, pa.int32() if pa.types.is_date32(type_) else pa.int64()).view(type_)


def _constant(value: pa.Scalar, num_row_groups: int) -> Range:
    bounds, known = pa.repeat(value, num_row_groups), value.as_py()
    is_null = np.full(num_row_groups, known is None or known != known)
    return Range(low=bounds, high=bounds, may_be_null=is_null, may_be_value=~is_null)
