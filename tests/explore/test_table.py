"""`open_table`, `Table` and `extract`: the functions of notebooks."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import featstore
from featstore.base.errors import (
    DataFileError,
    InputError,
    SelectionError,
    SpecError,
    TableNotFoundError,
)
from featstore.explore.table import Table
from featstore.extraction.job import ExtractJob
from featstore.reading.tables import read_tables
from featstore.spec.lint import lint
from featstore.table.open import open_snapshot
from tests.damaged_files import overwrite
from tests.history_tables import make_table
from tests.masked_tables import with_deleted
from tests.parquet_files import put_parquet

SPEC: Any = {
    "spec": 1,
    "inputs": {
        "id": "string",
        "user": "string",
        "price": "double",
        "tags": "list<string>",
        "clicked": "long",
    },
    "labels": {"click": "clicked"},
    "keep": ["id"],
    "slots": [
        {"slot": 101, "name": "user", "op": "hash", "of": "user"},
        {"slot": 102, "name": "log_price", "op": "log1p", "of": "price"},
        {"slot": 103, "name": "tags", "op": "hash", "of": "tags", "max_len": 3},
        {"slot": 104, "name": "prices", "op": "identity", "of": "price"},
    ],
    "output": {"rows_per_row_group": 4, "rows_per_file": 1_000},
}


def raw_rows(num_rows: int, month: int) -> pa.Table:
    rows = range(num_rows)
    return pa.table(
        {
            "id": [f"{month}-{i}" for i in rows],
            "user": [None if i % 5 == 0 else f"u{i % 7}" for i in rows],
            "price": [None if i % 3 == 0 else float(i) for i in rows],
            "tags": pa.array(
                [None if i % 4 == 0 else ["a", "b"][: i % 3] for i in rows], pa.list_(pa.string())
            ),
            "clicked": [i % 2 for i in rows],
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    for month in (1, 2):
        directory = tmp_path / "raw" / f"month=2013-0{month}"
        put_parquet(directory / "log.parquet", raw_rows(10, month))
    url = str(tmp_path / "table")
    report = featstore.extract(SPEC, str(tmp_path / "raw"), url, partition_from_path=["month"])
    assert report.committed
    assert report.num_rows == 20
    return featstore.open_table(url)


def test_a_table_describes_its_contents(table: Table) -> None:
    assert table.version == 0
    assert table.num_rows == 20
    assert [slot.name for slot in table.slots] == ["user", "log_price", "tags", "prices"]
    assert table.partitions == ({"month": "2013-01"}, {"month": "2013-02"})
    assert [commit.version for commit in table.history()] == [0]
    assert "version 0, 4 slots, 20 rows" in repr(table)
    assert "20 rows), 2 partitions</p><table>" in table._repr_html_()
    assert "<td>user</td><td>id</td><td>scalar</td>" in table._repr_html_()


def test_inspect_shows_slots_partitions_rows_versions_and_spec_hash(table: Table) -> None:
    text = str(table.inspect())
    assert table.snapshot.spec_hash is not None
    for expected in (
        table.snapshot.spec_hash,
        "103",
        "tags",
        "list",
        "hash(tags, max_len=3)",
        "month=2013-02",
        "log1p(price)",
    ):
        assert expected in text


def test_missing_values_are_null_again(table: Table) -> None:
    rows = table.to_arrow().filter(pa.compute.equal(pa.compute.field("month"), "2013-01"))
    raw = raw_rows(10, 1)
    assert rows["id"].to_pylist() == raw["id"].to_pylist()
    for slot, column in (("user", "user"), ("log_price", "price"), ("tags", "tags")):
        assert rows[slot].is_null().to_pylist() == raw[column].is_null().to_pylist(), slot
    assert rows["tags"].to_pylist()[3] == []
    np.testing.assert_allclose(rows["log_price"].to_pylist()[4], np.log1p(4), rtol=1e-6)


def test_only_selected_slots_and_rows_are_read(table: Table) -> None:
    rows = table.to_arrow(
        slots=["tags"], where="month = '2013-02' and prices is null and click = 1"
    )
    assert rows.column_names == ["tags", "click", "id", "month"]
    assert rows["id"].to_pylist() == ["2-3", "2-9"]


def test_data_files_are_pruned_by_partition(table: Table) -> None:
    assert [file.partition for file in table.data_files("month >= '2013-02'")] == [
        {"month": "2013-02"}
    ]
    assert len(table.data_files()) == 2


def test_a_profile_counts_present_values(table: Table) -> None:
    found = table.profile(where="month = '2013-01'", slots=["user", "tags"])
    assert found.slots == ("user", "tags")
    assert found.num_rows == 10
    assert found["user"]["coverage"] == pytest.approx(0.8)
    assert found.label_rates == {"click": pytest.approx(0.5)}


def test_head_and_sample_give_rows(table: Table) -> None:
    assert table.head(3)["id"].to_pylist() == ["1-0", "1-1", "1-2"]
    for slots in (["tags", "user"], ["user", "tags"]):
        assert table.head(1, slots=slots).column_names[:2] == slots
    sample = table.sample(5)
    assert sample.num_rows == 5
    assert sample.equals(table.sample(5))
    assert table.sample(500).num_rows == 20


def many_files(home: Path, num_files: int, num_rows: int) -> Table:
    """Plain files of rows with a number, ten a row group, in a partition each."""
    for number in range(num_files):
        (home / f"dt={number:03d}").mkdir()
        ids = pa.array(range(num_rows * number + 1, num_rows * (number + 1) + 1), pa.int64())
        path = home / f"dt={number:03d}" / "part.parquet"
        pq.write_table(pa.table({"id": ids}), path, row_group_size=10)
    return featstore.open_table(home)


def test_a_sample_has_rows_of_evenly_spaced_files(tmp_path: Path) -> None:
    table = many_files(tmp_path, num_files=40, num_rows=50)
    sample = table.sample(400)
    days = [int(day) for day in sample["dt"].to_pylist()]
    assert sorted(set(days)) == [i * 40 // 16 for i in range(16)]
    assert days == sorted(days)
    assert max(days.count(day) for day in days) < 50
    ids = sample["id"].to_pylist()
    assert len(set(ids)) == 400
    assert [(number - 1) // 50 for number in ids] == days
    assert table.sample(400, seed=1)["id"].to_pylist() != ids


def test_a_sample_of_some_slots_has_the_same_rows(table: Table) -> None:
    whole, some = table.sample(50, seed=3), table.sample(50, ["user"], seed=3)
    assert "user" in some.column_names
    assert {slot.name for slot in table.slots} & set(some.column_names) == {"user"}
    assert some.equals(whole.select(some.column_names))


def test_a_sample_reads_more_files_if_few_have_too_few_rows(tmp_path: Path) -> None:
    table = many_files(tmp_path, num_files=40, num_rows=5)
    assert len(set(table.sample(100)["id"].to_pylist())) == 100
    assert sorted(table.sample(1_000)["id"].to_pylist()) == list(range(1, 201))


def test_a_sample_reads_few_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, read = many_files(tmp_path, num_files=2, num_rows=500), list[Any]()

    def noted(*args: Any, **kwargs: Any) -> Any:
        read.append(kwargs.get("row_groups", args[4]))
        return read_tables(*args, **kwargs)

    monkeypatch.setattr("featstore.explore.table.read_tables", noted)
    assert table.sample(20).num_rows == 20
    assert len(read) == 2
    assert 2 <= sum(map(len, read)) <= 4


def test_frames_of_rows_keep_signs_beside_missing_ones(table: Table) -> None:
    rows = table.to_arrow()
    frame = rows.to_pandas()
    assert rows["user"].null_count
    assert str(frame["user"].dtype) == "Int64"
    assert frame["user"].dropna().tolist() == rows["user"].drop_null().to_pylist()
    assert str(table.sample(20).to_pandas()["user"].dtype) == "Int64"
    assert str(table.head(20).to_pandas()["user"].dtype) == "Int64"
    assert table.named(rows).to_pandas()["user"].notna().sum() == frame["user"].notna().sum()


def test_a_sample_of_no_rows_is_empty(tmp_path: Path) -> None:
    pq.write_table(raw_rows(0, 1), tmp_path / "empty.parquet")
    assert featstore.open_table(tmp_path / "empty.parquet").sample(3).num_rows == 0


def test_an_unknown_slot_answers_with_the_nearest_names(table: Table) -> None:
    with pytest.raises(
        SelectionError, match="no slot matches 'usr' among 4 slots; did you mean 'user'"
    ):
        table.to_arrow(slots=["usr"])


def test_a_table_url_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="nothing"):
        featstore.open_table(str(tmp_path / "nothing"))


@pytest.fixture
def plain(table: Table, tmp_path: Path) -> Path:
    """Copies of the data files of one partition, without a log."""
    return Path(shutil.copytree(Path(table.url) / "month=2013-01", tmp_path / "plain"))


def test_plain_parquet_has_no_versions(plain: Path) -> None:
    with pytest.raises(
        TableNotFoundError, match="expected a Delta table to open version 3, found plain Parquet"
    ):
        featstore.open_table(plain, version=3)


def test_a_directory_of_a_table_is_no_table(table: Table) -> None:
    with pytest.raises(
        TableNotFoundError,
        match=r"lies in the Delta table .*table, .* open .*table, and choose rows with where",
    ):
        featstore.open_table(f"{table.url}/month=2013-01")


@pytest.mark.parametrize("type_", [pa.int64(), pa.bool_(), pa.float64()])
def test_a_column_of_a_plain_directory_may_be_the_label(tmp_path: Path, type_: Any) -> None:
    """Its zeros are not missing. A spec's slots are no labels, and neither are lists or texts."""
    columns = {
        "item": [1, 1, 2, 2, 0],
        "click": pa.array([1, 0, 0, 0, None]).cast(type_),
        "text": ["a"] * 5,
        "tags": [[1]] * 5,
    }
    put_parquet(tmp_path / "plain" / "a.parquet", columns)
    table = featstore.open_table(tmp_path / "plain")
    found = table.label_profile("click")
    assert (found.num_known, found.num_positive) == (4, 1)
    assert found.table["slot"].to_pylist() == ["item", "tags"]
    assert [cell["rate"] for cell in found["item"]["cells"]] == [0.5, 0.0]
    assert table.label_profile("click", "click = 1").num_positive == 1
    with pytest.raises(SelectionError, match=r"no label 'clik'; the table has .*mean 'click'"):
        table.label_profile("clik")
    for name in ("text", "tags"):
        with pytest.raises(SelectionError, match=f"no label '{name}'"):
            table.label_profile(name)


