"""`featstore table inspect --history`: the commits of a table, for people to read."""

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

import featstore
from featstore.base.errors import TableNotFoundError
from featstore.explore.description import table_history
from featstore.explore.table import open_table
from tests.history_tables import HISTORY, US, make_table
from tests.parquet_files import put_parquet

SPEC = {
    "spec": 1,
    "inputs": {"user": "string"},
    "slots": [{"slot": 101, "name": "user", "op": "hash", "of": "user"}],
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three days, of which the last two were extracted in one commit each."""
    spec = featstore.load_spec(SPEC)
    for day, users in (("01", ["a"]), ("02", ["a", "b"]), ("03", ["c"])):
        raw = put_parquet(tmp_path / f"{day}.parquet", {"user": users})
        featstore.extract(spec, raw, tmp_path / "table", partition={"dt": f"2026-11-{day}"})
    return tmp_path / "table"


def test_a_line_for_each_commit_newest_first(table: Path) -> None:
    lines = str(table_history(str(table))).splitlines()
    now = datetime.datetime.now(datetime.UTC)
    cells = [line.split() for line in lines[2:]]
    assert [(of[0], of[-5], of[-3]) for of in cells] == [
        ("2", "dt=2026-11-03", "1"),
        ("1", "dt=2026-11-02", "2"),
        ("0", "dt=2026-11-01", "1"),
    ]
    assert cells[0][1] in {str((now - datetime.timedelta(minutes=10)).date()), str(now.date())}
    assert str(open_table(table).inspect().spec_hash).startswith(cells[0][-1])


def test_several_partitions_are_named_by_their_ends(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        put_parquet(tmp_path / "raw" / f"dt=2026-11-0{day}" / "part.parquet", {"user": ["a"]})
    featstore.extract(
        featstore.load_spec(SPEC), tmp_path / "raw", tmp_path / "t", partition_from_path=["dt"]
    )
    assert "dt=2026-11-01 to dt=2026-11-03 (3)" in str(table_history(str(tmp_path / "t")))


def test_a_commit_that_only_names_slot_groups_names_them(table: Path) -> None:
    wider = featstore.load_spec(
        SPEC
        | {
            "slots": [
                {"slot": 101, "name": "user", "op": "hash", "of": "user"},
                {"slot": 102, "name": "twice", "op": "cross", "of": ["user", "user"]},
            ]
        }
    )
    raw = table.parent / "03.parquet"
    featstore.extract(wider, raw, table, partition={"dt": "2026-11-03"}, group="extra")
    newest = str(table_history(str(table))).splitlines()[2]
    assert "slot groups: extra (version 0)" in newest
    [commit] = table_history(str(table), last=1).commits
    [file] = open_table(table).data_files("dt = '2026-11-03'")
    [of_group] = file.groups
    assert commit.metadata is not None
    figures = (commit.metadata.num_files, commit.metadata.num_rows, commit.metadata.size_bytes)
    assert figures == (1, 1, of_group.size_bytes)
    described = open_table(table).inspect()
    assert [(g.num_files, g.num_rows, g.size_bytes) for g in described.groups] == [figures]
    lines = [" ".join(line.split()) for line in str(described).splitlines()]
    assert f"extra 0 1 1 {of_group.size_bytes:,} -" in lines


def test_only_the_last_ones_and_how_many_there_are_besides(table: Path) -> None:
    found = table_history(str(table), last=1)
    assert [commit.version for commit in found.commits] == [2]
    assert str(found).endswith("(and 2 earlier ones)")
    assert found.as_dict()["num_more"] == 2


def test_commits_of_another_writer_have_no_figures(table: Path) -> None:
    rows = DeltaTable(str(table)).to_pyarrow_table()
    write_deltalake(str(table), rows.slice(0, 1), mode="append")
    newest = str(table_history(str(table))).splitlines()[2]
    assert "(by another writer)" in newest
    assert table_history(str(table)).as_dict()["commits"][0]["metadata"] is None


def test_checksums_of_files_are_left_out_of_json(table: Path) -> None:
    metadata = table_history(str(table)).as_dict()["commits"][0]["metadata"]
    assert metadata["num_rows"] == 1
    assert "crc32s" not in metadata


def test_histories_and_their_slots_are_shown_by_name(tmp_path: Path) -> None:
    history = replace(HISTORY, window_us=7_200 * US)
    make_table(tmp_path / "table", 3, [[20]], history)
    found = open_table(tmp_path / "table").inspect()
    names = [column.name for column in found.columns if column.slot is not None]
    assert names == ["row", "tags", "clicks_item", "clicks_price", "clicks_age"]
    assert found.as_dict()["histories"] == (
        {
            "name": "clicks",
            "key": "user_id",
            "as_of": "ts",
            "at": "event_ts",
            "logged_at": None,
            "max_len": 20,
            "window": "2h",
        },
    )
    lines = [line.split() for line in str(found).splitlines()]
    assert ["303", "clicks_age", "float", "list", "time_since"] in lines
    assert ["history", "key", "as_of", "at", "logged_at", "max_len", "window"] in lines
    assert ["clicks", "user_id", "ts", "event_ts", "20", "2h"] in lines


def test_no_table_is_told(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="none"):
        table_history(str(tmp_path / "none"))


def test_inspect_shows_the_weight_and_what_slots_share(tmp_path: Path) -> None:
    spec: Any = {
        "spec": 1,
        "inputs": {"item": "string", "items": "list<string>", "w": "double"}
        | {"prices": "list<double>"},
        "weight": "w",
        "sequences": {"clicks": {"of": ["items", "prices"]}},
        "slots": [
            {"slot": 1, "name": "item_id", "op": "hash", "of": "item"},
            {"slot": 2, "name": "item_ids", "op": "hash", "of": "items", "share_slot": 1},
        ],
    }
    rows = {"item": ["a"], "items": [["a"]], "prices": [[2.0]], "w": [1.0]}
    raw = put_parquet(tmp_path / "raw.parquet", rows)
    featstore.extract(spec, raw, tmp_path / "table", partition={"dt": "1"})
    lines = [
        " ".join(line.split())
        for line in str(open_table(tmp_path / "table").inspect()).splitlines()
    ]
    assert "2 item_ids id list hash(items) signs of slot 1, events of clicks" in lines
    assert "w weight double" in lines
