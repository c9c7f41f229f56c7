"""Files to import, and what became of them. Locations are tested on the tables of `tests/table`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.extraction.conftest import document as document
from tests.extraction.conftest import raw as raw
from tests.extraction.conftest import spec as spec
from tests.extraction.conftest import write_raw as write_raw
from tests.table.conftest import schema as schema

Rows = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A directory of three CSV files in two partitions."""
    for name, text in {
        "dt=1/a.csv": "user,price\nu1,1.5\nu2,2.5\n",
        "dt=1/b.csv": "price,user\n3.5,u3\n",
        "dt=2/c.csv": "user,price\nu4,4.5\n",
    }.items():
        path = tmp_path / "log" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "log"


@pytest.fixture
def rows() -> Rows:
    """Reads the rows of a directory, file after file."""

    def read(directory: Path) -> list[dict[str, Any]]:
        paths = sorted(path for path in directory.rglob("*.parquet"))
        return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]

    return read
