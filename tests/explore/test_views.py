"""The table as duckdb and polars read it, compared with featstore's own reader."""

import math
import re
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

import featstore
from featstore import api
from featstore.base.errors import MissingDependencyError
from featstore.base.schema import ROLE
from featstore.explore.table import Table, open_table
from tests.history_tables import make_table
from tests.parquet_files import put_parquet

INPUTS = {
    "id": "string",
    "user": "string",
    "cost": "double",
    "tags": "list<string>",
    "prices": "list<double>",
}
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
        "tags": pa.array(
            [None if row % 5 == 0 else ["a"] * (row % 3) for row in rows], pa.list_(pa.string())
        ),
        "prices": pa.array(
            [None if row % 4 == 0 else [0.5] * (row % 3) for row in rows], pa.list_(pa.float64())
        ),
    }
    return pa.table(columns)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Three days: the last has a slot that the others lack, the second was replaced. A partition
    value must be escaped.
    """
    newer = [*SLOTS, {"slot": 105, "name": "newer", "op": "log1p", "of": "cost"}]
    for version, (day, slots) in enumerate(
        [("1", SLOTS), ("a:b'c", SLOTS), ("3", newer), ("a:b'c", newer)]
    ):
        put_parquet(tmp_path / "raw" / "log.parquet", raw_rows(20, 100 * version))
        spec: Any = {"spec": 1, "inputs": INPUTS, "keep": ["id"], "slots": slots}
        featstore.extract(spec, tmp_path / "raw", tmp_path / "table", partition={"dt": day})
    return featstore.open_table(tmp_path / "table")


def rows(found: pa.Table) -> list[dict[str, Any]]:
    return sorted(found.to_pylist(), key=lambda row: str(row["id"]))


@pytest.mark.parametrize("version", [3, 1])
def test_other_engines_read_the_same_rows_in_every_version(table: Table, version: int) -> None:
    then = featstore.open_table(table.url, version)
    expected = rows(then.to_arrow())
    assert len(expected) == {3: 60, 1: 40}[version]
    assert any(row["price"] is None for row in expected)
    assert any(row["prices"] is None for row in expected)
    assert rows(then.duckdb().to_arrow_table()) == expected
    assert rows(then.polars().collect().to_arrow()) == expected
    assert (
        then.duckdb().columns
        == then.polars().collect_schema().names()
        == then.to_arrow().column_names
    )


def by_polars(url: str, version: int) -> pa.Table:
    return polars.read_delta(url, version=version).to_arrow()


def by_duckdb(url: str, version: int) -> pa.Table:
    """duckdb's own Parquet reader over the files that delta-rs lists. Columns that a file lacks are
    null.
    """
    paths = [uri.removeprefix("file://") for uri in DeltaTable(url, version=version).file_uris()]
    options = "hive_partitioning = true, union_by_name = true, hive_types_autocast = false"
    return duckdb.sql(f"FROM read_parquet(?, {options})", params=[paths]).to_arrow_table()


def without_marks(row: dict[str, Any]) -> dict[str, Any]:
    """Marks of missing values, which readers that do not know featstore see, replaced by null."""
    return {
        name: None if value in (0, [0]) or is_nan(value) else value for name, value in row.items()
    }


def is_nan(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return len(values) == 1 and isinstance(values[0], float) and math.isnan(values[0])


@pytest.mark.parametrize("read", [by_polars, by_duckdb])
@pytest.mark.parametrize("version", [3, 2, 1])
def test_readers_that_know_nothing_of_featstore_read_the_base_row_for_row_also_as_it_was_before_a_day_was_replaced(
    table: Table, read: Any, version: int
) -> None:
    expected = rows(featstore.open_table(table.url, version).to_arrow())
    assert (
        next(row["id"] for row in expected if row["dt"] == "a:b'c")
        == {3: "r300", 2: "r100", 1: "r100"}[version]
    )
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


def grouped_spec(*more: dict[str, Any]) -> Any:
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
        labels = {
            "clicked": pa.array([clicked] * 150, pa.int64()),
            "paid": pa.array(range(150), pa.int64()),
        }
        rows = raw_rows(150, first + 150 * number)
        for name, values in labels.items():
            rows = rows.append_column(name, values)
        pq.write_table(rows, directory / f"{number}.parquet", row_group_size=20)


@pytest.fixture
def grouped(tmp_path: Path) -> Table:
    """Three days of 300 rows in several files. Group `one` is stale in day 2 and absent in day 3,
    `two` has all days. The labels of day 1 are rewritten, except `pay`, which that group has for
    day 3 only.
    """
    raw, url = tmp_path / "raw", tmp_path / "table"
    for number, day in enumerate("123"):
        write_day(raw, day, 1000 * number, 0)
        featstore.extract(grouped_spec(), raw / f"dt={day}", url, partition={"dt": day})
    for day in "12":
        featstore.extract(
            grouped_spec(LOGGED), raw / f"dt={day}", url, partition={"dt": day}, group="one"
        )
    write_day(raw, "2", 5000, 0)
    featstore.extract(grouped_spec(), raw / "dt=2", url, partition={"dt": "2"})
    for day in "123":
        featstore.extract(
            grouped_spec(BINNED), raw / f"dt={day}", url, partition={"dt": day}, group="two"
        )
    write_day(tmp_path / "ripe", "1", 0, None)
    write_day(tmp_path / "ripe", "3", 2000, 1)
    some = grouped_spec() | {"labels": {"click": "clicked"}}
    api.relabel(some, tmp_path / "ripe" / "dt=1", url, key="id", partition={"dt": "1"})
    api.relabel(grouped_spec(), tmp_path / "ripe" / "dt=3", url, key="id", partition={"dt": "3"})
    return featstore.open_table(url, stale_groups="missing")


def test_slot_groups_are_seen_by_other_engines_as_by_us(grouped: Table) -> None:
    """Including a stale group as missing, and a label that became null as null."""
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
    assert (
        grouped.duckdb().columns == grouped.polars().collect_schema().names() == arrow.column_names
    )


def test_conditions_on_group_and_base_columns_find_the_same_rows_everywhere(grouped: Table) -> None:
    found = grouped.to_arrow(where="logged > 4 and price < 100 and id != 'r70' and dt = '1'")
    assert 10 < found.num_rows < 100
    condition = "logged > 4 and price < 100 and id <> 'r70' and dt = '1'"
    assert rows(grouped.duckdb().filter(condition).to_arrow_table()) == rows(found)
    assert rows(grouped.polars().filter(polars.sql_expr(condition)).collect().to_arrow()) == rows(
        found
    )
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


def test_a_view_can_be_joined_with_tables_of_the_users_connection(table: Table) -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE wanted AS SELECT 'r1' AS id")
        clicks = table.duckdb(connection)
        assert clicks.join(connection.table("wanted"), "id").aggregate(
            "count(*), max(price)"
        ).fetchall() == [(1, 1.0)]


def test_duckdb_needs_the_workaround_to_see_nan(table: Table) -> None:
    """If this fails, `isnan(column)` works, and the view can use it directly."""
    first = table.data_files("dt = '1'")[0].url
    found = duckdb.sql(
        f"SELECT price, isnan(price), isnan([price][1]) FROM read_parquet('{first}') WHERE id = "
        f"'r0'"
    ).fetchall()
    assert math.isnan(found[0][0])
    assert found[0][1:] == (False, True)


def test_a_view_without_its_engine_names_the_extra(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for engine in ("duckdb", "polars"):
        monkeypatch.setitem(sys.modules, engine, None)
        with pytest.raises(
            MissingDependencyError, match=rf"Table\.{engine}\(\) needs {engine}: install it with"
        ):
            getattr(table, engine)()


FOREIGN = pa.schema(
    [
        pa.field("wide", pa.float64()),
        pa.field("narrow", pa.float32()),
        pa.field("label", pa.float64(), metadata={ROLE: b"label"}),
        pa.field("kept", pa.float32(), metadata={ROLE: b"kept"}),
        pa.field("many", pa.list_(pa.float64())),
        pa.field("pair", pa.list_(pa.float64(), 2)),
        pa.field("id", pa.int32()),
        pa.field("flag", pa.bool_()),
        pa.field("flags", pa.list_(pa.bool_())),
        pa.field("row", pa.int64(), metadata={ROLE: b"kept"}),
    ]
)
NUMBERS = st.sampled_from([None, math.nan, 0.0, -0.0, 1.0, -2.5, math.inf, -math.inf])
BEYOND = st.sampled_from([1e300, -1e300])  # what float32 cannot hold
FOREIGN_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "wide": NUMBERS | BEYOND,
            "narrow": NUMBERS,
            "label": NUMBERS,
            "kept": NUMBERS,
            "many": st.none() | st.lists(NUMBERS | BEYOND, max_size=2),
            "pair": st.none() | st.lists(NUMBERS | BEYOND, min_size=2, max_size=2),
            "id": st.sampled_from([None, 0, 1, -2]),
            "flag": st.none() | st.booleans(),
            "flags": st.none() | st.lists(st.booleans(), max_size=2),
        }
    ),
    min_size=1,
    max_size=12,
).map(lambda found: [{**row, "row": number} for number, row in enumerate(found)])
FLOAT_COLUMNS = st.sampled_from(["wide", "narrow", "label", "kept"])
CONDITIONS = st.recursive(
    st.one_of(
        st.builds(
            "{} {} {}".format,
            FLOAT_COLUMNS,
            st.sampled_from(["=", "<>", "<", "<=", ">", ">="]),
            st.sampled_from(["0", "1", "-2.5"]),
        ),
        st.builds("{} = {}".format, FLOAT_COLUMNS, FLOAT_COLUMNS),
        st.builds("{} between -2.5 and 1".format, FLOAT_COLUMNS),
        st.builds("{} {}in (1, -2.5)".format, FLOAT_COLUMNS, st.sampled_from(["", "not "])),
        st.builds(
            "{} is {}null".format,
            FLOAT_COLUMNS | st.sampled_from(["many", "pair", "id", "flag", "flags"]),
            st.sampled_from(["", "not "]),
        ),
    ),
    lambda inner: (
        inner.map("not ({})".format)
        | st.builds("({}) {} ({})".format, inner, st.sampled_from(["and", "or"]), inner)
    ),
    max_leaves=3,
)


@settings(max_examples=settings().max_examples // 5)
@given(found=FOREIGN_ROWS, condition=CONDITIONS)
def test_nan_and_what_float32_cannot_hold_mean_the_same_in_where_and_in_other_engines(
    tmp_path_factory: pytest.TempPathFactory, found: list[dict[str, Any]], condition: str
) -> None:
    directory = tmp_path_factory.mktemp("foreign")
    pq.write_table(pa.Table.from_pylist(found, FOREIGN), directory / "a.parquet", row_group_size=3)
    table = featstore.open_table(directory)
    rows_of = {
        "where": table.to_arrow(where=condition)["row"],
        "duckdb": table.duckdb().filter(condition).to_arrow_table()["row"],
        "polars": table.polars().filter(polars.sql_expr(condition)).collect().to_arrow()["row"],
    }
    with featstore.FeatureLoader(table, slots=["id"], extras=["row"], where=condition) as loader:
        rows_of["loader"] = pa.chunked_array(
            [batch.extras["row"].combine_chunks() for batch in loader], pa.int64()
        )
    found_rows = {name: sorted(numbers.to_pylist()) for name, numbers in rows_of.items()}
    assert len(set(map(str, found_rows.values()))) == 1, found_rows
    assert str(table.duckdb().to_arrow_table().to_pylist()) == str(table.to_arrow().to_pylist())
    assert str(table.polars().collect().to_arrow().to_pylist()) == str(table.to_arrow().to_pylist())


def test_nan_in_a_label_or_a_kept_column_is_null_whoever_reads_it(tmp_path: Path) -> None:
    values = {name: [1.0, math.nan, None] for name in ("wide", "narrow", "label", "kept")}
    others: dict[str, list[Any]] = dict.fromkeys(("pair", "flag", "flags"), [None] * 3)
    others |= {"many": [[1.0], [math.nan], None], "id": [1, 2, 3], "row": [0, 1, 2]}
    written = pa.table({**values, **others}, schema=FOREIGN)
    pq.write_table(written, tmp_path / "a.parquet")
    table = featstore.open_table(tmp_path)
    expected = {name: [1.0, None, None] for name in values} | {"many": [[1.0], None, None]}
    for name, column in expected.items():
        assert table.to_arrow()[name].to_pylist() == column
        assert table.duckdb().to_arrow_table()[name].to_pylist() == column
        assert table.polars().collect()[name].to_list() == column
        assert table.to_arrow(where=f"{name} is null")["row"].to_pylist() == [1, 2]
    with featstore.FeatureLoader(table, slots=["id"], extras=["label", "kept"]) as loader:
        (batch,) = loader
        assert batch.extras.to_pydict() == {"label": [1.0, None, None], "kept": [1.0, None, None]}


def plain(directory: Path) -> None:
    for day in ("1", "2", "__HIVE_DEFAULT_PARTITION__"):
        put_parquet(directory / f"day={day}" / "a.parquet", {"id": [len(day)]})


def typed(directory: Path) -> None:
    """A Delta table of another writer, with an integer partition key."""
    write_deltalake(
        directory,
        pa.table({"id": [1, 1, 26], "day": pa.array([1, 2, None], pa.int32())}),
        partition_by=["day"],
    )


def fractions(directory: Path) -> None:
    """One with a float partition key, for which NaN is no value either."""
    days = pa.array([0.5, 1.5, math.nan], pa.float64())
    write_deltalake(directory, pa.table({"id": [1, 1, 26], "day": days}), partition_by=["day"])


@pytest.mark.parametrize(
    ("write", "days"),
    [(plain, ["1", "2", None]), (typed, [1, 2, None]), (fractions, [0.5, 1.5, None])],
)
def test_a_partition_without_a_value_is_null_whoever_reads_it(
    tmp_path: Path, write: Any, days: list[Any]
) -> None:
    write(tmp_path / "table")
    table = featstore.open_table(tmp_path / "table")
    second = f"'{days[1]}'" if isinstance(days[1], str) else days[1]
    for condition, expected in {
        "day is null": [None],
        f"day = {second}": [days[1]],
        f"not (day = {second})": [days[0]],
        "day is not null": days[:2],
        "id > 0": days,
    }.items():
        found = [
            table.to_arrow(where=condition)["day"].to_pylist(),
            table.duckdb().filter(condition).to_arrow_table()["day"].to_pylist(),
            table.polars().filter(polars.sql_expr(condition)).collect()["day"].to_list(),
        ]
        with featstore.FeatureLoader(
            table, slots=["id"], extras=["day"], where=condition
        ) as loader:
            found.append([day for batch in loader for day in batch.extras["day"].to_pylist()])
        assert [sorted(one, key=str) for one in found] == 4 * [sorted(expected, key=str)]


def test_the_query_of_the_page_rebuilds_the_lists_of_histories(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/table.md").read_text()
    [query] = re.findall(r"^```sql [^\n]*\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    fat = make_table(tmp_path / "table", 7, [[40, 25], [30]])
    files = [file.url for file in open_table(tmp_path / "table").data_files()]
    found = duckdb.sql(query, params={"files": files}).to_arrow_table()
    assert sorted(found["row"].to_pylist()) == list(range(95))
    assert {"click", "clicks_length", "clicks_key"} < set(found.column_names)
    for row, items in zip(found["row"].to_pylist(), found["clicks_item"].to_pylist(), strict=True):
        assert (items or []) == fat.item[row]
