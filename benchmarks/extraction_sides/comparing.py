"""Whether two outputs of the same features hold the same content: every row of every slot."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from extraction_sides.workload import ROW_ID

_BATCH_COLUMNS = 32


def differences(left: Path, right: Path) -> list[str]:
    """The slots that differ, rows matched by their number. Floats may differ by their last two
    digits: sums in another order, and Java's logarithm."""
    names = [name for name in ds.dataset(left, format="parquet").schema.names if name != ROW_ID]
    orders = [
        np.argsort(_column(_read(path, [ROW_ID]), ROW_ID).to_numpy()) for path in (left, right)
    ]
    if len(orders[0]) != len(orders[1]):
        return [f"{len(orders[0])} rows instead of {len(orders[1])}"]
    different: list[str] = []
    for start in range(0, len(names), _BATCH_COLUMNS):
        some = names[start : start + _BATCH_COLUMNS]
        tables = [_read(path, some) for path in (left, right)]
        different += [
            name
            for name in some
            if not _same(*(_rows(t, name, o) for t, o in zip(tables, orders, strict=True)))
        ]
    return different


def _read(path: Path, columns: list[str]) -> pa.Table:
    files = sorted(str(file) for file in path.rglob("*.parquet") if "_delta_log" not in str(file))
    return ds.dataset(files, format="parquet").to_table(columns=columns)


def _column(table: pa.Table, name: str) -> pa.Array:
    return pa.concat_arrays(table[name].chunks)


def _rows(table: pa.Table, name: str, order: np.ndarray[Any, Any]) -> pa.Array:
    return _column(table, name).take(pa.array(order))


def _same(left: pa.Array, right: pa.Array) -> bool:
    if pa.types.is_list(left.type):
        lengths = [np.diff(array.offsets.to_numpy()) for array in (left, right)]
        return bool(np.array_equal(*lengths)) and _same(left.flatten(), right.flatten())
    ours, theirs = (array.to_numpy(zero_copy_only=False) for array in (left, right))
    if pa.types.is_floating(left.type):
        return bool(np.allclose(ours, theirs, rtol=3e-7, atol=1e-7, equal_nan=True))
    return bool(np.array_equal(ours, theirs))
