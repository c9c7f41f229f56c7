"""Joins and imports into Delta tables: one commit, the days that a run writes and no others, and
nothing of a run that is killed or overtaken.
"""

import contextlib
import datetime
import decimal
import json
import os
import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import featstore
from featstore.base.errors import (
    CommitConflictError,
    EmptyInputError,
    InputError,
    JoinError,
    StoreError,
)
from featstore.extraction.deletion import delete_rows
from featstore.extraction.rewriting import compact
from featstore.ingest import table_output
from featstore.ingest.join import join_labels
from featstore.ingest.join_local import join_labels_locally
from featstore.ingest.join_options import Impressions, Label, LabelJoin, LogSource
from featstore.ingest.table_output import (
    RawTable,
    RowFile,
    RowTarget,
    table_schema,
    write_rows,
)
from featstore.spec.parse import load_spec
from featstore.table import delta
from featstore.table.open import open_input
from featstore.table.vacuum import vacuum
from tests.parquet_files import put_parquet
from tests.programs import run_python

Row = dict[str, Any]
START = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
TIME = pa.timestamp("us", tz="UTC")


def write_logs(directory: Path, rids: list[str], day: str = "a") -> None:
    """Impressions a minute apart, in two countries, of which the first is clicked."""
    times = [START + datetime.timedelta(minutes=n) for n in range(len(rids))]
    countries = [("FR", "DE")[n % 2] for n in range(len(rids))]
    columns = {
        "rid": pa.array(rids, pa.string()),
        "country": pa.array(countries, pa.string()),
        "ts": pa.array(times, TIME),
    }
    put_parquet(directory / "impressions" / f"{day}.parquet", columns)
    put_parquet(
        directory / "clicks" / f"{day}.parquet",
        {
            "rid": pa.array(rids[:1], pa.string()),
            "at": pa.array([START + datetime.timedelta(seconds=5)][: len(rids)], TIME),
        },
    )


@pytest.fixture
def join(tmp_path: Path) -> LabelJoin:
    write_logs(tmp_path, ["r1", "r2", "r3"])
    label = Label(
        name="click",
        source=LogSource(url=str(tmp_path / "clicks")),
        key=("rid",),
        event_time="at",
        window_s=60,
    )
    return LabelJoin(
        impressions=Impressions(
            source=LogSource(url=str(tmp_path / "impressions")), row_id=("rid",), event_time="ts"
        ),
        labels=(label,),
        cut_off=START + datetime.timedelta(days=1),
        output_url=f"delta+{tmp_path}/joined",
        partition={"dt": "2026-11-01"},
    )


Run = Callable[..., Any]


@pytest.fixture(params=[pytest.param("spark", marks=pytest.mark.slow), "local"])
def run(request: pytest.FixtureRequest) -> Run:
    """What a join runs on."""
    if request.param == "local":
        return lambda join, **given: join_labels_locally(join, memory_bytes=200_000_000, **given)
    spark = request.getfixturevalue("spark")
    return lambda join, **given: join_labels(join, spark, **given)


def local(join: LabelJoin, **given: Any) -> Any:
    return join_labels_locally(join, memory_bytes=200_000_000, **given)


def rows_of(url: str, version: int | None = None) -> list[Row]:
    """What any reader of Delta tables finds, in the order of the ids."""
    table = deltalake.DeltaTable(url, version=version).to_pyarrow_table()
    return sorted(table.to_pylist(), key=lambda row: str(row["rid"]))


def clicks(url: str, version: int | None = None) -> list[tuple[str, int]]:
    return [(row["rid"], row["click"]) for row in rows_of(url, version)]


def files_in(directory: Path) -> list[str]:
    """Data files, and all else but the log that no reader knows."""
    found = (p.relative_to(directory) for p in directory.rglob("*") if p.is_file())
    return sorted(str(path) for path in found if path.parts[0] != "_delta_log")


