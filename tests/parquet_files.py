"""Parquet files that tests write."""

from collections.abc import Mapping
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
