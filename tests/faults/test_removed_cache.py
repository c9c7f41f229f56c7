"""Somebody removes the directory of staged files while it is in use: it is staged again, or the
cache is named.
"""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featstore.base.errors import StagingError
from featstore.files.transfer import read_span
from featstore.loader.feature_loader import FeatureLoader
from featstore.staging import Source, StageItem, Stager, Staging
from tests.interposed import preceded
from tests.parquet_files import put_parquet

ROWS_PER_FILE, NUM_FILES = 400, 12


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for number in range(NUM_FILES):
        rows = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        put_parquet(
            tmp_path / "table" / f"{number:02}.parquet",
            {"row": pa.array(rows, pa.int64()), "text": [f"of row {row}" for row in rows]},
            row_group_size=100,
        )
    return tmp_path / "table"


def take_away(directory: Path, number: int) -> bool:
    """Removes it in one step, so that nothing appears in it meanwhile; whether it was there."""
    try:
        away = directory.rename(directory.with_name(f"away-{number}"))
    except FileNotFoundError:
        return False
    shutil.rmtree(away)
    return True


@pytest.mark.parametrize("mode", ["whole", "ranges"])
@pytest.mark.parametrize("limit", [{}, {"max_bytes_per_s": 500_000}])
def test_a_loader_whose_cache_is_removed_while_it_runs_reads_every_row_once(
    tmp_path: Path, table: Path, mode: str, limit: dict[str, Any]
) -> None:
    """With a limit there is a download under way at nearly all times, and the limit's own file."""
    staging = {"directory": str(tmp_path / "cache"), "mode": mode, "ahead_files": 2} | limit
    seen: list[int] = []
    num_removed = 0
    with FeatureLoader(
        str(table), slots=["row"], labels=[], batch_size=100, staging=staging
    ) as loader:
        for number, batch in enumerate(loader):
            seen += batch["row"].tolist()
            if number % 5 == 0:
                num_removed += take_away(tmp_path / "cache", number)
    assert sorted(seen) == list(range(NUM_FILES * ROWS_PER_FILE))
    assert num_removed > 2


def test_a_cache_that_somebody_removes_at_each_download_is_named_and_not_the_table(
    tmp_path: Path, table: Path
) -> None:
    file, cache, faults = table / "00.parquet", tmp_path / "cache", list[bool]()
    read = preceded(read_span, lambda: faults.append(take_away(cache, len(faults))))
    stager = Stager(Staging(directory=str(cache), mode="whole"), Source(read=read))
    item = StageItem(key=0, url=str(file), size_bytes=file.stat().st_size)
    with (
        stager,
        pytest.raises(
            StagingError, match=rf"^{cache}/\S+: expected it in the cache, found nothing"
        ),
    ):
        next(stager.stage([item]))
    assert faults == [True] * 5