def test_a_directory_and_a_glob_of_parquet_open_like_a_table(table: Table, plain: Path) -> None:
    whole = table.to_arrow(where="month = '2013-01'").drop_columns("month")
    for url in (f"{plain}", f"{plain}/*.parquet"):
        opened = featstore.open_table(url)
        assert opened.version is None
        assert opened.history() == []
        assert opened.to_arrow().select(whole.column_names).to_pylist() == whole.to_pylist()


def test_a_remote_table_is_staged_when_it_is_read(table: Table, loopback: "object") -> None:
    file = table.data_files()[0]
    loopback.files["/log.parquet"] = Path(file.url).read_bytes()  # type: ignore[attr-defined]
    remote = featstore.open_table(f"{loopback.url}/log.parquet")  # type: ignore[attr-defined]
    assert remote.to_arrow()["id"].to_pylist() == [f"1-{i}" for i in range(10)]


def test_extract_takes_either_files_or_a_dataframe(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected either an input URL or a DataFrame"):
        featstore.extract(SPEC, None, str(tmp_path / "table"))


def test_a_table_read_at_an_old_version_shows_the_old_rows(table: Table, tmp_path: Path) -> None:
    pq.write_table(raw_rows(3, 2), tmp_path / "raw" / "month=2013-02" / "log.parquet")
    featstore.extract(
        SPEC, str(tmp_path / "raw" / "month=2013-02"), table.url, partition={"month": "2013-02"}
    )
    assert featstore.open_table(table.url).num_rows == 13
    assert featstore.open_table(table.url, version=0).num_rows == 20
    assert table.to_arrow().num_rows == 20


def test_a_null_partition_of_a_foreign_table_is_read_as_null(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3], "day": pa.array([1, 2, None], pa.int32())})
    write_deltalake(tmp_path / "theirs", rows, partition_by=["day"])
    table = featstore.open_table(tmp_path / "theirs")
    assert sorted(table.to_arrow()["day"].to_pylist(), key=str) == [1, 2, None]
    assert [file.partition for file in table.data_files("day >= 2")] == [{"day": "2"}]
    assert "day=None" in str(table.inspect())