def test_a_join_is_one_version_which_an_extraction_reads(
    run: Run, join: LabelJoin, tmp_path: Path
) -> None:
    report = run(join)
    assert report.url == f"{join.output_url}?version=0"
    table = str(tmp_path / "joined")
    assert rows_of(table)[0] == {
        "rid": "r1", "country": "FR", "ts": START, "click": 1, "dt": "2026-11-01"
    }  # fmt: skip
    assert clicks(table) == [("r1", 1), ("r2", 0), ("r3", 0)]
    write_logs(tmp_path, ["r8", "r9"])
    assert run(join).url == f"{join.output_url}?version=1"
    spec = {"spec": 1, "inputs": {"rid": "string", "click": "int"}, "labels": {"click": "click"},
            "keep": ["rid"], "slots": [{"slot": 1, "name": "id", "op": "hash", "of": "rid"}]}  # fmt: skip
    for url, rids in ((report.url, ["r1", "r2", "r3"]), (join.output_url, ["r8", "r9"])):
        features = tmp_path / f"features{len(rids)}"
        featstore.extract(
            load_spec(spec), url, str(features), partition_from_path=["dt"], spark=None
        )
        found = featstore.open_table(str(features)).to_arrow().to_pydict()
        assert sorted(found["rid"]) == rids


def test_an_equal_join_commits_nothing_and_tells_the_report(join: LabelJoin) -> None:
    first = local(join)
    again = local(join)
    assert (first.written, again.written) == (True, False)
    assert (again.url, again.document) == (first.url, first.document)
    assert "nothing to do: an equal join wrote 3 rows in" in str(again)
    assert json.loads(json.dumps(first.document)) == first.document
    other = local(replace(join, partition={"dt": "2026-11-02"}))
    assert other.url.endswith("?version=1")
    assert not local(join).written  # that of another day leaves this one as it is


def clicks_of(join: LabelJoin, url: str) -> LabelJoin:
    return replace(join, labels=(replace(join.labels[0], source=LogSource(url=url)),))


def test_negatives_of_a_join_are_deleted_by_their_zero(join: LabelJoin, tmp_path: Path) -> None:
    local(join)
    url = f"{tmp_path}/joined"
    assert clicks(url) == [("r1", 1), ("r2", 0), ("r3", 0)]
    assert delete_rows(url, "click is null").num_rows == 0
    assert delete_rows(url, "click = 0").num_rows == 2
    assert clicks(url) == [("r1", 1)]


def test_a_join_of_a_range_of_days_stays_equal_when_later_ones_come(
    join: LabelJoin, tmp_path: Path
) -> None:
    log = str(tmp_path / "log")
    for day in (1, 2, 4):
        at = pa.array([START + datetime.timedelta(minutes=day - 1, seconds=5)], TIME)
        rows = pa.table({"rid": [f"r{day}"], "dt": [f"2026-11-0{day}"], "at": at})
        deltalake.write_deltalake(log, rows, mode="append", partition_by=["dt"])
        joined = local(clicks_of(join, f"delta+{log}?dt=2026-11-01..2026-11-02"))
        assert joined.written == (day < 4)
    assert clicks(str(tmp_path / "joined")) == [("r1", 1), ("r2", 1), ("r3", 0)]
    with pytest.raises(InputError, match=r"partitions of it that it has, .*\?dt=2026-11-01\.\."):
        local(clicks_of(join, f"delta+{log}?dt=2026-11-0[12]"))


def test_of_another_input_that_makes_equal_rows_nothing_is_committed(
    run: Run, join: LabelJoin, tmp_path: Path
) -> None:
    first, table = run(join), tmp_path / "joined"
    files = files_in(table)
    later = {"rid": ["r9"], "at": pa.array([START + datetime.timedelta(seconds=125)], TIME)}
    put_parquet(tmp_path / "clicks" / "later.parquet", later)
    again = run(join)
    assert (again.written, again.url, again.document) == (False, first.url, first.document)
    assert files_in(table) == files
    assert deltalake.DeltaTable(table).version() == 0
    put_parquet(tmp_path / "clicks" / "later.parquet", later | {"rid": ["r3"]})
    assert run(join).url.endswith("?version=1")
    assert clicks(str(table)) == [("r1", 1), ("r2", 0), ("r3", 1)]


def test_rows_that_another_writer_deleted_are_committed_again(
    join: LabelJoin, tmp_path: Path
) -> None:
    local(join)
    deltalake.DeltaTable(tmp_path / "joined").delete("rid = 'r2'")
    assert local(join).url.endswith("?version=2")
    assert len(clicks(str(tmp_path / "joined"))) == 3


