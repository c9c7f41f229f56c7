"""Tables in a Hive metastore: Derby in the session's own process."""

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import AnalysisException

import featstore
from featstore.base.errors import InputError, TableNotFoundError
from featstore.extraction.job import ExtractJob, extract_files
from featstore.ingest.hive_locations import HIVE_DIR
from featstore.ingest.hive_registration import register
from featstore.spec.model import Spec
from featstore.spec.parse import load_spec
from featstore.table.delta import open_delta
from tests.extraction.conftest import raw_rows
from tests.parquet_files import put_parquet

pytestmark = pytest.mark.slow

ODD_DAY = "a:b/c d%'\\"
CONVERT = "spark.sql.hive.convertMetastoreParquet"


@pytest.fixture
def job(spec: Spec, raw: Path, tmp_path: Path) -> ExtractJob:
    return ExtractJob(
        spec=spec, input_url=str(raw), table_url=str(tmp_path / "table"), partition={"dt": "1"}
    )


@pytest.fixture
def name(spark: Any) -> Iterator[str]:
    yield "default.clicks"
    spark.sql("DROP VIEW IF EXISTS default.clicks_with_nulls")
    spark.sql("DROP TABLE IF EXISTS default.clicks")


def by_each_reader(spark: Any) -> Iterator[str]:
    """Spark's own Parquet reader, then Hive's."""
    for convert in ("true", "false"):
        spark.conf.set(CONVERT, convert)
        yield convert
    spark.conf.unset(CONVERT)


def extract_day(
    job: ExtractJob, write_raw: Any, day: str, num_rows: int, first: int = 0, **changed: Any
) -> None:
    """Replaces one day by that many rows."""
    shutil.rmtree(job.input_url, ignore_errors=True)
    write_raw("a.parquet", num_rows, first)
    extract_files(
        replace(
            job, partition={"dt": day}, run_id=f"{day}-{num_rows}-{first}-{len(changed)}", **changed
        )
    )


def as_sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)


def in_hive(spark: Any, name: str) -> list[str]:
    return as_sorted([row.asDict() for row in spark.sql(f"SELECT * FROM {name}").collect()])


def in_delta(url: str, version: int | None = None) -> list[str]:
    return as_sorted(polars.read_delta(url, version=version).to_dicts())


def num_rows_by_day(spark: Any, name: str) -> dict[str, int]:
    return dict(spark.sql(f"SELECT dt, count(*) FROM {name} GROUP BY dt").collect())


def locations(url: str) -> list[str]:
    return sorted(path.name for path in (Path(url) / HIVE_DIR).iterdir())


def test_a_registered_table_holds_committed_files_row_for_row(
    spark: Any, job: ExtractJob, write_raw: Any, name: str
) -> None:
    for day in ("1", ODD_DAY):
        extract_day(job, write_raw, day, 300)
    [live, *_] = open_delta(job.table_url).data_files
    orphan = Path(live.url).with_name(
        live.path.rpartition("/")[2].replace("-0.parquet", "-7.parquet")
    )
    shutil.copy(live.url, orphan)
    report = register(spark, job.table_url, name)
    assert (report.created, report.num_added, report.version) == (True, 2, 1)
    for _ in by_each_reader(spark):
        assert in_hive(spark, name) == in_delta(job.table_url)
        assert num_rows_by_day(spark, name) == {"1": 300, ODD_DAY: 300}
    described = {row["col_name"]: row for row in spark.sql(f"DESCRIBE {name}").collect()}
    assert list(described)[:6] == ["user_id", "tag_ids", "price_log", "click", "user", "dt"]
    assert described["tag_ids"]["data_type"] == "array<bigint>"
    assert described["tag_ids"]["comment"] == "slot 102, id, list; missing is [0]"


