"""Iceberg tables that pyiceberg writes, in a catalog of its own in sqlite."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

CATALOG = "test"
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("x", pa.float32()),
        ("y", pa.float64()),
        ("is_new", pa.bool_()),
        ("name", pa.string()),
        ("ids", pa.list_(pa.int64())),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


@contextmanager
def catalog_at(root: Path, patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A catalog in a directory, which `iceberg://test/...` names in the block."""
    from pyiceberg.catalog.sql import SqlCatalog

    uri = f"sqlite:///{root}/catalog.db"
    patch.setenv(f"PYICEBERG_CATALOG__{CATALOG.upper()}__URI", uri)
    patch.setenv(f"PYICEBERG_CATALOG__{CATALOG.upper()}__WAREHOUSE", f"file://{root}/warehouse")
    with SqlCatalog(CATALOG, uri=uri, warehouse=f"file://{root}/warehouse") as catalog:
        catalog.create_namespace_if_not_exists("db")
        yield catalog


def rows_of(first: int, num_rows: int, schema: pa.Schema = COLUMNS) -> pa.Table:
    """Rows of any columns whose names `COLUMNS` has. Some values are null, missing or NaN."""
    made: dict[str, Any] = {
        "id": [first + i for i in range(num_rows)],
        "n": [None if i % 5 == 3 else i - 2 for i in range(num_rows)],
        "x": [
            None if i % 5 == 4 else float("nan") if i % 7 == 6 else i / 4 for i in range(num_rows)
        ],
        "y": [None if i % 6 == 1 else i / 3 for i in range(num_rows)],
        "is_new": [None if i % 4 == 3 else i % 4 == 0 for i in range(num_rows)],
        "name": [None if i % 9 == 8 else f"name {(first + i) % 17}" for i in range(num_rows)],
        "ids": [None if i % 5 == 2 else [first, i][: i % 3] for i in range(num_rows)],
        "day": [18_262 + (first + i) // 4 for i in range(num_rows)],
        "at": [1_600_000_000_000_000 + (first + i) * 3_600_000_000 for i in range(num_rows)],
    }
    arrays = [
        pa.array(made[field.name], pa.int32()).view(field.type)
        if pa.types.is_date(field.type)
        else pa.array(made[field.name], pa.int64()).view(field.type)
        if pa.types.is_timestamp(field.type)
        else pa.array(made[field.name], field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def as_featstore(found: pa.Table) -> pa.Table:
    """What pyiceberg reads, as a table of featstore shows it: integers and booleans are ids, and
    floats float32; 0 and NaN are missing, and so are a list of one of them alone.
    """
    columns = dict[str, pa.ChunkedArray]()
    for field, column in zip(found.schema, found.columns, strict=True):
        columns[field.name] = _as_featstore(column)
    return pa.table(columns)


def _as_featstore(column: pa.ChunkedArray) -> pa.ChunkedArray:
    import math

    type_ = column.type
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        kept = [
            None if row is None else [v for v in row if v is not None] for row in column.to_pylist()
        ]
        is_int = pa.types.is_integer(type_.value_type)
        shown = [None if row == [0] else row for row in kept]
        return pa.chunked_array([pa.array(shown, pa.list_(pa.int64() if is_int else pa.float32()))])
    values = column.to_pylist()
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return pa.chunked_array([pa.array([int(v) if v else None for v in values], pa.int64())])
    if pa.types.is_floating(type_):
        floats = [None if v is None or math.isnan(v) else v for v in values]
        return pa.chunked_array([pa.array(floats, pa.float64()).cast(pa.float32(), safe=False)])
    if pa.types.is_large_string(type_):
        return column.cast(pa.string())
    return column
