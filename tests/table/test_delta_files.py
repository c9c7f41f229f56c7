"""What other writers say of their files: where they are, and how many rows they have."""

import os
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import featstore
from featstore.base.errors import InputError
from featstore.extraction.deletion import delete_rows
from featstore.table.delta import open_delta
from featstore.table.layout import data_file_name, new_tag
from featstore.table.vacuum import vacuum
from tests.stale_tables import N, X, Y, add, make
from tests.table.test_table_rules import field, foreign_table

ROWS: dict[str, Any] = {"x": [1, 2]}
FIELDS = [field("x", "long")]


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_shallow_clone_has_the_files_of_another_directory(tmp_path: Path, scheme: str) -> None:
    source = tmp_path / "a table"
    source.mkdir()
    Path(foreign_table(source, ROWS, FIELDS), "f.parquet").rename(source / "f.parquet")
    path = f"{scheme}{source}/f.parquet".replace(" ", "%20")
    url = foreign_table(tmp_path / "clone", ROWS, FIELDS, path=path)
    Path(url, "f.parquet").unlink()
    table = featstore.open_table(url)
    assert (table.num_rows, table.to_arrow().to_pydict()) == (2, ROWS)
    with featstore.FeatureLoader(url, slots=["x"]) as loader:
        assert [batch["x"].tolist() for batch in loader] == [[1, 2]]


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_vacuum_knows_files_that_the_log_names_by_absolute_paths(
    tmp_path: Path, scheme: str
) -> None:
    name = data_file_name(new_tag("run"), 0, 0)
    path = f"{scheme}{tmp_path}/table/{name}"
    url = foreign_table(tmp_path, ROWS, FIELDS, path=path)
    Path(url, "f.parquet").rename(Path(url, name))
    os.utime(Path(url, name), (0, 0))
    assert not vacuum(url, retain_s=0).removed
    assert featstore.open_table(url).to_arrow().to_pydict() == ROWS


def test_what_is_deleted_of_a_clone_leaves_the_files_of_the_other_table(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    file = Path(foreign_table(source, ROWS, FIELDS), "f.parquet").rename(source / "f.parquet")
    url = foreign_table(tmp_path / "clone", ROWS, FIELDS, path=f"file:{file}")
    Path(url, "f.parquet").unlink()
    assert delete_rows(url, "x = 1").num_rows == 1
    assert featstore.open_table(url).to_arrow().to_pydict() == {"x": [2]}
    assert DeltaTable(url).to_pyarrow_table().to_pydict() == {"x": [2]}
    assert vacuum(url, retain_s=0, grace_s=3600).removed == ()
    assert file.exists()


def test_a_slot_group_is_not_put_beside_the_files_of_another_table(tmp_path: Path) -> None:
    make(tmp_path)
    source, url = (tmp_path / "table").rename(tmp_path / "source"), tmp_path / "table"
    shutil.copytree(source / "_delta_log", url / "_delta_log")
    for file in (url / "_delta_log").glob("*.json"):
        file.write_text(file.read_text().replace('"path":"day', f'"path":"file:{source}/day'))
    shutil.copytree(source / "_groups", url / "_groups")
    with pytest.raises(InputError, match="lies in another table, as the files of a clone do"):
        add(tmp_path, N, X, Y, key="id")


@pytest.mark.parametrize(
    "stats",
    [
        "",
        "null",
        "[]",
        "not json",
        '{"numRecords": -1}',
        '{"numRecords": null}',
        '{"numRecords": 99999999999999999999}',
        '{"numRecords": 2, "minValues": {"x": NaN}}',
        '{"numRecords": 2, "minValues": {"x": 1e400}, "maxValues": {"x": "abc"}}',
        '{"numRecords": 2, "nullCount": {"x": {"a": 0.5}}}',
    ],
)
def test_rows_come_from_footers_where_statistics_are_odd(tmp_path: Path, stats: str) -> None:
    table = featstore.open_table(foreign_table(tmp_path, ROWS, FIELDS, stats=stats))
    assert (table.num_rows, table.to_arrow().to_pydict()) == (2, ROWS)


def test_files_are_in_the_partitions_of_several_keys_whatever_their_types(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "text": ["a", "b/c", None, "a", "b/c"],
        "day": [date(2026, 11, 1), date(2026, 11, 2), date(2026, 11, 1), None, date(2026, 11, 2)],
        "flag": [True, False, True, None, False],
        "number": [1, 1, 2, 2, 1],
    }
    rows = pa.table({**keys, "x": list(range(5))})
    write_deltalake(tmp_path / "table", rows, partition_by=list(keys))
    files = open_delta(str(tmp_path / "table")).data_files
    expected: list[dict[str, str | None]] = [
        {"text": "a", "day": "2026-11-01", "flag": "true", "number": "1"},
        {"text": "b/c", "day": "2026-11-02", "flag": "false", "number": "1"},
        {"text": None, "day": "2026-11-01", "flag": "true", "number": "2"},
        {"text": "a", "day": None, "flag": None, "number": "2"},
    ]
    assert sorted((dict(file.partition) for file in files), key=repr) == sorted(expected, key=repr)
    assert {tuple(total.partition.items()): total.num_rows for total in files.totals()} == {
        tuple(partition.items()): 1 + (partition["text"] == "b/c") for partition in expected
    }
    assert [file.num_rows for file in files.in_partitions(expected[1:2])] == [2]