def test_an_equal_registration_says_that_there_is_nothing_to_do(
    spark: Any, job: ExtractJob, write_raw: Any, name: str
) -> None:
    extract_day(job, write_raw, "1", 300)
    register(spark, job.table_url, name)
    before = locations(job.table_url)
    again = register(spark, job.table_url, name)
    assert not again.changed
    assert str(again).startswith("nothing to do: default.clicks already shows what version 0 of ")
    assert locations(job.table_url) == before


def test_a_query_goes_on_with_the_day_as_it_was_and_the_next_one_sees_the_new_day(
    spark: Any, job: ExtractJob, write_raw: Any, name: str
) -> None:
    extract_day(job, write_raw, "1", 533)
    register(spark, job.table_url, name)
    other = spark.newSession()
    assert num_rows_by_day(other, name) == {"1": 533}
    frame = spark.sql(f"SELECT * FROM {name}")
    assert frame.rdd.getNumPartitions() > 1, (
        "one job for each, so that the last files are opened after the switch"
    )
    reading = frame.toLocalIterator()
    rows = [next(reading)]
    extract_day(job, write_raw, "1", 100, 1000)
    report = register(spark, job.table_url, name)
    assert (report.num_switched, report.num_added, report.created) == (1, 0, False)
    rows.extend(reading)
    assert as_sorted([row.asDict() for row in rows]) == in_delta(job.table_url, 0)
    assert num_rows_by_day(other, name) == {"1": 100}, "another session needs no REFRESH TABLE"
    assert in_hive(spark, name) == in_delta(job.table_url)


def test_a_view_beside_it_shows_missing_values_as_null(
    spark: Any, job: ExtractJob, raw: Path, name: str
) -> None:
    rows = raw_rows(300)
    prices = pa.array([row if row % 3 else None for row in range(300)], pa.float64())
    at = rows.schema.get_field_index("price")
    put_parquet(raw / "a.parquet", rows.set_column(at, "price", prices))
    extract_files(job)
    report = register(spark, job.table_url, name)
    assert str(report).endswith("; default.clicks_with_nulls shows missing values as null")
    expected = as_sorted(featstore.open_table(job.table_url).to_arrow().to_pylist())
    for _ in by_each_reader(spark):
        assert in_hive(spark, report.view) == expected
    averages = [
        spark.sql(f"SELECT avg(price_log) FROM {each}").first()[0] for each in (name, report.view)
    ]
    assert [math.isnan(average) for average in averages] == [True, False]


def test_a_new_slot_is_null_in_older_days_and_read_in_days_that_are_replaced(
    spark: Any, job: ExtractJob, write_raw: Any, name: str, document: Any
) -> None:
    for day in ("1", "2"):
        extract_day(job, write_raw, day, 100)
    register(spark, job.table_url, name)
    document["slots"].append({"slot": 104, "name": "price_twice", "op": "log1p", "of": "price"})
    extract_day(job, write_raw, "2", 120, spec=load_spec(document))
    report = register(spark, job.table_url, name)
    assert (report.new_columns, report.view) == (("price_twice",), f"{name}_with_nulls")
    assert ", new columns price_twice; " in str(report)
    assert "price_twice" in spark.table(report.view).columns
    for _ in by_each_reader(spark):
        found = spark.sql(
            f"SELECT dt, count(*), count(price_twice) FROM {name} GROUP BY dt"
        ).collect()
        assert sorted(map(tuple, found)) == [("1", 100, 0), ("2", 120, 120)]


def test_a_day_that_is_gone_is_dropped_and_a_vacuumed_one_leaves_no_file(
    spark: Any, job: ExtractJob, write_raw: Any, name: str
) -> None:
    for day in ("1", "2"):
        extract_day(job, write_raw, day, 100)
    register(spark, job.table_url, name)
    DeltaTable(job.table_url).delete("dt = '1'")
    report = register(spark, job.table_url, name)
    assert (report.num_dropped, report.num_removed) == (1, 0)
    assert num_rows_by_day(spark, name) == {"2": 100}
    assert len(locations(job.table_url)) == 2
    DeltaTable(job.table_url).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert register(spark, job.table_url, name).num_removed == 1
    assert in_hive(spark, name) == in_delta(job.table_url)