def test_a_compacted_day_is_known_to_be_that_of_an_equal_join(
    join: LabelJoin, tmp_path: Path
) -> None:
    local(join)
    path = tmp_path / "joined"
    assert compact(str(path), field_ids=True).version == 1
    again = local(join)
    assert (again.written, again.url) == (False, f"{join.output_url}?version=1")


def test_a_run_replaces_what_it_writes_and_leaves_the_other_days(
    run: Run, join: LabelJoin, tmp_path: Path
) -> None:
    table = str(tmp_path / "joined")
    by_country = replace(join, partition_by=("country",))
    run(by_country)
    run(replace(by_country, partition={"dt": "2026-11-02"}))
    write_logs(tmp_path, ["r8"])  # a day without rows of DE
    run(by_country)
    assert sorted((row["dt"], row["country"], row["rid"]) for row in rows_of(table)) == [
        ("2026-11-01", "FR", "r8"),
        ("2026-11-02", "DE", "r2"),
        ("2026-11-02", "FR", "r1"),
        ("2026-11-02", "FR", "r3"),
    ]
    assert deltalake.DeltaTable(table).metadata().partition_columns == ["dt", "country"]


def test_partitions_by_a_column_alone_stay_if_no_row_is_of_them(
    join: LabelJoin, tmp_path: Path
) -> None:
    by_country = replace(join, partition={}, partition_by=("country",))
    local(by_country)
    write_logs(tmp_path, ["r8"])
    local(by_country)
    assert clicks(str(tmp_path / "joined")) == [("r2", 0), ("r8", 1)]


