"""Raw files of users whose rows are numbered."""

from pathlib import Path
from typing import Any

from tests.parquet_files import put_parquet


def write_raw(directory: Path, rows: range = range(500), **same: Any) -> str:
    """Writes a file of 100-row row groups; `same` are columns of one value."""
    columns = {"row": list(rows), "user": [f"u{row}" for row in rows]}
    columns |= {name: [value] * len(rows) for name, value in same.items()}
    put_parquet(directory / "a.parquet", columns, row_group_size=100)
    return str(directory)
