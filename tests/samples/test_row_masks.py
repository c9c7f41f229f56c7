"""Deleted rows are no samples: the others have the indices that they would have without them."""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from featstore.base.errors import UnknownSampleError
from featstore.samples.sample_dataset import SampleDataset
from featstore.table.open import open_snapshot
from tests.loader.conftest import rows_table
from tests.masked_tables import masked_table

NUM_FILES, ROWS_PER_FILE = 3, 40
# All rows of the second file, and two of the others; row 7 of the last one has no label.
DELETED = {0: [0, 39], 1: list(range(40)), 2: [5, 6]}
LEFT = [
    40 * n + row for n in range(NUM_FILES) for row in range(ROWS_PER_FILE) if row not in DELETED[n]
]


@pytest.fixture
def table_url(tmp_path: Path) -> str:
    files = {f"{n}.parquet": (rows_table(40 * n, 40), DELETED[n]) for n in range(NUM_FILES)}
    url = masked_table(tmp_path / "table", files, row_group_size=16)
    assert open_snapshot(url).num_rows == len(LEFT)
    return url


def samples(table_url: str, **options: Any) -> SampleDataset:
    directory = str(Path(table_url).parent / "cache")
    return SampleDataset(table_url, staging={"directory": directory}, **{"slots": ["*"], **options})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, LEFT),
        ({"where": "row % 2 = 1"}, [row for row in LEFT if row % 2]),
        ({"labels": [{"name": "ripe", "null": "drop"}]}, [row for row in LEFT if row % 10]),
    ],
    ids=str,
)
def test_indices_count_the_rows_that_are_left(
    table_url: str, options: dict[str, Any], expected: list[int]
) -> None:
    with samples(table_url, id_column="note", extras=["note"], **options) as dataset:
        assert len(dataset) == len(expected)
        assert dataset[:]["row"].tolist() == expected
        assert [dataset[i]["row"].item() for i in range(len(expected))] == expected
        assert dataset.ids.to_pylist() == [f"n{row}" for row in expected]
        assert dataset.by_id([f"n{expected[3]}"])["row"].tolist() == [expected[3]]
        with pytest.raises(UnknownSampleError, match="no sample has 'n39'"):
            dataset.by_id(["n39"])
        again = pickle.loads(pickle.dumps(dataset))
        assert again[:]["row"].tolist() == expected


def test_a_shuffled_epoch_has_each_row_that_is_left_once(table_url: str) -> None:
    with samples(table_url) as dataset:
        loader = DataLoader(dataset, batch_size=7, shuffle=True, num_workers=1)
        rows = torch.cat([batch["row"] for batch in loader]).tolist()
    assert sorted(rows) == LEFT


def test_a_null_label_of_a_deleted_row_is_no_error(tmp_path: Path) -> None:
    rows = pa.table({"row": range(4), "y": pa.array([0.0, None, 1.0, None])})
    url = masked_table(tmp_path / "table", {"f.parquet": (rows, [1, 3])})
    with samples(url, slots=["row"], labels=["y"]) as dataset:
        assert dataset[:].labels["y"].tolist() == [0.0, 1.0]


def test_a_table_whose_rows_are_all_deleted_has_no_samples(tmp_path: Path) -> None:
    rows = pa.table({"row": range(4)})
    url = masked_table(tmp_path / "table", {"f.parquet": (rows, range(4))})
    with samples(url) as dataset:
        assert len(dataset) == 0
        assert dataset[:]["row"].tolist() == []