def test_a_table_without_partition_keys_has_one_location(
    spark: Any, job: ExtractJob, write_raw: Any, name: str
) -> None:
    write_raw("a.parquet", 100)
    extract_files(replace(job, partition={}))
    register(spark, job.table_url, name)
    for _ in by_each_reader(spark):
        assert in_hive(spark, name) == in_delta(job.table_url)
    write_raw("b.parquet", 50)
    extract_files(replace(job, partition={}, run_id="again"))
    assert register(spark, job.table_url, name).num_switched == 1
    for _ in by_each_reader(spark):
        assert len(in_hive(spark, name)) == 150


class Session:
    """A real session, and something that happens just before the first statement that has a text in
    it.
    """

    def __init__(self, spark: Any, text: str, happening: Any) -> None:
        self._spark, self._text, self._happening = spark, text, happening
        self.happened = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def sql(self, statement: str) -> Any:
        if self._text in statement and not self.happened:
            self.happened = True
            self._happening()
        return self._spark.sql(statement)


def test_a_registration_that_dies_half_way_is_made_whole_by_the_next(
    spark: Any, job: ExtractJob, write_raw: Any, name: str
) -> None:
    for day in ("1", "2"):
        extract_day(job, write_raw, day, 100)
    register(spark, job.table_url, name)
    DeltaTable(job.table_url).delete("dt = '2'")
    extract_day(job, write_raw, "1", 120)

    def die() -> None:
        raise KeyboardInterrupt

    dying = Session(spark, "DROP IF EXISTS", die)
    with pytest.raises(KeyboardInterrupt):
        register(dying, job.table_url, name)
    assert dying.happened
    assert num_rows_by_day(spark, name) == {"1": 120, "2": 100}
    assert register(spark, job.table_url, name).num_dropped == 1
    assert in_hive(spark, name) == in_delta(job.table_url)


def test_a_day_committed_during_a_registration_is_shown_at_its_end(
    spark: Any, job: ExtractJob, write_raw: Any, name: str
) -> None:
    extract_day(job, write_raw, "1", 100)
    session = Session(spark, "ADD IF NOT EXISTS", lambda: extract_day(job, write_raw, "1", 120))
    report = register(session, job.table_url, name)
    assert session.happened
    assert (report.version, report.num_added, report.num_switched) == (1, 1, 1)
    assert num_rows_by_day(spark, name) == {"1": 120}


@pytest.mark.parametrize("text", ["CREATE EXTERNAL TABLE", "CREATE VIEW"])
def test_what_another_registration_made_in_the_meantime_is_taken(
    spark: Any, job: ExtractJob, write_raw: Any, name: str, text: str, caplog: Any
) -> None:
    extract_day(job, write_raw, "1", 100)
    session = Session(spark, text, lambda: register(spark, job.table_url, name))
    report = register(session, job.table_url, name)
    assert session.happened
    assert (report.created, report.view) == (text == "CREATE VIEW", "")
    assert num_rows_by_day(spark, f"{name}_with_nulls") == {"1": 100}
    assert not caplog.messages


def test_a_table_whose_view_cannot_be_made_is_shown_and_a_warning_says_why(
    spark: Any, job: ExtractJob, write_raw: Any, name: str, caplog: Any
) -> None:
    extract_day(job, write_raw, "1", 100)
    view = f"{name}_with_nulls"

    def forbid() -> None:
        raise AnalysisException("HiveException: AccessDenied: CreateView")

    for shown in (
        Session(spark, "CREATE VIEW", forbid),
        Session(spark, "", lambda: spark.sql(f"CREATE VIEW {view} AS SELECT 1 AS a")),
    ):
        report = register(shown, job.table_url, name)
        assert shown.happened
        assert (report.view, num_rows_by_day(spark, name)) == ("", {"1": 100})
    forbidden, foreign = caplog.messages
    assert f"Spark cannot show {view}, " in forbidden
    assert "HiveException: AccessDenied: CreateView; " in forbidden
    assert f"{view} already exists and is no view of {name}; rename it; the next " in foreign
    assert spark.table(view).columns == ["a"]


