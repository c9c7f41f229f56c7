"""docs/howto/frameworks.md, on a small table."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.pages.page import run_page
from tests.parquet_files import put_parquet

NUM_FILES, ROWS_PER_FILE = 4, 250


@pytest.mark.slow
def test_each_recipe_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(1)
    for number in range(NUM_FILES):
        table = pa.table(
            {
                "price": pa.array(draw.random(ROWS_PER_FILE), pa.float32()),
                "tags": pa.array([[1, 2]] * ROWS_PER_FILE, pa.list_(pa.int64())),
                "click": pa.array(draw.integers(0, 2, ROWS_PER_FILE), pa.int64()),
            }
        )
        put_parquet(tmp_path / "data" / "ctr" / f"{number}.parquet", table, row_group_size=64)
    monkeypatch.chdir(tmp_path)
    assert run_page("docs/howto/frameworks.md", tmp_path) == 10