def test_a_spec_that_contradicts_its_lock_is_not_extracted(tmp_path: Path) -> None:
    """Nor with any other entry point, since all of them make a job, which fails."""
    spec = tmp_path / "s.json"
    put_parquet(tmp_path / "raw" / "a.parquet", raw_rows(10, 1))
    spec.write_text(json.dumps(SPEC))
    assert lint(str(spec), update_lock=True).ok
    slots = [
        slot if slot["slot"] != 102 else slot | {"op": "clip", "min": 0.0} for slot in SPEC["slots"]
    ]
    spec.write_text(json.dumps(SPEC | {"slots": slots}))
    for given in (spec, featstore.load_spec(spec)):
        with pytest.raises(
            SpecError,
            match=r"s\.json: slots\[1\]: slot 102 .* has another meaning .* --update-lock",
        ):
            featstore.extract(given, tmp_path / "raw", tmp_path / "table", partition={"dt": "1"})
        with pytest.raises(SpecError, match=r"slot 102 .* has another meaning"):
            ExtractJob(
                spec=featstore.load_spec(given) if isinstance(given, Path) else given,
                input_url="raw",
                table_url="table",
            )
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize("read", [Table.to_arrow, Table.head, Table.sample, Table.profile])
def test_a_damaged_file_is_named_with_its_table_and_what_to_do(
    tmp_path: Path, read: Callable[[Table], object]
) -> None:
    path = put_parquet(tmp_path / "a.parquet", {"x": np.random.default_rng(1).random(5_000)})
    table = featstore.open_table(tmp_path)
    overwrite(path, 4)
    with pytest.raises(DataFileError, match=rf"^a\.parquet: .*; table {tmp_path}: restore the"):
        read(table)