@pytest.mark.parametrize("partition_by", [(), ("country",)])
def test_a_failed_run_leaves_no_file(
    join: LabelJoin, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    seen = []

    def refused(url: str, change: Any) -> int:
        seen.extend(files_in(tmp_path / "joined"))
        raise InputError("another schema")

    with pytest.raises(InputError, match="another schema"):
        local(replace(join, partition_by=partition_by), commit=refused)
    assert len([name for name in seen if name.endswith(".parquet")]) == 1 + len(partition_by)
    assert not files_in(tmp_path / "joined")


def test_rows_that_are_lost_on_the_way_are_never_committed(
    join: LabelJoin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pq.ParquetWriter.write_table

    def losing(self: pq.ParquetWriter, table: pa.Table, **options: Any) -> None:
        whole(self, table.slice(1), **options)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", losing)
    with pytest.raises(JoinError, match=r"the files hold 2 \(digest .* rows instead of 3"):
        local(join)
    assert not files_in(tmp_path / "joined")


KILLED = """
import os, pickle, signal, sys
from featstore.ingest.join_local import join_labels_locally

def killed(url, change):
    os.kill(os.getpid(), signal.SIGKILL)

join = pickle.loads(bytes.fromhex(sys.argv[1]))
join_labels_locally(join, memory_bytes=200_000_000, commit=killed)
"""


def test_a_run_that_is_killed_before_its_commit_leaves_what_a_vacuum_finds(
    join: LabelJoin, tmp_path: Path
) -> None:
    local(join)
    table, before = tmp_path / "joined", files_in(tmp_path / "joined")
    write_logs(tmp_path, ["r8", "r9"])
    run_python(KILLED, pickle.dumps(join).hex(), status=-signal.SIGKILL)
    left = sorted({*files_in(table)} - {*before})
    assert [name.rpartition("/")[0] for name in left] == ["_runs", "dt=2026-11-01"]
    assert clicks(str(table)) == [("r1", 1), ("r2", 0), ("r3", 0)]
    old = time.time() - 7_200
    for name in left:
        os.utime(table / name, (old, old))
    kinds = sorted(found.kind for found in vacuum(str(table), grace_s=3_600.0).removed)
    assert kinds == ["mark of a dead run", "orphan"]
    assert files_in(table) == before
    assert local(join).written  # an equal run starts anew
    assert clicks(str(table)) == [("r8", 1), ("r9", 0)]


def test_of_two_runs_that_write_a_day_at_once_one_is_told(join: LabelJoin, tmp_path: Path) -> None:
    def overtaken(url: str, change: Any) -> int:
        write_logs(tmp_path, ["r8"])
        local(join)
        return delta.commit(url, change)

    with pytest.raises(CommitConflictError, match="another writer committed dt=2026-11-01"):
        local(join, commit=overtaken)
    table = tmp_path / "joined"
    assert clicks(str(table)) == [("r8", 1)]
    assert len(files_in(table)) == 1  # the one of the other run


def test_a_reply_that_is_lost_leaves_the_rows_and_says_so(join: LabelJoin, tmp_path: Path) -> None:
    def unheard(url: str, change: Any) -> int:
        delta.commit(url, change)
        raise StoreError("no answer")

    with pytest.raises(StoreError, match="no answer") as raised:
        local(join, commit=unheard)
    assert "It is not known whether the join was committed" in raised.value.__notes__[0]
    assert clicks(str(tmp_path / "joined")) == [("r1", 1), ("r2", 0), ("r3", 0)]
    assert not local(join).written


def test_a_table_may_get_columns_and_none_may_change_its_type(
    join: LabelJoin, tmp_path: Path
) -> None:
    local(join)
    clicked_at = replace(join.labels[0], with_time=True)
    local(replace(join, labels=(clicked_at,), partition={"dt": "2026-11-02"}))
    assert [row["click_time"] for row in rows_of(str(tmp_path / "joined"))].count(None) == 5
    valued = replace(join.labels[0], kind="sum", value="price")
    put_parquet(
        tmp_path / "clicks" / "a.parquet",
        {"rid": ["r1"], "at": pa.array([START], TIME), "price": [1.5]},
    )
    with pytest.raises(InputError, match=r"'click' is int32 of another writer, .*double"):
        local(replace(join, labels=(valued,)))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"partition": {}}, "is partitioned by dt, the join would write partitions by nothing"),
        ({"partition_by": ("dt",)}, "expected each partition key once, found dt, dt"),
        ({"partition_by": ("ts",)}, "is partitioned by dt, the join"),
        ({"output_url": "delta+x?dt=1"}, r"without '\?', found"),
        ({"output_url": "delta+"}, "found no URL"),
        ({"output_url": "delta+https://host/x"}, "expected a Delta table by a path, or at"),
    ],
)
def test_what_does_not_fit_the_table_is_refused(
    join: LabelJoin, tmp_path: Path, change: Row, error: str
) -> None:
    local(join)
    with pytest.raises(InputError, match=error):
        local(replace(join, **change))
    assert clicks(str(tmp_path / "joined")) == [("r1", 1), ("r2", 0), ("r3", 0)]


def test_a_time_is_no_partition_and_a_column_no_key_as_well(
    join: LabelJoin, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"'ts' is timestamp.*by which no partitions are made"):
        local(replace(join, partition_by=("ts",)))
    with pytest.raises(InputError, match=r"a column 'country', .*--partition-by country"):
        local(replace(join, partition={"country": "FR"}))
    assert not (tmp_path / "joined").exists()


def test_a_task_writes_no_file_of_rows_that_no_table_can_have(tmp_path: Path) -> None:
    """Tasks of Spark are the first to see the columns."""
    rows = pa.record_batch({"rid": ["r1"], "country": ["FR"], "ts": pa.array([START], TIME)})
    refused: dict[str, Row] = {
        "a column 'country', which would be a partition key": {"partition": {"country": "DE"}},
        "columns 'rid' and 'RID', one name to Delta": {"partition": {"RID": "r1"}},
        "'ts' is timestamp.*by which no partitions are made": {"partition_by": ("ts",)},
    }
    for error, where in refused.items():
        target = RowTarget(
            **{"partition": {}, "partition_by": (), **where},
            url=str(tmp_path / "t"),
            tag="tag",
            row_id=("rid",),
        )
        with pytest.raises(InputError, match=error):
            write_rows(target, rows.schema, [rows])
    assert not (tmp_path / "t").exists()


def test_names_that_differ_in_case_are_refused_before_the_rows_are_read(
    join: LabelJoin, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="columns 'rid' and 'RID', one name to Delta"):
        local(replace(join, partition={"RID": "1"}))
    assert not (tmp_path / "joined").exists()


