"""Replay: logged raw rows give the table's rows again, and every difference is counted and shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featstore
from featstore.base.errors import InputError
from featstore.explore.replay import pair_slices, replay
from tests.parquet_files import put_parquet

DOCUMENT: dict[str, Any] = {
    "spec": 1,
    "inputs": {"user": "string", "tags": "list<string>", "price": "double", "clicked": "long"},
    "labels": {"click": "clicked"},
    "keep": ["price"],
    "slots": [
        {"slot": 101, "name": "user_id", "op": "hash", "of": "user"},
        {"slot": 102, "name": "tag_ids", "op": "hash", "of": "tags", "max_len": 3},
        {"slot": 103, "name": "price_log", "op": "log1p", "of": "price"},
    ],
    "output": {"rows_per_row_group": 100, "rows_per_file": 250},
}


def rows_of(num_rows: int) -> pa.Table:
    rows = range(num_rows)
    columns = {
        "user": [None if row % 11 == 0 else f"u{row % 50}" for row in rows],
        "tags": [None if row % 13 == 0 else [f"t{row % 7}"] * (row % 5) for row in rows],
        "price": [float("nan") if row % 17 == 0 else row / 3 for row in rows],
        "clicked": [row % 2 for row in rows],
    }
    return pa.table(columns)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for month, num_rows in (("1", 640), ("2", 130)):
        for i in range(2):
            part = rows_of(num_rows).slice(i * num_rows // 2, num_rows // 2)
            place = tmp_path / "raw" / f"month={month}" / f"{i}.parquet"
            put_parquet(place, part, row_group_size=40)
    return tmp_path / "raw"


@pytest.fixture
def table(raw: Path, tmp_path: Path) -> str:
    spec = featstore.load_spec(DOCUMENT)
    featstore.extract(spec, str(raw), str(tmp_path / "table"), partition_from_path=["month"])
    return str(tmp_path / "table")


Replay = Callable[..., Any]


@pytest.fixture
def again(raw: Path, table: str) -> Replay:
    """A replay with other slots than those of the table."""

    def run(**changes: dict[str, Any]) -> Any:
        slots = [entry | changes.get(entry["name"], {}) for entry in DOCUMENT["slots"]]
        spec = featstore.load_spec(DOCUMENT | {"slots": slots})
        return replay(spec, str(raw), table, partition_from_path=["month"])

    return run


def test_the_same_spec_gives_the_same_rows(again: Replay) -> None:
    report = again()
    assert report.ok, str(report)
    assert report.num_rows == 770
    assert str(report).endswith("table: equal")


def test_clustered_rows_are_not_compared_in_the_order_of_raw_rows(
    raw: Path, tmp_path: Path
) -> None:
    output = DOCUMENT["output"] | {"cluster_by": "user"}
    spec = featstore.load_spec(DOCUMENT | {"output": output})
    url = str(tmp_path / "clustered")
    featstore.extract(spec, str(raw), url, partition_from_path=["month"])
    with pytest.raises(
        InputError,
        match=r"^month=1/part-.*by which replay compares, found them clustered by 'user' .*; "
        r"replay a table that was extracted without it",
    ):
        replay(spec, str(raw), url, partition_from_path=["month"])


def test_a_renamed_slot_is_compared_by_its_number(again: Replay) -> None:
    report = again(user_id={"name": "customer"})
    assert report.ok, str(report)
    assert "customer" in report.columns


def test_mismatch_missing_and_extra_are_counted_per_slot_with_examples(again: Replay) -> None:
    report = again(
        user_id={"default": "u1"},
        tag_ids={"max_len": 4},
        price_log={"op": "clip", "max": 0, "fill": 5},
    )
    assert not report.ok
    users, tags, prices = (report.columns[name] for name in ("user_id", "tag_ids", "price_log"))
    num_no_user = sum(user is None for n in (640, 130) for user in rows_of(n)["user"].to_pylist())
    assert (users.num_mismatch, users.num_missing, users.num_extra) == (0, num_no_user, 0)
    assert tags.num_mismatch == sum(
        row % 5 == 4 and row % 13 != 0 for n in (640, 130) for row in range(n)
    )
    assert prices.num_missing == sum(row % 17 == 0 for n in (640, 130) for row in range(n))
    assert len(users.examples) == 3
    assert str(users.examples[0]).startswith("month=1 row 0: None in the table, ")
    assert report.columns["click"].num_different == 0


def test_a_value_that_only_the_table_has_is_extra(raw: Path, table: str) -> None:
    rows = rows_of(130).slice(0, 65)
    nulls = pa.nulls(65, pa.string())
    pq.write_table(rows.set_column(0, "user", nulls), raw / "month=2" / "0.parquet")
    report = replay(featstore.load_spec(DOCUMENT), str(raw), table, partition_from_path=["month"])
    users = report.columns["user_id"]
    assert (users.num_mismatch, users.num_missing, users.num_extra) == (
        0,
        0,
        65 - rows["user"].null_count,
    )
    assert [example.row for example in users.examples] == [1, 2, 3]
    assert users.examples[0].recomputed is None


def test_slots_of_the_table_that_the_spec_lacks_are_named(raw: Path, table: str) -> None:
    spec = featstore.load_spec(DOCUMENT | {"slots": DOCUMENT["slots"][1:]})
    report = replay(spec, str(raw), table, partition_from_path=["month"])
    assert report.ok
    assert "not in the spec, not compared: user_id" in str(report)


def test_rows_that_one_side_lacks_are_counted(raw: Path, table: str) -> None:
    spec = featstore.load_spec(DOCUMENT)
    (raw / "month=1" / "1.parquet").unlink()
    pq.write_table(rows_of(200), raw / "month=2" / "2.parquet")
    report = replay(spec, str(raw), table, partition_from_path=["month"])
    assert (report.num_rows, report.num_rows_missing, report.num_rows_extra) == (
        320 + 130,
        200,
        320,
    )
    assert "rows: 200 missing in the table, 320 extra in the table" in str(report)
    assert not report.ok


def test_partition_keys_must_be_those_of_the_table(raw: Path, table: str) -> None:
    with pytest.raises(InputError, match=r"expected its partition keys \(month\), found \{\}"):
        replay(featstore.load_spec(DOCUMENT), str(raw), table)


def test_one_partition_is_compared_with_its_own_rows(raw: Path, table: str) -> None:
    report = replay(
        featstore.load_spec(DOCUMENT), str(raw / "month=2"), table, partition={"month": "2"}
    )
    assert report.ok
    assert report.num_rows == 130


@given(st.lists(st.integers(0, 5), max_size=8), st.lists(st.integers(0, 5), max_size=8))
def test_paired_slices_hold_all_rows_of_both_sides_in_order(
    left: list[int], right: list[int]
) -> None:
    def batches(lengths: list[int]) -> list[pa.RecordBatch]:
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        return [
            pa.record_batch({"x": pa.array(range(s, s + n), pa.int64())})
            for s, n in zip(starts, lengths, strict=True)
        ]

    pairs: list[Any] = list(pair_slices(batches(left), batches(right)))
    for side, lengths in ((0, left), (1, right)):
        assert [
            x for pair in pairs if pair[side] is not None for x in pair[side]["x"].to_pylist()
        ] == list(range(sum(lengths)))
    assert all(a.num_rows == b.num_rows for a, b in pairs if a is not None and b is not None)
    assert [None in pair for pair in pairs] == sorted(None in pair for pair in pairs)


def test_rows_that_the_spec_skips_are_skipped_again(tmp_path: Path) -> None:
    document = {
        **DOCUMENT,
        "inputs": {**DOCUMENT["inputs"], "price": {"type": "long", "on_error": "skip"}},
    }
    prices = [2**63 + row if row % 9 == 4 else row for row in range(300)]
    rows = rows_of(300).set_column(2, "price", pa.array(prices, pa.uint64()))
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=40)
    spec = featstore.load_spec(document)
    featstore.extract(spec, str(tmp_path / "a.parquet"), str(tmp_path / "table"))
    report = replay(spec, str(tmp_path / "a.parquet"), str(tmp_path / "table"))
    assert report.ok
    assert (report.num_rows, report.num_rows_skipped) == (267, 33)
    assert "33 raw rows skipped as malformed" in str(report)
    lenient = {**document, "inputs": {**document["inputs"], "price": "long"}}
    assert (
        replay(
            featstore.load_spec(lenient), str(tmp_path / "a.parquet"), str(tmp_path / "table")
        ).num_rows_missing
        == 33
    )