@pytest.mark.parametrize("where", [None, "clicks_length > 3", "row % 2 = 0"])
def test_the_first_rows_have_the_lists_of_histories(tmp_path: Path, where: str | None) -> None:
    fat = make_table(tmp_path / "table", 7, [[40, 25, 7], [30]])
    snapshot = open_snapshot(str(tmp_path / "table"))
    gone = {next(iter(snapshot.data_files)).path: [0, 1, 2, 40]}
    slots = ["row", "clicks_*"]
    found = Table(with_deleted(snapshot, gone)).head(80, slots, where)
    assert found.column_names == [*slots[:1], *fat.columns(), "click", "ts"]
    rows = [row or 0 for row in found["row"].to_pylist()]
    left = [row for row in range(102) if row not in (0, 1, 2, 40)]
    if where is not None:
        left = [
            row for row in left if (len(fat.item[row]) > 3 if "length" in where else not row % 2)
        ]
    assert rows == left[:80]
    for name, column in fat.columns().items():
        assert found[name].to_pylist() == [column[row] for row in rows]
    only = Table(snapshot).head(3, ["clicks_item"])
    assert only.column_names == ["clicks_item", "click", "ts"]
    assert only["clicks_item"].to_pylist() == fat.item[:3]
    assert Table(snapshot).head(3, ["row"]).column_names == ["row", "click", "ts"]