def test_rows_of_another_writer_in_the_partition_are_replaced_by_an_equal_join(
    join: LabelJoin, tmp_path: Path
) -> None:
    by_country = replace(join, partition_by=("country",))
    local(by_country)
    other = {"rid": ["x"], "country": ["IT"], "ts": pa.array([START], TIME), "dt": ["2026-11-01"]}
    table = str(tmp_path / "joined")
    deltalake.write_deltalake(table, pa.table(other), mode="append", schema_mode="merge")
    assert len(rows_of(table)) == 4
    assert local(by_country).written
    assert [row["rid"] for row in rows_of(table)] == ["r1", "r2", "r3"]
    assert not local(by_country).written


@pytest.mark.parametrize("value", [None, ""])
def test_rows_without_a_value_of_a_partition_key_are_refused(
    run: Run, join: LabelJoin, tmp_path: Path, value: str | None
) -> None:
    path = tmp_path / "impressions" / "a.parquet"
    table = pq.read_table(path)
    countries = pa.array(["FR", value, "DE"], pa.string())
    put_parquet(
        path, dict(zip(table.column_names, table.columns, strict=True)) | {"country": countries}
    )
    with pytest.raises(InputError, match="a partition without a value cannot be replaced"):
        run(replace(join, partition_by=("country",)))
    assert not (tmp_path / "joined").exists() or not files_in(tmp_path / "joined")


def test_a_join_without_rows_leaves_the_table_as_it_is(join: LabelJoin, tmp_path: Path) -> None:
    local(join)
    write_logs(tmp_path, [])
    with pytest.raises(EmptyInputError, match=r"the join has no rows; the table .* is left as it"):
        local(join)
    assert len(rows_of(str(tmp_path / "joined"))) == 3


def test_a_table_with_slots_is_no_output(join: LabelJoin, tmp_path: Path) -> None:
    local(join)
    spec = {"spec": 1, "inputs": {"rid": "string"},
            "slots": [{"slot": 1, "name": "id", "op": "hash", "of": "rid"}]}  # fmt: skip
    features = str(tmp_path / "features")
    featstore.extract(
        load_spec(spec), join.output_url, features, partition_from_path=["dt"], spark=None
    )
    with pytest.raises(InputError, match="a Delta table of raw rows to write to, found one of an"):
        local(replace(join, output_url=f"delta+{features}"))


def test_a_log_and_a_table_that_lie_within_each_other_are_refused(
    join: LabelJoin, tmp_path: Path
) -> None:
    log = replace(join.impressions, source=LogSource(url=f"{join.output_url}?version=0"))
    with pytest.raises(InputError, match="lie within each other"):
        local(replace(join, impressions=log))


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """CSV of two days."""
    for name, text in {
        "dt=1/a.csv": "rid,click\nr1,1\nr2,0\n",
        "dt=2/a.csv": "rid,click\nr3,0\n",
    }.items():
        path = tmp_path / "days" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path / "days"


def test_an_import_is_one_version_of_the_days_of_its_directories(
    days: Path, tmp_path: Path
) -> None:
    table = f"delta+{tmp_path}/raw"
    report = featstore.import_raw("csv", days, table)
    assert (report.output_url, report.imported) == (f"{table}?version=0", True)
    assert [(row["dt"], row["rid"]) for row in rows_of(str(tmp_path / "raw"))] == [
        ("1", "r1"), ("1", "r2"), ("2", "r3")
    ]  # fmt: skip
    again = featstore.import_raw("csv", days, table)
    assert (again.output_url, again.imported, again.num_rows) == (report.output_url, False, 3)
    later = tmp_path / "later.csv"
    later.write_text("rid,click\nr4,1\n")
    featstore.import_raw("csv", later, table, partition={"dt": "2"})
    assert clicks(str(tmp_path / "raw")) == [("r1", 1), ("r2", 0), ("r4", 1)]
    assert len(files_in(tmp_path / "raw")) == 3  # with that of version 0


