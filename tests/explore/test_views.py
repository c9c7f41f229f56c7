"""The table as duckdb and polars read it themselves, held against our own reader."""

import math
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import featstore
from featstore import api
from featstore.api import Table
from featstore.errors import MissingDependencyError

INPUTS = {"id": "string", "user": "string", "cost": "double", "tags": "list<string>", "prices": "list<double>"}
SLOTS: list[dict[str, Any]] = [
    {"slot": 101, "name": "user", "op": "hash", "of": "user"},
    {"slot": 102, "name": "price", "op": "identity", "of": "cost"},
    {"slot": 103, "name": "tags", "op": "hash", "of": "tags"},
    {"slot": 104, "name": "prices", "op": "identity", "of": "prices"},
]


def raw_rows(num_rows: int, first: int) -> pa.Table:
    rows = range(first, first + num_rows)
    columns = {
        "id": pa.array([f"r{row}" for row in rows]),
        "user": pa.array([None if row % 3 == 0 else f"u{row}" for row in rows], pa.string()),
        "cost": pa.array([None if row % 4 == 0 else float(row) for row in rows], pa.float64()),
        "tags": pa.array([None if row % 5 == 0 else ["a"] * (row % 3) for row in rows], pa.list_(pa.string())),
        "prices": pa.array([None if row % 4 == 0 else [0.5] * (row % 3) for row in rows], pa.list_(pa.float64())),
    }
    return pa.table(columns)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Three days, the last with a slot that the others lack, the second replaced; a key that must be escaped."""
    (tmp_path / "raw").mkdir()
    newer = [*SLOTS, {"slot": 105, "name": "newer", "op": "log1p", "of": "cost"}]
    for version, (day, slots) in enumerate([("1", SLOTS), ("a:b'c", SLOTS), ("3", newer), ("a:b'c", newer)]):
        pq.write_table(raw_rows(20, 100 * version), tmp_path / "raw" / "log.parquet")
        spec = {"spec": 1, "inputs": INPUTS, "keep": ["id"], "slots": slots}
        featstore.extract(spec, tmp_path / "raw", tmp_path / "table", partition={"dt": day})
    return featstore.open_table(tmp_path / "table")


def rows(found: pa.Table) -> list[dict[str, Any]]:
    return sorted(found.to_pylist(), key=lambda row: str(row["id"]))


@pytest.mark.parametrize("version", [3, 1])
def test_other_engines_read_the_rows_that_we_read_also_of_an_old_snapshot(table: Table, version: int) -> None:
    then = featstore.open_table(table.url, version)
    expected = rows(then.to_arrow())
    assert len(expected) == {3: 60, 1: 40}[version]
    assert any(row["price"] is None for row in expected)
    assert any(row["prices"] is None for row in expected)
    assert rows(then.duckdb().to_arrow_table()) == expected
    assert rows(then.polars().collect().to_arrow()) == expected
    assert then.duckdb().columns == then.polars().collect_schema().names() == then.to_arrow().column_names


def by_polars(url: str, version: int) -> pa.Table:
    return polars.read_delta(url, version=version).to_arrow()


def by_duckdb(url: str, version: int) -> pa.Table:
    """duckdb's own Parquet reader over the files that delta-rs names; columns that a file lacks are null."""
    paths = [uri.removeprefix("file://") for uri in DeltaTable(url, version=version).file_uris()]
    options = "hive_partitioning = true, union_by_name = true, hive_types_autocast = false"
    return duckdb.sql(f"FROM read_parquet(?, {options})", params=[paths]).to_arrow_table()


def without_marks(row: dict[str, Any]) -> dict[str, Any]:
    """What is stored for missing values, which a reader that knows nothing of featstore sees, as null."""
    return {name: None if value in (0, [0]) or is_nan(value) else value for name, value in row.items()}


