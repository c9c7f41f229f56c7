"""Staged files that somebody removes while they wait for their reader."""

from pathlib import Path

import pytest

from featstore.loader.feature_loader import FeatureLoader
from tests.parquet_files import put_row_files

NUM_FILES, FILE_ROWS = 6, 500


@pytest.mark.parametrize("what", ["files", "files and records"])
def test_staged_files_that_somebody_removes_are_read_on(tmp_path: Path, what: str) -> None:
    put_row_files(tmp_path / "table", [FILE_ROWS] * NUM_FILES, row_group_size=50)
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
