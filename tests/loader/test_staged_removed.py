"""Staged files that somebody removes while they wait for their reader."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.loader.feature_loader import FeatureLoader

NUM_FILES, FILE_ROWS = 6, 500


@pytest.mark.parametrize("what", ["files", "files and records"])
def test_staged_files_that_somebody_removes_are_read_on(tmp_path: Path, what: str) -> None:
    (tmp_path / "table").mkdir()
    for file in range(NUM_FILES):
        row = pa.array(range(file * FILE_ROWS, (file + 1) * FILE_ROWS), pa.int64())
        pq.write_table(
            pa.table({"row": row}), tmp_path / "table" / f"{file}.parquet", row_group_size=50
        )
    staging = {"mode": "whole", "directory": str(tmp_path / "cache")}
    rows, num_removed = [], 0
    with FeatureLoader(
        str(tmp_path / "table"), slots=["row"], batch_size=50, staging=staging
    ) as loader:
        for number, batch in enumerate(loader):
            rows += batch["row"].tolist()
            if number % 10 != 3:  # Once for each file: not at every moment.
                continue
            for path in (tmp_path / "cache").rglob("*.staged" if what == "files" else "*"):
                num_removed += path.suffix == ".staged"
                path.unlink(missing_ok=True) if path.is_file() else None
    assert sorted(rows) == list(range(NUM_FILES * FILE_ROWS))
    assert num_removed, "nothing was removed"