def is_nan(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return len(values) == 1 and isinstance(values[0], float) and math.isnan(values[0])


@pytest.mark.parametrize("read", [by_polars, by_duckdb])
@pytest.mark.parametrize("version", [3, 2, 1])
def test_readers_that_know_nothing_of_featstore_read_the_base_row_for_row_also_as_it_was_before_a_day_was_replaced(
    table: Table, read: Any, version: int
) -> None:
    expected = rows(featstore.open_table(table.url, version).to_arrow())
    assert next(row["id"] for row in expected if row["dt"] == "a:b'c") == {3: "r300", 2: "r100", 1: "r100"}[version]
    found = [without_marks(row) for row in rows(read(table.url, version))]
    assert len(found) == {3: 60, 2: 60, 1: 40}[version]
    assert [{name: row.get(name) for name in expected[0]} for row in found] == expected


def test_views_are_lazy_and_can_be_filtered(table: Table) -> None:
    day = "a:b'c"
    seen = table.duckdb().filter("dt = 'a:b''c' and price is null").aggregate("count(*)").fetchall()
    assert seen == [(5,)]
    lazy = table.polars().filter((polars.col("dt") == day) & polars.col("price").is_null())
    assert len(lazy.collect()) == 5


LOGGED = {"slot": 105, "name": "logged", "op": "log1p", "of": "cost"}
BINNED = {"slot": 106, "name": "binned", "op": "bucketize", "of": "cost", "boundaries": [10, 100]}


def grouped_spec(*more: dict[str, Any]) -> dict[str, Any]:
    return {
        "spec": 1,
        "inputs": INPUTS | {"clicked": "long", "paid": "long"},
        "labels": {"click": "clicked", "pay": "paid"},
        "keep": ["id"],
        "slots": [*SLOTS, *more],
        "output": {"rows_per_file": 100, "rows_per_row_group": 40},
    }


def write_day(directory: Path, day: str, first: int, clicked: int | None) -> None:
    directory = directory / f"dt={day}"
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(2):
        labels = {"clicked": pa.array([clicked] * 150, pa.int64()), "paid": pa.array(range(150), pa.int64())}
        rows = raw_rows(150, first + 150 * number)
        for name, values in labels.items():
            rows = rows.append_column(name, values)
        pq.write_table(rows, directory / f"{number}.parquet", row_group_size=20)


@pytest.fixture
def grouped(tmp_path: Path) -> Table:
    """Three days of 300 rows in several files. Of the groups `one` is stale in day 2 and absent in day 3, `two` is in all;
    the labels of day 1 are written anew, but for `pay`, which that group has of day 3 alone."""
    raw, url = tmp_path / "raw", tmp_path / "table"
    for number, day in enumerate("123"):
        write_day(raw, day, 1000 * number, 0)
        featstore.extract(grouped_spec(), raw / f"dt={day}", url, partition={"dt": day})
    for day in "12":
        featstore.extract(grouped_spec(LOGGED), raw / f"dt={day}", url, partition={"dt": day}, group="one")
    write_day(raw, "2", 5000, 0)
    featstore.extract(grouped_spec(), raw / "dt=2", url, partition={"dt": "2"})
    for day in "123":
        featstore.extract(grouped_spec(BINNED), raw / f"dt={day}", url, partition={"dt": day}, group="two")
    write_day(tmp_path / "ripe", "1", 0, None)
    write_day(tmp_path / "ripe", "3", 2000, 1)
    some = grouped_spec() | {"labels": {"click": "clicked"}}
    api.relabel(some, tmp_path / "ripe" / "dt=1", url, key="id", partition={"dt": "1"})
    api.relabel(grouped_spec(), tmp_path / "ripe" / "dt=3", url, key="id", partition={"dt": "3"})
    return featstore.open_table(url)


def test_slot_groups_are_seen_by_other_engines_as_by_us(grouped: Table) -> None:
    """Also a stale group as missing, and a label that became null as null."""
    arrow = grouped.to_arrow()
    assert [len(group.stale) for group in grouped.snapshot.groups] == [0, 4, 0]
    by_day = {day: arrow.filter(pc.equal(arrow["dt"], day)) for day in "123"}
    assert [table["logged"].null_count for table in by_day.values()] == [75, 300, 300]
    assert [table["binned"].null_count for table in by_day.values()] == [75, 75, 75]
    assert by_day["1"]["click"].null_count == 300
    assert set(by_day["1"]["pay"].to_pylist()) == set(range(150))
    assert set(by_day["3"]["click"].to_pylist()) == {1}
    expected = rows(arrow)
    assert rows(grouped.duckdb().to_arrow_table()) == expected
    assert rows(grouped.polars().collect().to_arrow()) == expected
    assert grouped.duckdb().columns == grouped.polars().collect_schema().names() == arrow.column_names


def test_conditions_on_group_and_base_columns_find_the_same_rows_everywhere(grouped: Table) -> None:
    found = grouped.to_arrow(where="logged > 4 and price < 100 and id != 'r70' and dt = '1'")
    assert 10 < found.num_rows < 100
    condition = "logged > 4 and price < 100 and id <> 'r70' and dt = '1'"
    assert rows(grouped.duckdb().filter(condition).to_arrow_table()) == rows(found)
    assert rows(grouped.polars().filter(polars.sql_expr(condition)).collect().to_arrow()) == rows(found)
    assert grouped.duckdb().aggregate("count(*)").fetchall() == [(900,)]
    assert grouped.polars().select("binned").collect().height == 900


def test_head_sample_and_profile_show_slot_groups_as_to_arrow_does(grouped: Table) -> None:
    arrow = grouped.to_arrow()
    assert grouped.head(310).equals(arrow.slice(0, 310).combine_chunks())
    by_id = {row["id"]: row for row in arrow.to_pylist()}
    assert all(row == by_id[row["id"]] for row in grouped.sample(200, seed=3).to_pylist())
    coverage = {row["slot"]: row["coverage"] for row in grouped.profile().table.to_pylist()}
    names = [slot.name for slot in grouped.slots]
    assert coverage == {name: pytest.approx(1 - arrow[name].null_count / 900) for name in names}
    stored = grouped.profile(stored=True).table.to_pylist()
    assert {row["slot"]: row["coverage"] for row in stored} == coverage


def test_a_view_can_join_what_the_users_connection_holds(table: Table) -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE wanted AS SELECT 'r1' AS id")
        clicks = table.duckdb(connection)
        assert clicks.join(connection.table("wanted"), "id").aggregate("count(*), max(price)").fetchall() == [(1, 1.0)]


def test_duckdb_needs_the_detour_to_see_nan(table: Table) -> None:
    """Once this fails, `isnan(column)` says what it should, and the view may ask it directly."""
    first = table.data_files("dt = '1'")[0].url
    found = duckdb.sql(f"SELECT price, isnan(price), isnan([price][1]) FROM read_parquet('{first}') WHERE id = 'r0'").fetchall()
    assert math.isnan(found[0][0])
    assert found[0][1:] == (False, True)


def test_a_view_without_its_engine_names_the_extra(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in ("duckdb", "polars"):
        monkeypatch.setitem(sys.modules, engine, None)
        with pytest.raises(MissingDependencyError, match=rf"Table\.{engine}\(\) needs {engine}: install it with"):
            getattr(table, engine)()