def test_what_cannot_be_registered_is_named(
    spark: Any, job: ExtractJob, write_raw: Any, name: str
) -> None:
    with pytest.raises(
        InputError, match=r"expected db\.table, letters, digits and _ alone, found 'clicks'"
    ):
        register(spark, job.table_url, "clicks")
    with pytest.raises(InputError, match="no database 'nowhere'; make it first"):
        register(spark, job.table_url, "nowhere.clicks")
    with pytest.raises(TableNotFoundError, match="no table at "):
        register(spark, job.table_url, name)
    extract_day(job, write_raw, "1", 100)
    spark.sql(f"CREATE TABLE {name} (a INT) STORED AS PARQUET")
    with pytest.raises(InputError, match="already exists and shows no featstore table"):
        register(spark, job.table_url, name)
    spark.sql(f"DROP TABLE {name}")
    register(spark, job.table_url, name)
    with pytest.raises(
        InputError, match=r"default\.clicks_with_nulls already exists and is the view of a feat"
    ):
        register(spark, job.table_url, f"{name}_with_nulls")
    assert not spark.catalog.tableExists(f"{name}_with_nulls_with_nulls")
    extract_day(replace(job, table_url=f"{job.table_url}2"), write_raw, "1", 100)
    with pytest.raises(
        InputError,
        match=r"shows another featstore table, not .*table2; choose another name, or drop it",
    ):
        register(spark, f"{job.table_url}2", name)
    DeltaTable(job.table_url).delete()
    with pytest.raises(InputError, match=r"holds no rows; default\.clicks is left as it is"):
        register(spark, job.table_url, name)
    assert num_rows_by_day(spark, name) == {"1": 100}


def test_a_table_that_is_removed_and_made_anew_is_shown_or_what_differs_is_told(
    spark: Any, job: ExtractJob, write_raw: Any, name: str, document: dict[str, Any]
) -> None:
    def made_anew(day: str, num_rows: int, **changed: Any) -> None:
        shutil.rmtree(job.table_url, ignore_errors=True)
        extract_day(job, write_raw, day, num_rows, **changed)

    made_anew("1", 100)
    register(spark, job.table_url, name)
    for day, num_rows in (("1", 100), ("2", 110)):  # the first of them has equal names of files
        made_anew(day, num_rows)
        register(spark, job.table_url, name)
        for _ in by_each_reader(spark):
            assert num_rows_by_day(spark, name) == {day: num_rows}
    document["slots"][0] = {"slot": 101, "name": "user_id", "op": "log1p", "of": "price"}
    made_anew("2", 110, spec=load_spec(document))
    with pytest.raises(InputError, match=r"found user_id bigint for float, .*: DROP TABLE default"):
        register(spark, job.table_url, name)
    shutil.rmtree(job.table_url)
    extract_files(replace(job, partition={"hour": "1"}))
    with pytest.raises(InputError, match="found partition keys dt for hour, as of a table"):
        register(spark, job.table_url, name)
    spark.sql(f"DROP TABLE {name}")
    assert register(spark, job.table_url, name).num_added == 1
    assert "user_id" in in_hive(spark, f"{name}_with_nulls")[0]


def rows_of(columns: dict[str, Any], **keys: Any) -> pa.Table:
    return pa.table({**columns, **{key: pa.array([value]) for key, value in keys.items()}})


