"""A small table of several files, small row groups, and every kind of column."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featstore.base.schema import SlotSchema
from featstore.decoded.file_sources import files_in_place
from featstore.dispatch.plan import Split
from featstore.dispatch.terms import Claim
from featstore.loader.batches import split_reader
from featstore.loader.batches.split_reader import Window, Work
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.iteration.iteration import Iteration
from featstore.loader.iteration.job import Job
from featstore.loader.request.matching import Partition, SelectedFiles
from featstore.loader.request.request import Request, resolve
from featstore.loader.table_source import TableSource
from featstore.table.open import open_snapshot
from featstore.table.snapshot import DataFile, Snapshot
from featstore.tensors.batch import Batch
from tests.parquet_files import put_parquet

ROWS_PER_FILE = (70, 0, 45, 101, 64)
NUM_ROWS = sum(ROWS_PER_FILE)


def rows_table(first: int, num_rows: int) -> pa.Table:
    """`row` is the row's number in the table, from which every other column follows."""
    row = np.arange(first, first + num_rows)
    return pa.table(
        {
            "row": pa.array(row, pa.int64()),
            "half": pa.array(row / 2, pa.float32()),
            "tags": pa.array(
                [None if r % 7 == 3 else list(range(1, r % 5 + 1)) for r in row.tolist()],
                pa.list_(pa.int64()),
            ),
            "pair": pa.array([[r, -r] for r in row.tolist()], pa.list_(pa.int64(), 2)),
            "click": pa.array(row % 2 == 1),
            "ripe": pa.array([None if r % 10 == 0 else r % 3 for r in row.tolist()], pa.float64()),
            "note": pa.array([f"n{r}" for r in row.tolist()], pa.string()),
        }
    )


def rows_of(batches: Iterable[Batch]) -> list[int]:
    """The numbers of the rows, in the order of delivery."""
    return [row for batch in batches for row in batch["row"].tolist()]


@pytest.fixture(autouse=True, scope="module")
def _few_rows_at_once() -> Iterator[None]:
    """Small row groups are read together: here so few of them that a file has several windows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_reader, "MOST_ROWS", 32)
        yield


@pytest.fixture(scope="module")
def snapshot(table_url: str) -> Snapshot:
    return open_snapshot(table_url)


def loader_for(table_url: str, **options: Any) -> FeatureLoader:
    """A loader of all columns."""
    return FeatureLoader(
        table_url,
        **{"slots": ["*"], "labels": ["click"], "extras": ["note"], "batch_size": 23, **options},
    )


def merged_state(loaders: Sequence[FeatureLoader]) -> dict[str, Any]:
    """The state that loaders leave which count what they have delivered, and end."""
    for loader in loaders:
        loader.ack()
    states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
    for loader in loaders:
        loader.close()
    return FeatureLoader.merge_states(states)


@pytest.fixture(scope="session")
def table_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory of Parquet, partitioned by day, 280 rows in 5 files, one of them without rows, 16
    rows a row group.
    """
    root = tmp_path_factory.mktemp("table")
    first = 0
    for day, num_rows in enumerate(ROWS_PER_FILE):
        put_parquet(
            root / f"dt=2026-11-0{day + 1}" / "part.parquet",
            rows_table(first, num_rows),
            row_group_size=16,
        )
        first += num_rows
    return str(root)


def data_file(path: Path, table: pa.Table, row_group_size: int = 16) -> DataFile:
    """The table, written as a data file that is called as the path's last part."""
    put_parquet(path, table, row_group_size=row_group_size)
    return DataFile(
        path=path.name,
        url=str(path),
        size_bytes=path.stat().st_size,
        num_rows=table.num_rows,
        partition={},
    )


def work_on(file: DataFile, index: int = 0, start_row: int = 0, end_row: int = 0) -> Work:
    """A claim on all of the file, read where it is."""
    split = Split(path=file.path, num_rows=file.num_rows)
    claim = Claim(index=index, split=split, fence=1, start_row=start_row, end_row=end_row)
    partition = Partition(values=file.partition, is_decided=False)
    return Work(claim=claim, partition=partition, files=files_in_place(file))


def request_of(schema: pa.Schema, *slots: str, **arguments: Any) -> Request:
    """A request for slots of files of this schema."""
    return resolve(SlotSchema.from_arrow(schema), slots=slots, **arguments)


def rows_in(windows: Iterable[Window]) -> list[list[int]]:
    """The numbers of the rows of each window, in the order of delivery."""
    found = []
    for window in windows:
        index, _ = window.select()
        rows = window.rows if index is None else window.rows.take(index)
        found.append(rows.table.column("row").to_pylist())
    return found


def source_of(loader: FeatureLoader) -> TableSource:
    """What a loader of one table is made of."""
    assert isinstance(loader._source, TableSource)
    return loader._source


def iteration_of(loader: FeatureLoader) -> Iteration:
    """Its iteration under way."""
    found = source_of(loader).iteration
    assert found is not None
    return found


def job_on(*files: DataFile, schema: pa.Schema, **options: Any) -> Job:
    """A job on these files, a split each, that reads the slot `row`."""
    known: dict[str, Any] = {"request": request_of(schema, "row"), "batch_size": 16}
    partition = Partition(values={}, is_decided=True)
    return Job(
        files=SelectedFiles.of((file, partition) for file in files),
        table="t",
        splits=tuple(Split(path=file.path, num_rows=file.num_rows) for file in files),
        **{**known, **options},
    )
