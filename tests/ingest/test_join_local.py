"""What the engine `local` reads, keeps and refuses; the join itself is tested on both engines in
`test_join.py` and `test_join_output.py`.
"""

import datetime
import decimal
import itertools
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import ConfigError, InputError
from featstore.ingest.join import join_labels, read_source
from featstore.ingest.join_local import join_labels_locally, write_parquet
from featstore.ingest.join_log import open_log, spark_type
from featstore.ingest.join_options import Impressions, Label, LabelJoin, LogSource, Lookup
from featstore.ops.hashing import row_hash
from featstore.tools.programs import unwound_by_signals
from tests.iceberg_tables import catalog_at, commit_deletes, position_deletes
from tests.ops.test_hashing import COLUMNS
from tests.parquet_files import put_parquet

START = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
TIME = pa.timestamp("us", tz="UTC")
START_US = int(START.timestamp()) * 1_000_000


def times(*seconds: float) -> pa.Array:
    return pa.array([START_US + int(second * 1e6) for second in seconds], TIME)


def join_of(directory: Path, **changes: Any) -> LabelJoin:
    """Impressions of `i`, and clicks of `c` by `rid`."""
    label = Label(
        name="click",
        source=LogSource(url=str(directory / "c")),
        key=("rid",),
        event_time="at",
        window_s=60,
    )
    options: dict[str, Any] = {
        "impressions": Impressions(
            source=LogSource(url=str(directory / "i")), row_id=("rid",), event_time="ts"
        ),
        "labels": (label,),
        "cut_off": START + datetime.timedelta(days=1),
        "output_url": str(directory / "out"),
    }
    return LabelJoin(**options | changes)


@pytest.fixture
def join(tmp_path: Path) -> LabelJoin:
    """Two impressions, of which the second is clicked."""
    put_parquet(tmp_path / "i/a.parquet", {"rid": [1, 2], "ts": times(0, 10)})
    put_parquet(tmp_path / "c/a.parquet", {"rid": [2], "at": times(20)})
    return join_of(tmp_path)


def rows_of(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(url).to_pylist()
    return found


@pytest.mark.slow
def test_rows_hash_as_in_spark(spark: Any, tmp_path: Path) -> None:
    """Each type of Parquet that Spark reads, alone and all of them chained."""
    put_parquet(tmp_path / "a.parquet", COLUMNS)
    frame = spark.read.parquet(str(tmp_path))
    entries = {name: f"map_entries({name})" if name == "map" else name for name in COLUMNS}
    hashes = [f"xxhash64({text}) as {name}" for name, text in entries.items()]
    found = frame.selectExpr(*hashes, f"xxhash64({', '.join(entries.values())}) as all").collect()
    expected = {name: row_hash([column]) for name, column in COLUMNS.items()}
    expected["all"] = row_hash(list(COLUMNS.values()))
    for name, column in expected.items():
        assert [row[name] for row in found] == column.to_pylist(), name
    assert {name: spark_type(column.type) for name, column in COLUMNS.items() if not
            pa.types.is_nested(column.type)} == {
        name: of for name, of in frame.dtypes if not of.startswith(("array", "struct", "map"))
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "pattern"),
    [
        (("1", "2"), ""),
        (("1", "3000000000"), ""),
        (("2026-11-01", "2026-11-02"), ""),
        (("2026-11-01", "2026-13-01"), ""),
        (("a", "__HIVE_DEFAULT_PARTITION__"), ""),
        (("1", "2"), "/*"),
        (("1", "2"), "/k=1"),
    ],
)
def test_directories_are_columns_of_the_types_that_spark_infers(
    spark: Any, tmp_path: Path, values: tuple[str, str], pattern: str
) -> None:
    for value in values:
        # Spark refuses keys below several directories that a pattern matches.
        below = "" if "*" in pattern else "h=7/"
        put_parquet(tmp_path / f"log/k={value}/{below}a.parquet", {"x": [1]})
    source = LogSource(url=f"{tmp_path}/log{pattern}")
    log, frame = open_log(source), read_source(spark, source)
    assert {field.name: spark_type(field.type) for field in log.schema} == dict(frame.dtypes)
    found = [row for _, batch in log.batches(log.schema.names) for row in batch.to_pylist()]
    read = [row.asDict() for row in frame.collect()]
    assert sorted(map(repr, found)) == sorted(map(repr, read))