def test_a_key_in_upper_case_and_a_wide_struct_are_those_of_the_table_before(
    spark: Any, tmp_path: Path, name: str
) -> None:
    wide = pa.struct([(f"Field_{index}", pa.int64()) for index in range(60)])
    columns: dict[str, Any] = {
        "seen_ntz": pa.array([{"at_ntz": None}], pa.struct([("at_ntz", pa.timestamp("us"))])),
        "wide": pa.array([{"Field_59": 7}], wide),
    }
    url = str(tmp_path / "table")
    write_deltalake(url, rows_of(columns, dt="1", Hour=1), partition_by=["dt", "Hour"])
    register(spark, url, name)
    write_deltalake(url, rows_of(columns, dt="1", Hour=2), mode="append")
    assert register(spark, url, name).num_added == 1
    found = spark.sql(f"SELECT hour, wide.field_59 FROM {name}").collect()
    assert sorted(map(tuple, found)) == [(1, 7), (2, 7)]
    shutil.rmtree(url)
    columns["wide"] = pa.array([None], pa.struct([*list(wide)[:-1], ("field_59", pa.string())]))
    write_deltalake(url, rows_of(columns, dt="1", Hour=1), partition_by=["dt", "Hour"])
    with pytest.raises(
        InputError,
        match=r"found wide \.\.\.[^;]{1,80}field_59:bigint> for \.\.\.[^;]{1,80}field_59:string>, ",
    ):
        register(spark, url, name)


def test_columns_members_of_structs_and_keys_may_change_their_order(
    spark: Any, tmp_path: Path, name: str
) -> None:
    url, by_place = str(tmp_path / "table"), "parquet.column.index.access"
    row: dict[str, Any] = {"x": 3, "pair": {"p": 1, "q": 2}, "dt": "1", "hour": "7"}
    row |= {"inner": {"pair": row["pair"]}, "pairs": [row["pair"]]}

    def made_anew(columns: list[str], keys: list[str], pair: str) -> None:
        shutil.rmtree(url, ignore_errors=True)
        of = pa.struct([(each, pa.int64()) for each in pair])
        types = {"x": pa.int64(), "pair": of, "inner": pa.struct([("pair", of)])}
        types |= {"pairs": pa.list_(of), "dt": pa.string(), "hour": pa.string()}
        schema = pa.schema([(each, types[each]) for each in columns])
        write_deltalake(url, pa.Table.from_pylist([row], schema), partition_by=keys)

    columns, keys = ["x", "pair", "inner", "pairs", "dt", "hour"], ["dt", "hour"]
    made_anew(columns, keys, "pq")
    register(spark, url, name)
    made_anew(columns[::-1], keys[::-1], "qp")
    register(spark, url, name)
    pairs = ", ".join(f"{each}.p, {each}.q" for each in ("pair", "inner.pair", "pairs[0]"))
    for _ in by_each_reader(spark):
        found = spark.sql(f"SELECT x, {pairs}, dt, hour FROM {name}").first()
        assert tuple(found) == (3, 1, 2, 1, 2, 1, 2, "1", "7")
    for kind in ("TBLPROPERTIES", "SERDEPROPERTIES"):
        spark.sql(f"ALTER TABLE {name} SET {kind} ('{by_place}'='true')")
        with pytest.raises(
            InputError,
            match=rf"in this order, since the table or this session says {by_place}=true",
        ):
            register(spark, url, name)
        spark.sql(f"ALTER TABLE {name} SET {kind} ('{by_place}'='false')")
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set(by_place, "true")
    try:
        with pytest.raises(InputError, match=f"or this session says {by_place}=true"):
            register(spark, url, name)
    finally:
        hadoop.unset(by_place)
    assert not register(spark, url, name).new_columns
    made_anew(columns, keys[::-1], "pq")
    assert not register(spark, url, name).new_columns


def test_a_session_without_a_metastore_is_refused(job: ExtractJob) -> None:
    conf = {"spark.sql.catalogImplementation": "in-memory"}
    with pytest.raises(InputError, match="this Spark session has no Hive metastore"):
        register(SimpleNamespace(conf=conf), job.table_url, "default.clicks")