def test_a_day_whose_file_has_no_rows_any_more_is_empty_after_an_import(
    days: Path, tmp_path: Path
) -> None:
    table = f"delta+{tmp_path}/raw"
    featstore.import_raw("csv", days, table)
    (days / "dt=2" / "a.csv").write_text("rid,click\n")
    (days / "dt=3").mkdir()
    (days / "dt=3" / "a.csv").write_text("rid,click\n")  # never had any
    assert featstore.import_raw("csv", days, table).num_rows == 2
    assert clicks(str(tmp_path / "raw")) == [("r1", 1), ("r2", 0)]
    assert not featstore.import_raw("csv", days, table).imported
    assert len(files_in(tmp_path / "raw")) == 3  # two of version 0
    (days / "dt=1" / "a.csv").write_text("rid,click\n")  # types cannot be inferred any more
    with pytest.raises(InputError, match=r"'click' \(string\); give it this type, or take anoth"):
        featstore.import_raw("csv", days, table)
    with pytest.raises(EmptyInputError, match=r"the import has no rows; .* is left as it is: exp"):
        featstore.import_raw("csv", days, table, columns={"click": "long"})
    assert clicks(str(tmp_path / "raw")) == [("r1", 1), ("r2", 0)]
    assert len(files_in(tmp_path / "raw")) == 3


def test_no_value_of_a_row_is_in_the_commit_of_an_import(days: Path, tmp_path: Path) -> None:
    (days / "dt=2" / "a.csv").write_text("rid,click\n" + "r3,0\n" * 3_000 + "r4,secret\n")
    table = f"delta+{tmp_path}/raw"
    report = featstore.import_raw("csv", days, table, max_malformed=1)
    assert "secret" in report.as_dict()["examples"][0]
    [commit] = (tmp_path / "raw" / "_delta_log").glob("*.json")
    assert '"num_malformed":1' in commit.read_text()
    assert "secret" not in commit.read_text()
    again = featstore.import_raw("csv", days, table, max_malformed=1)
    assert (again.imported, again.num_malformed, again.examples) == (False, 1, ())
    assert str(again).endswith("1 malformed rows are left out")


def test_an_import_into_a_directory_has_its_partition_there(days: Path, tmp_path: Path) -> None:
    day, raw = days / "dt=1" / "a.csv", tmp_path / "raw"
    featstore.import_raw("csv", day, raw, partition={"dt": "1"})
    assert [str(p.relative_to(raw)) for p in raw.rglob("*.parquet")] == ["dt=1/part-00000.parquet"]


def test_an_import_that_fails_or_has_other_keys_leaves_nothing(days: Path, tmp_path: Path) -> None:
    (days / "c.csv").write_text("rid,click\nr4,1\n")
    with pytest.raises(InputError, match=r"a directory for each of the partition keys|found dt"):
        featstore.import_raw("csv", days, f"delta+{tmp_path}/raw")
    (days / "c.csv").unlink()
    (days / "dt=2" / "b.csv").write_text("rid,click\n" + "r5,1\n" * 3_000 + "r5,none\n")
    with pytest.raises(InputError, match="expected at most 0 malformed rows"):
        featstore.import_raw("csv", days, f"delta+{tmp_path}/raw")
    assert not (tmp_path / "raw").exists()


def test_rows_are_held_until_they_make_a_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("a", pa.int64())])

    def row_groups() -> list[int]:
        with contextlib.ExitStack() as stack:
            file = RowFile(str(tmp_path / "x.parquet"), schema, stack)
            for num_rows in (2, 2, 2, 0, 7, 1, 0):
                file.add(pa.record_batch([pa.array([0] * num_rows)], schema))
            assert file.finish() == (tmp_path / "x.parquet").stat().st_size
        metadata = pq.read_metadata(tmp_path / "x.parquet")
        return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    monkeypatch.setattr(table_output, "GROUP_ROWS", 5)
    assert row_groups() == [6, 7, 1]
    monkeypatch.setattr(table_output, "GROUP_BYTES", 16)
    assert row_groups() == [2, 2, 2, 7, 1]


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_rows_of_many_partitions_keep_their_order_and_are_bounded_in_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_output, "_MAX_OPEN", 2)
    monkeypatch.setattr(table_output, "GROUP_ROWS", 4)
    monkeypatch.setattr(table_output, "_FILE_ROWS", 8)
    target = RowTarget(
        url=str(tmp_path), tag="0" * 8 + "-" + "1" * 8, partition={"dt": "a/b"},
        partition_by=("k",), row_id=("k", "n"),
    )  # fmt: skip
    rows = [
        batch(k=[n * m % 5 for n in range(7)], n=list(range(7 * m, 7 * m + 7))) for m in range(9)
    ]
    written = write_rows(target, rows[0].schema, [rows[0].slice(7), *rows])
    found: dict[str, list[int]] = {}
    for file in sorted(written.files, key=lambda file: file.path):
        assert file.size_bytes == (tmp_path / file.path).stat().st_size
        parquet = pq.ParquetFile(tmp_path / file.path)
        assert file.num_rows == parquet.metadata.num_rows
        found.setdefault(file.partition["k"] or "", []).extend(parquet.read()["n"].to_pylist())
    assert found == {
        str(k): [n for each in rows for n, of in zip(each["n"].to_pylist(), each["k"].to_pylist(), strict=True) if of == k]
        for k in range(5)
    }  # fmt: skip
    assert written.digest.num_rows == 63
    assert written.files[0].path.startswith("dt=a%2Fb/k=")


