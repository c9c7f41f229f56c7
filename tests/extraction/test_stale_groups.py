"""A slot group whose base files another engine has rewritten is not folded, and can be written again:
also where a part of it was folded.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

import featstore
from featstore import api
from featstore.base.errors import InputError, StaleGroupError
from featstore.extraction.deletion import delete_rows
from featstore.extraction.rewriting import compact
from featstore.table.open import open_snapshot
from tests.stale_tables import REWRITES, N, X, Y, add, make, rewrite, spec_of, write_raw


@pytest.fixture
def url(tmp_path: Path) -> str:
    return make(tmp_path)


def assert_whole(url: str, num_rows: int) -> None:
    """Each row has its own x: that of its id."""
    rows = featstore.open_table(url).to_arrow()
    assert rows.num_rows == num_rows
    assert rows["x"].to_pylist() == [float(row) for row in rows["id"].to_pylist()]


@pytest.mark.parametrize("how", REWRITES)
def test_a_stale_group_is_not_folded_and_is_when_it_was_written_again(
    url: str, tmp_path: Path, how: str
) -> None:
    rewrite(url, how)
    num_rows, version = open_snapshot(url).num_rows, open_snapshot(url).version
    files = sorted(Path(url).rglob("*.parquet"))
    with pytest.raises(StaleGroupError, match=r"so x would be missing .* --group more --key"):
        compact(url)
    assert (open_snapshot(url).version, sorted(Path(url).rglob("*.parquet"))) == (version, files)
    assert add(tmp_path, N, X, key="id").committed
    assert_whole(url, num_rows)
    assert compact(url).groups == ("more",)
    assert_whole(url, num_rows)


def test_only_partitions_in_which_it_is_stale_need_be_written_again(
    url: str, tmp_path: Path
) -> None:
    rewrite(url, "delete")
    add(tmp_path, N, X, day="1", key="id")
    assert_whole(url, 99)
    assert not open_snapshot(url).groups[0].stale


def cut_anew(url: str, row_groups: tuple[int, ...]) -> None:
    """Rewrites the rows of day 1 as one file with these row groups. Spark cuts them by bytes."""
    rows = DeltaTable(url).to_pyarrow_table(filters=[("day", "=", "1")]).drop_columns(["day"])
    path = Path(url) / "day=1" / "part-00000-x.c000.snappy.parquet"
    with pq.ParquetWriter(path, rows.schema) as writer:
        for num_rows in row_groups:
            writer.write_table(rows.slice(0, num_rows))
            rows = rows.slice(num_rows)
    stats = json.dumps({"numRecords": sum(row_groups)})
    name, size_bytes = str(path.relative_to(url)), path.stat().st_size
    added = AddAction(name, size_bytes, {"day": "1"}, 0, True, stats)
    table = DeltaTable(url)
    table.create_write_transaction(
        [added], "overwrite", table.schema(), ["day"], [("day", "=", "1")]
    )


def test_a_group_is_written_beside_files_whose_row_groups_differ_in_size(
    url: str, tmp_path: Path
) -> None:
    cut_anew(url, (7, 20, 3, 20))
    with pytest.raises(StaleGroupError):
        featstore.open_table(url).to_arrow()
    assert add(tmp_path, N, X, day="1", key="id").committed
    assert_whole(url, 100)
    with featstore.FeatureLoader(url, slots=["n", "x"]) as loader:
        assert sorted(row for batch in loader for row in batch["x"].tolist()) == [
            float(row) for day in (1, 2) for row in range(day * 100, day * 100 + 50)
        ]
    compact(url)
    assert_whole(url, 100)


def test_a_group_of_which_a_part_was_folded_is_written_again(url: str, tmp_path: Path) -> None:
    """A deletion folds what there is of the group, and keeps the rest in mind."""
    rewrite(url, "delete")
    delete_rows(url, "n = 130")
    names = [set(pa.parquet.read_schema(file.url).names) for file in open_snapshot(url).data_files]
    assert ["x" in found for found in names].count(True) == 2
    with pytest.raises(StaleGroupError, match="beside 1 of the data files, with 19 rows"):
        featstore.open_table(url).to_arrow()
    with pytest.raises(StaleGroupError):
        compact(url)
    assert add(tmp_path, N, X, key="id").committed
    assert_whole(url, 98)
    compact(url)
    assert_whole(url, 98)


def test_slots_that_some_files_of_a_day_lack_are_added(url: str, tmp_path: Path) -> None:
    """After a compaction another engine has appended rows without the slot."""
    compact(url)
    DeltaTable(url).delete("id = 105")
    columns = {name: pa.array([105], pa.int64()) for name in ("n", "id", "click")}
    rows = pa.table(columns | {"day": pa.array(["1"])})
    write_deltalake(url, rows, mode="append", schema_mode="merge")
    assert add(tmp_path, N, X, day="1", key="id").committed
    assert_whole(url, 100)


def test_slots_that_all_files_have_are_not_added(url: str, tmp_path: Path) -> None:
    compact(url)
    with pytest.raises(InputError, match=r"all slots of the spec are in .* already"):
        add(tmp_path, N, X)
    assert add(tmp_path, N, X, Y, key="id").committed
    bound = [group for file in open_snapshot(url).data_files for group in file.groups]
    assert {tuple(pa.parquet.read_schema(group.url).names) for group in bound} == {("y",)}


def test_nothing_is_deleted_by_values_that_are_not_known(url: str) -> None:
    rewrite(url, "delete")
    version = open_snapshot(url).version
    for where in ("x is null", "x > 110 or n = 102"):
        with pytest.raises(StaleGroupError, match="so x would be missing there"):
            delete_rows(url, where)
    assert open_snapshot(url).version == version
    assert delete_rows(url, "x > 210 and day = '2'").num_rows == 39
    assert delete_rows(url, "day = '1'").num_rows == 49


def test_a_deletion_keeps_a_group_that_is_stale_beside_other_files(
    url: str, tmp_path: Path
) -> None:
    """It was read beside the files of day 2 alone, which are rewritten."""
    DeltaTable(url).optimize.compact(partition_filters=[("day", "=", "1")])
    delete_rows(url, "n = 201")
    assert [group.name for group in open_snapshot(url).groups] == ["more"]
    with pytest.raises(StaleGroupError, match="with 50 rows"):
        featstore.open_table(url).to_arrow()
    add(tmp_path, N, X, day="1", key="id")
    assert_whole(url, 99)


def test_stale_labels_are_not_written_anew_as_if_they_were_those_of_the_table(
    url: str, tmp_path: Path
) -> None:
    ripe = write_raw(tmp_path / "ripe", 1)
    api.relabel(spec_of(N), ripe, url, key="id", partition_from_path=["day"])
    rewrite(url, "delete")
    with pytest.raises(StaleGroupError, match="so click would be as first written there"):
        delete_rows(url, "n = 130")
    assert delete_rows(url, "n = 230").num_rows == 1
    with pytest.raises(StaleGroupError, match="so click would be as first written there"):
        compact(url)
