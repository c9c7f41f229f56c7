"""Parquet files that tests write."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def put_parquet(path: Path, rows: pa.Table | Mapping[str, Any], **how: Any) -> Path:
    """Writes a table, or columns, with the directories above the file, and returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = rows if isinstance(rows, pa.Table) else pa.table(rows)
    pq.write_table(table, path, **how)
    return path


def put_row_files(
    directory: Path,
    sizes: Iterable[int],
    name: str = "{}.parquet",
    *,
    first: int = 0,
    floats: Sequence[str] = (),
    **how: Any,
) -> Path:
    """Writes files of these sizes whose `row`s are numbered from `first` on through all of them,
    with columns that hold the number as a float, and returns the directory.
    """
    for number, num_rows in enumerate(sizes):
        row = pa.array(range(first, first + num_rows), pa.int64())
        columns = {"row": row} | dict.fromkeys(floats, row.cast(pa.float32()))
        put_parquet(directory / name.format(number), columns, **how)
        first += num_rows
    return directory