def test_types_that_delta_lacks_become_wider_ones_with_the_same_values(tmp_path: Path) -> None:
    before_1970 = -1_500
    columns = {
        "rid": pa.array([1], pa.uint64()),
        "u8": pa.array([255], pa.uint8()),
        "u16": pa.array([65_535], pa.uint16()),
        "u32": pa.array([2**32 - 1], pa.uint32()),
        "half": pa.array([0.5], pa.float16()),
        "word": pa.array(["x"]).dictionary_encode(),
        "large": pa.array(["x"], pa.large_string()),
        "pair": pa.array([[1, 2]], pa.list_(pa.uint8(), 2)),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.uint16())),
        "part": pa.array([{"a": [b"x"]}], pa.struct([("a", pa.large_list(pa.large_binary()))])),
        "day": pa.array([datetime.date(2026, 11, 1)], pa.date64()),
        "at": pa.array([before_1970], pa.timestamp("ns")),
        "zoned": pa.array([0], pa.timestamp("ms", "Europe/Rome")),
        "price": pa.array([decimal.Decimal("1.50")]),
    }
    rows = pa.RecordBatch.from_pydict(columns)
    table = RawTable(str(tmp_path / "t"), "the test", partition={})
    table.equal("digest", None)
    schema = table.check(rows.schema)
    target = RowTarget(url=table.url, tag=table.tag, partition={}, partition_by=(), row_id=("u32",))
    with table.writing():
        written = write_rows(target, rows.schema, [rows])
        table.commit(schema, written.files, {})
    [found] = deltalake.DeltaTable(table.url).to_pyarrow_table().to_pylist()
    expected = rows.to_pylist()[0] | {
        "rid": decimal.Decimal(1),
        "at": datetime.datetime(1969, 12, 31, 23, 59, 59, 999_998),
        "zoned": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
    }
    assert found == expected
    assert (opened := open_input(f"delta+{table.url}")) is not None
    assert {*opened.snapshot.schema.foreign} == {*columns}


@pytest.mark.parametrize(
    "of",
    [pa.time32("s"), pa.duration("s"), pa.null(), pa.decimal256(50), pa.list_(pa.time64("us"))],
)
def test_a_type_that_no_delta_table_holds_is_named(of: pa.DataType) -> None:
    with pytest.raises(InputError, match=r"t: 'x' is .*, which a Delta table cannot hold"):
        table_schema(pa.schema([("x", of)]), "t")


def test_a_partition_value_is_one_of_the_type_of_its_key(join: LabelJoin, tmp_path: Path) -> None:
    url = str(tmp_path / "joined")
    empty = pa.schema([("dt", pa.int32()), ("rid", pa.string())])
    deltalake.DeltaTable.create(url, schema=deltalake.Schema.from_arrow(empty), partition_by=["dt"])
    local(replace(join, partition={"dt": "07"}))
    local(replace(join, partition={"dt": "7"}))
    assert [row["dt"] for row in rows_of(url)] == [7, 7, 7]
    with pytest.raises(InputError, match=r"of the partition key 'dt' \(int32\), found 'x'"):
        local(replace(join, partition={"dt": "x"}))