@pytest.mark.slow
def test_ties_sums_and_digests_are_those_of_a_join_on_spark(spark: Any, tmp_path: Path) -> None:
    """Sums of floats in the order of time, whose last bits depend on it, and rows of equal rank."""
    rids = [n % 40 for n in range(120)]
    price = [float(n) for n in range(120)]
    put_parquet(
        tmp_path / "i/a.parquet",
        {"rid": rids, "user": [n % 3 for n in rids], "ts": times(*rids), "price": price},
    )
    at, value = (
        times(*(n % 60 for n in range(600))),
        [10.0 ** (n * 7 % 31 - 15) for n in range(600)],
    )
    put_parquet(
        tmp_path / "c/a.parquet",
        {"eid": range(600), "user": [n % 3 for n in range(600)], "at": at, "value": value},
    )
    put_parquet(
        tmp_path / "u/a.parquet", {"user": [0, 0, 1], "at": times(0, 0, 5), "age": [1, 2, 3]}
    )
    labels = tuple(
        Label(
            name=f"{kind}_{attribution}",
            source=LogSource(url=str(tmp_path / "c")),
            key=("user",),
            event_time="at",
            event_id=("eid",),
            value="value",
            kind=kind,
            attribution=attribution,
            window_s=50,
        )
        for kind, attribution in itertools.product(("sum", "last"), ("all", "first"))
    )
    user = Lookup(
        name="user",
        source=LogSource(url=str(tmp_path / "u")),
        key=("user",),
        event_time="at",
        columns=("age",),
    )
    join = join_of(tmp_path, labels=labels, lookups=(user,))
    local = join_labels_locally(join)
    there = join_labels(replace(join, output_url=f"{join.output_url}2"), spark)
    ours, theirs = (pq.read_table(report.url).sort_by("rid") for report in (local, there))
    assert ours.schema.names == theirs.schema.names
    assert ours.to_pylist() == theirs.to_pylist()
    sizes = {"num_files", "size_bytes"}
    for report in (local, there):
        for name in sizes:
            del report.document["output"][name]
    assert local.document == there.document


def test_rows_keep_their_order_and_types(join: LabelJoin, tmp_path: Path) -> None:
    n = 10
    columns = {name: column.take(pa.array([0] * n)) for name, column in COLUMNS.items()}
    given = pa.table({"rid": list(range(n))[::-1], "ts": times(*range(n))} | columns)
    put_parquet(tmp_path / "i/a.parquet", given)
    url = join_labels_locally(join).url
    assert pq.read_table(url).drop(["click"]).to_pylist() == given.to_pylist()
    written, read = (pq.ParquetFile(f) for f in (f"{url}/part-0.parquet", tmp_path / "i/a.parquet"))
    leaves = [str(read.schema.column(n)) for n in range(len(read.schema))]
    assert [str(written.schema.column(n)) for n in range(len(written.schema) - 1)] == leaves
    assert written.schema_arrow.field("click").type == pa.int32()


def test_looked_up_values_keep_their_types(join: LabelJoin, tmp_path: Path) -> None:
    columns = {name: column.slice(0, 1) for name, column in COLUMNS.items()}
    put_parquet(tmp_path / "u/a.parquet", {"rid": [2], "at": times(0)} | columns)
    user = Lookup(
        name="user",
        source=LogSource(url=str(tmp_path / "u")),
        key=("rid",),
        event_time="at",
        columns=tuple(columns),
    )
    table = pq.read_table(join_labels_locally(replace(join, lookups=(user,))).url)
    types = open_log(user.source).schema
    for name, column in columns.items():
        assert table[f"user_{name}"].to_pylist() == [None, *column.to_pylist()], name
        assert table.schema.field(f"user_{name}").type == types.field(name).type, name


def test_labels_of_decimals_are_the_nearest_doubles(join: LabelJoin, tmp_path: Path) -> None:
    """As on Spark; Arrow's own cast gives 13786236.680100001."""
    number = decimal.Decimal("13786236.6801")
    value = pa.array([number], pa.decimal128(18, 4))
    put_parquet(tmp_path / "c/a.parquet", {"rid": [2], "at": times(20), "value": value})
    label = replace(join.labels[0], kind="first", value="value")
    report = join_labels_locally(replace(join, labels=(label,)))
    assert [row["click"] for row in rows_of(report.url)] == [0, float(number)]


