"""Deleted rows are in no answer about a table."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import featstore
from featstore.base.errors import DataFileError, InputError
from featstore.explore.table import Table, open_table
from featstore.table.row_masks import MaskRecord, RowMask
from featstore.table.snapshot import FileList
from tests.masked_tables import delete_by_vector, masked_table
from tests.stale_tables import N, X, add, make, spec_of, write_raw

NUM_ROWS = 100
DELETED = [0, 3, *range(20, 40), 99]
LEFT = [row + 1 for row in range(NUM_ROWS) if row not in DELETED]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    rows = pa.table({"x": range(1, NUM_ROWS + 1), "y": np.arange(NUM_ROWS) / 2})
    files = {"dt=1/f.parquet": (rows, DELETED), "dt=2/g.parquet": (rows, [])}
    return open_table(masked_table(tmp_path / "table", files, keys=["dt"], row_group_size=10))


def test_rows_are_those_that_are_left(table: Table) -> None:
    assert table.num_rows == len(LEFT) + NUM_ROWS
    assert table.to_arrow()["x"].to_pylist() == [*LEFT, *range(1, NUM_ROWS + 1)]
    assert table.to_arrow(where="x % 2 = 0 and dt = '1'")["x"].to_pylist() == [
        x for x in LEFT if x % 2 == 0
    ]
    assert table.head(3)["x"].to_pylist() == LEFT[:3]
    described = table.inspect()
    assert described.num_rows == table.num_rows
    assert [p.num_rows for p in described.partitions] == [len(LEFT), NUM_ROWS]
    assert table.profile(where="dt = '1'", stored=True).num_rows == len(LEFT)


@pytest.mark.parametrize("num_rows", [1, 7, 60, len(LEFT) + NUM_ROWS, 1000])
def test_samples_are_drawn_from_the_rows_that_are_left(table: Table, num_rows: int) -> None:
    for seed in range(5):
        found = table.sample(num_rows, seed=seed)
        assert len(found) == min(num_rows, len(LEFT) + NUM_ROWS)
        rows = list(zip(found["dt"].to_pylist(), found["x"].to_pylist(), strict=True))
        assert len(set(rows)) == len(rows)
        assert all(x in LEFT for dt, x in rows if dt == "1")


@pytest.mark.parametrize("engine", ["duckdb", "polars"])
def test_a_view_that_would_deliver_deleted_rows_is_refused(table: Table, engine: str) -> None:
    with pytest.raises(InputError, match=rf"/table: Table\.{engine}\(\): .* found row masks"):
        getattr(table, engine)()


def test_stored_statistics_are_not_those_of_the_rows_that_are_left(tmp_path: Path) -> None:
    raw, url = write_raw(tmp_path / "raw", 0), str(tmp_path / "table")
    featstore.extract(spec_of(N, X), raw, url, partition_from_path=["day"])
    assert "stored statistics" in open_table(url).profile(stored=True).source
    delete_by_vector(url, [0, 1, 2])
    table = open_table(url)
    assert table.num_rows == 97
    found = table.profile(stored=True)
    assert found.num_rows == 97
    assert "stored statistics" not in found.source
    # The other day's files are as they were.
    assert "stored statistics" in table.profile(where="day = '2'", stored=True).source


def test_slot_groups_beside_deleted_rows_are_refused(tmp_path: Path) -> None:
    url = make(tmp_path)
    add(tmp_path, N, X)
    delete_by_vector(url, [0, 1, 2])
    with pytest.raises(DataFileError, match=r"/table: expected a table with slot groups \(more\)"):
        open_table(url)


def test_the_repr_reads_no_store(table: Table, tmp_path: Path) -> None:
    assert f"{len(LEFT) + NUM_ROWS} rows)" in repr(table)
    gone = MaskRecord("iceberg-positions", str(tmp_path / "none"), text="f")
    files = (replace(file, mask=RowMask((gone,))) for file in table.snapshot.data_files)
    unknown = Table(replace(table.snapshot, data_files=FileList.of(files)))
    assert repr(unknown).endswith(" slots, 200 rows with deleted ones)")
    assert "2 partitions" in unknown._repr_html_()
    assert unknown.partitions == ({"dt": "1"}, {"dt": "2"})
    with pytest.raises(DataFileError, match="found no such file"):
        unknown.num_rows  # noqa: B018