def test_looked_up_lists_of_a_fixed_length_may_be_null(join: LabelJoin, tmp_path: Path) -> None:
    pairs = pa.array([[1, 2], None], pa.list_(pa.int64(), 2))
    put_parquet(tmp_path / "u/a.parquet", {"rid": [1, 2], "at": times(0, 0), "pair": pairs})
    source = LogSource(url=str(tmp_path / "u"))
    user = Lookup(name="user", source=source, key=("rid",), event_time="at", columns=("pair",))
    table = pq.read_table(join_labels_locally(replace(join, lookups=(user,))).url)
    assert table["user_pair"].combine_chunks().equals(pairs)


def test_a_delta_table_is_a_log_without_its_deleted_rows(join: LabelJoin, tmp_path: Path) -> None:
    url = str(tmp_path / "table")
    deltalake.write_deltalake(url, pa.table({"rid": [1, 2], "at": times(5, 20)}))
    deltalake.DeltaTable(url).delete("rid = 2")
    label = replace(join.labels[0], source=LogSource(url=f"delta+{url}"))
    report = join_labels_locally(replace(join, labels=(label,)))
    assert [row["click"] for row in rows_of(report.url)] == [1, 0]
    assert not join_labels_locally(replace(join, labels=(label,))).written
    deltalake.write_deltalake(url, pa.table({"rid": [2], "at": times(20)}), mode="append")
    assert join_labels_locally(replace(join, labels=(label,))).written
    assert [row["click"] for row in rows_of(report.url)] == [1, 1]


def test_iceberg_tables_are_logs_without_their_deleted_rows(
    join: LabelJoin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Impressions at two snapshots, the first of which has the time under another name, and clicks
    by a metadata file.
    """
    pytest.importorskip("pyiceberg")
    from pyiceberg.transforms import IdentityTransform

    days = pa.array(["a", "b"])
    given = pa.table({"rid": [1, 2], "shown": times(0, 10), "day": days})
    with catalog_at(tmp_path, monkeypatch) as catalog:
        impressions = catalog.create_table("db.impressions", given.schema)
        with impressions.update_spec() as update:
            update.add_field("day", IdentityTransform(), "day")
        impressions.append(given)
        with impressions.update_schema() as update:
            update.rename_column("shown", "ts")
        for rid in (3, 4):
            impressions.append(pa.table({"rid": [rid], "ts": times(30), "day": days[:1]}))
        old, second, _ = (each.snapshot_id for each in impressions.history())
        clicks = catalog.create_table("db.clicks", pa.schema([("rid", pa.int64()), ("at", TIME)]))
        clicks.append(pa.table({"rid": [1, 2, 3], "at": times(5, 20, 40)}))
    [path] = clicks.inspect.files()["file_path"].to_pylist()
    deleted = commit_deletes(clicks, tmp_path, [position_deletes(tmp_path, [(path, 1)])])

    def joined(clicks_url: str, query: str = "") -> Any:
        log = LogSource(url=f"iceberg://test/db.impressions{query}")
        labels = (replace(join.labels[0], source=LogSource(url=clicks_url)),)
        of = replace(join.impressions, source=log)
        return join_labels_locally(replace(join, impressions=of, labels=labels))

    def found() -> list[tuple[Any, ...]]:
        rows = rows_of(str(tmp_path / "out"))
        return sorted((row["rid"], row["day"], row["click"]) for row in rows)

    at_second = f"?version={second}"
    assert joined(deleted, at_second).written
    assert found() == [(1, "a", 1), (2, "b", 0), (3, "a", 1)]
    assert not joined(deleted, at_second).written
    assert joined("iceberg://test/db.clicks", at_second).written
    assert found() == [(1, "a", 1), (2, "b", 1), (3, "a", 1)]
    assert joined(deleted).written
    assert found() == [(1, "a", 1), (2, "b", 0), (3, "a", 1), (4, "a", 0)]
    with pytest.raises(InputError, match="no column 'ts'"):
        joined(deleted, f"?version={old}")


def test_files_may_lack_columns_and_none_may_change_its_type(
    join: LabelJoin, tmp_path: Path
) -> None:
    put_parquet(tmp_path / "i/b.parquet", {"rid": [3], "ts": times(30), "more": ["x"]})
    rows = rows_of(join_labels_locally(join).url)
    assert [row["more"] for row in rows] == [None, None, "x"]
    put_parquet(tmp_path / "i/c.parquet", {"rid": ["4"], "ts": times(40)})
    with pytest.raises(InputError, match=r"i: a column has several types in its files .*rid"):
        join_labels_locally(join)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ({"sql": "select 1"}, "the engine `local` runs no queries and knows no metastore"),
        ({"table": "db.clicks"}, "db.clicks: the engine `local` runs no queries"),
        ({"url": "csv"}, r"a\.csv: import text to Parquet first"),
        ({"url": "none"}, "no raw files at .*none: expected a Parquet file"),
        ({"url": "mixed"}, r"expected all files in directories of the keys \[\], found .*k=1"),
        ({"url": "halves"}, "takes the values of directories as integers, dates .*k=0.5"),
        ({"url": "delta"}, r"lies in the Delta table .*name the table .*delta\+"),
    ],
)
def test_logs_that_only_spark_reads_are_refused(
    join: LabelJoin, tmp_path: Path, log: dict[str, str], message: str
) -> None:
    for directory in ("mixed/k=1", "mixed", "halves/k=0.5"):
        put_parquet(tmp_path / directory / "a.parquet", {"rid": [1], "at": times(1)})
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv/a.csv").write_text("rid,at\n")
    deltalake.write_deltalake(str(tmp_path / "delta"), pa.table({"rid": [1], "at": times(5)}))
    source = LogSource(**{k: str(tmp_path / v) if k == "url" else v for k, v in log.items()})
    with pytest.raises(InputError, match=message):
        join_labels_locally(replace(join, labels=(replace(join.labels[0], source=source),)))
    assert not Path(join.output_url).exists()


def test_keys_and_columns_that_cannot_be_compared_are_refused(
    join: LabelJoin, tmp_path: Path
) -> None:
    pairs = pa.array([{"a": 1}])
    put_parquet(tmp_path / "c/a.parquet", {"rid": [2], "at": times(20), "eid": pairs})
    by_pair = (replace(join.labels[0], event_id=("eid",)),)
    with pytest.raises(InputError, match=r"'eid' is struct<.*compares no rows; expected text"):
        join_labels_locally(replace(join, labels=by_pair))
    clock = pa.array([1, 2], pa.time64("us"))
    put_parquet(tmp_path / "i/a.parquet", {"rid": [1, 2], "ts": times(0, 10), "clock": clock})
    with pytest.raises(InputError, match=r"cannot be compared .*found time64\[us\]\): leave it"):
        join_labels_locally(join)
    assert not Path(join.output_url).exists()


@pytest.mark.parametrize(
    ("log", "column", "message"),
    [
        ("i", "rid", r"/i: the columns rid, ts cannot be joined by the engine `local` \(Invalid"),
        ("c", "rid", r"/c: the columns rid, at cannot be joined by the engine `local` \(Invalid"),
        ("u", "text", r"/u: the columns rid, at, text cannot be joined .*leave the column or its"),
    ],
)
def test_values_that_duckdb_refuses_are_named(
    join: LabelJoin, tmp_path: Path, log: str, column: str, message: str
) -> None:
    logs: dict[str, dict[str, Any]] = {
        "i": {"rid": ["a", "b"], "ts": times(0, 10)},
        "c": {"rid": ["a", "b"], "at": times(5, 20)},
        "u": {"rid": ["a", "b"], "at": times(0, 0)},
    }
    invalid = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff\xfe", b"b"]).buffers())
    logs[log][column] = invalid
    for name, columns in logs.items():
        put_parquet(tmp_path / name / "a.parquet", columns)
    source = LogSource(url=str(tmp_path / "u"))
    looked_up = (column,) if log == "u" else ("at",)
    user = Lookup(name="user", source=source, key=("rid",), event_time="at", columns=looked_up)
    with pytest.raises(InputError, match=message) as caught:
        join_labels_locally(replace(join, lookups=(user,)))
    assert "\n" not in str(caught.value)
    assert not Path(join.output_url).exists()


@pytest.mark.parametrize("found", [pa.decimal128(9, 2), pa.binary(), pa.list_(pa.int64())])
def test_directories_are_refused_by_type_before_rows_are_read(
    join: LabelJoin, tmp_path: Path, found: pa.DataType
) -> None:
    columns = {"rid": [1, 2], "ts": times(0, 10), "part": pa.nulls(2, found)}
    put_parquet(tmp_path / "i/a.parquet", columns)

    def write(rows: pa.RecordBatchReader, url: str, partition_by: tuple[str, ...]) -> None:
        raise AssertionError

    with pytest.raises(InputError, match=r"/i: 'part' is .* spreads no rows over directories"):
        join_labels_locally(replace(join, partition_by=("part",)), write=write)


def test_directories_of_days_that_are_none_are_text(tmp_path: Path) -> None:
    for day in ("2026-11-01", "2026-13-01"):
        put_parquet(tmp_path / f"log/dt={day}/a.parquet", {"x": [1]})
    log = open_log(LogSource(url=str(tmp_path / "log")))
    found = [value for _, batch in log.batches(["dt"]) for value in batch["dt"].to_pylist()]
    assert found == ["2026-11-01", "2026-13-01"]


def test_impressions_that_change_before_they_are_read_again_are_named(
    join: LabelJoin, tmp_path: Path
) -> None:
    def write(rows: pa.RecordBatchReader, url: str, partition_by: tuple[str, ...]) -> None:
        put_parquet(tmp_path / "i/a.parquet", {"rid": [1, 2, 3], "ts": times(0, 10, 20)})
        write_parquet(rows, url, partition_by)

    with pytest.raises(InputError, match=r"i/a\.parquet changed while it was read"):
        join_labels_locally(join, write=write)
    assert not list((tmp_path).glob("*/_join_labels-*")) + list(tmp_path.glob("_join_labels-*"))


def test_rows_are_spread_over_more_directories_than_arrow_writes_by_default(
    join: LabelJoin, tmp_path: Path
) -> None:
    num_rows = 1_100
    put_parquet(tmp_path / "i/a.parquet", {"rid": range(num_rows), "ts": times(*range(num_rows))})
    report = join_labels_locally(replace(join, partition_by=("rid",)))
    assert report.document["output"]["num_files"] == num_rows


def test_empty_text_names_no_directory(tmp_path: Path) -> None:
    """As Spark's writer, which takes it for null."""
    rows = pa.table({"k": ["a", "", None], "n": [1, 2, 3]})
    write_parquet(rows.to_reader(), str(tmp_path / "rows"), ("k",))
    found = {path.parent.name: pq.ParquetFile(path).read()["n"].to_pylist()
             for path in (tmp_path / "rows").rglob("*.parquet")}  # fmt: skip
    assert found == {"k=a": [1], "k=__HIVE_DEFAULT_PARTITION__": [2, 3]}


@pytest.mark.slow
def test_a_log_beyond_the_memory_limit_goes_to_disk(tmp_path: Path) -> None:
    """Ids alone take more than the limit. What was spilled is seen while rows are written."""
    num_rows, limit_bytes, spilled = 400_000, 64_000_000, list[int]()
    ids = pa.array([f"{n:0200d}" for n in range(num_rows)])
    assert ids.nbytes > limit_bytes
    at = pa.array(range(START_US, START_US + num_rows), TIME)
    put_parquet(tmp_path / "i/a.parquet", {"rid": ids, "ts": at}, use_dictionary=False)
    put_parquet(tmp_path / "c/a.parquet", {"rid": ids, "at": at}, use_dictionary=False)
    spill = tmp_path / "spill"
    spill.mkdir()

    def write(rows: pa.RecordBatchReader, url: str, partition_by: tuple[str, ...]) -> None:
        spilled.extend(path.stat().st_size for path in spill.rglob("*") if path.is_file())
        write_parquet(rows, url, partition_by)

    join = join_of(tmp_path)
    report = join_labels_locally(join, memory_bytes=limit_bytes, spill=str(spill), write=write)
    assert sum(spilled) > 0
    assert report.document["labels"][0]["num_hit"] == num_rows
    assert not list(spill.iterdir())


def test_a_signal_ends_the_writing_and_leaves_nothing(join: LabelJoin, tmp_path: Path) -> None:
    for n in range(50):
        put_parquet(tmp_path / f"i/b{n}.parquet", {"rid": [10 + n], "ts": times(n)})
    written = []

    def write(rows: pa.RecordBatchReader, url: str, partition_by: tuple[str, ...]) -> None:
        Path(url).mkdir(parents=True)
        os.kill(os.getpid(), signal.SIGTERM)
        for batch in rows:
            written.append(batch)
            time.sleep(0.05)

    with pytest.raises(SystemExit) as ended, unwound_by_signals():
        join_labels_locally(join, spill=str(tmp_path), write=write)
    assert ended.value.code == 143
    assert len(written) < 50
    assert {path.name for path in tmp_path.iterdir()} == {"i", "c"}


def test_too_little_memory_is_named_and_leaves_nothing(join: LabelJoin, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected more memory than 300,000 bytes \(--memory\)"):
        join_labels_locally(join, memory_bytes=300_000, spill=str(tmp_path))
    assert not list((tmp_path / "out").glob("*"))
    assert not list(tmp_path.glob("featstore-join-*"))
