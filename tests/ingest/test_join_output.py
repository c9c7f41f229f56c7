"""How a join's rows appear: whole, checked, once, and never in place of what no join has
written.
"""

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import CommitConflictError, InputError, JoinError
from featstore.extraction.job import ExtractJob, extract_files
from featstore.files.listings import list_files
from featstore.ingest.join import join_labels, write_parquet
from featstore.ingest.join_options import (
    Impressions,
    Label,
    LabelJoin,
    LogSource,
    Lookup,
    NegativeSampling,
)
from featstore.spec.parse import load_spec
from featstore.tools import job_join_labels as join_job
from tests.ingest.conftest import Engine
from tests.parquet_files import put_parquet
from tests.programs import run_python

ROOT = Path(__file__).parents[2]
START = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
CUT_OFF = START + datetime.timedelta(hours=2)


def minutes(number: int) -> datetime.datetime:
    return START + datetime.timedelta(minutes=number)


def write_impressions(directory: Path, num_rows: int = 100) -> None:
    put_parquet(
        directory / "a.parquet",
        {
            "rid": [f"r{n}" for n in range(num_rows)],
            "user": [n % 7 for n in range(num_rows)],
            "ts": pa.array([minutes(n) for n in range(num_rows)], pa.timestamp("us", tz="UTC")),
        },
    )


@pytest.fixture
def join(tmp_path: Path) -> LabelJoin:
    """100 impressions in 100 minutes, a click on every fifth; those of the last 39 minutes are
    unripe.
    """
    write_impressions(tmp_path / "impressions")
    put_parquet(
        tmp_path / "clicks" / "a.parquet",
        {
            "rid": [f"r{n}" for n in range(0, 100, 5)],
            "at": [minutes(n + 1).replace(tzinfo=None) for n in range(0, 100, 5)],
        },
    )
    label = Label(
        name="click",
        source=LogSource(url=str(tmp_path / "clicks")),
        key=("rid",),
        event_time="at",
        window_s=3600,
    )
    return LabelJoin(
        impressions=Impressions(
            source=LogSource(url=str(tmp_path / "impressions")), row_id=("rid",), event_time="ts"
        ),
        labels=(label,),
        cut_off=CUT_OFF,
        output_url=str(tmp_path / "out"),
        partition={"dt": "2026-11-01"},
    )


def hidden(join: LabelJoin) -> list[Path]:
    return [path for path in Path(join.output_url).glob("*") if path.name.startswith("_")]


def visible(join: LabelJoin) -> list[str]:
    """What an extraction of the output would read."""
    return [entry.url for entry in list_files(join.output_url)]


def test_rows_are_raw_input_for_an_extraction(
    engine: Engine, join: LabelJoin, tmp_path: Path
) -> None:
    report = engine.join(join)
    assert report.url == f"{join.output_url}/dt=2026-11-01"
    spec = {"spec": 1, "inputs": {"user": "long", "click": "int"}, "labels": {"click": "click"},
            "slots": [{"slot": 1, "name": "user_id", "op": "hash", "of": "user"}]}  # fmt: skip
    job = ExtractJob(
        spec=load_spec(spec),
        input_url=join.output_url,
        table_url=str(tmp_path / "table"),
        partition_from_path=("dt",),
    )
    assert extract_files(job).num_rows == 100
    clicks = pq.read_table(report.url).to_pydict()["click"]
    assert (clicks.count(1), clicks.count(0), clicks.count(None)) == (13, 48, 39)


def test_the_report_lies_beside_the_rows(engine: Engine, join: LabelJoin) -> None:
    report = engine.join(join)
    directory = Path(report.url)
    assert json.loads((directory / "_report.json").read_text()) == report.document
    assert (directory / "_report.txt").read_text() in str(report)
    label = report.document["labels"][0]
    assert (label["num_hit"], label["num_negative"], label["num_unripe"], label["num_orphans"]) == (
        13,
        48,
        39,
        0,
    )
    assert label["delay"][3] == {"from_s": 60, "num_impressions": 13}
    assert not hidden(join)


def test_an_equal_join_is_not_run_again(engine: Engine, join: LabelJoin) -> None:
    first = engine.join(join)
    files = visible(join)
    again = engine.join(join)
    assert (again.written, again.document) == (False, first.document)
    assert str(again).startswith("nothing to do: an equal join wrote 100 rows in ")
    assert visible(join) == files


def test_another_join_or_other_files_replace_the_rows(
    engine: Engine, join: LabelJoin, tmp_path: Path
) -> None:
    first = engine.join(join)
    later = engine.join(replace(join, cut_off=CUT_OFF + datetime.timedelta(hours=1)))
    assert (
        first.document["labels"][0]["num_unripe"],
        later.document["labels"][0]["num_unripe"],
    ) == (39, 0)
    write_impressions(tmp_path / "impressions", 50)
    assert engine.join(join).document["output"]["num_rows"] == 50
    assert sum(pq.read_metadata(url).num_rows for url in visible(join)) == 50
    assert not hidden(join)


@pytest.mark.parametrize("fault", [{"lost": "r7"}, {"lost": "r7", "doubled": "r8"}])
def test_lost_and_doubled_rows_fail_the_join_and_nothing_changes(
    engine: Engine, join: LabelJoin, fault: dict[str, Any]
) -> None:
    engine.join(join)
    before = visible(join)
    with pytest.raises(
        JoinError, match=r"the files hold .* rows instead of 100 .*nothing was published"
    ):
        engine.join(replace(join, cut_off=CUT_OFF + datetime.timedelta(hours=1)), **fault)
    assert visible(join) == before
    assert not hidden(join)


def test_a_log_that_changes_while_it_is_read_is_named_and_nothing_changes(
    engine: Engine, join: LabelJoin, tmp_path: Path
) -> None:
    engine.join(join)
    before, changed = visible(join), []

    def changing_a_log(url: str) -> None:
        write_impressions(tmp_path / "impressions")
        changed.append(url)

    later = replace(join, cut_off=CUT_OFF + datetime.timedelta(hours=1))
    with pytest.raises(
        InputError, match=r"impressions/a\.parquet changed while it was read: expected .*, found "
    ):
        engine.join(later, then=changing_a_log)
    assert len(changed) == 1
    assert visible(join) == before
    assert not hidden(join)


@pytest.mark.slow
def test_rows_counted_twice_in_passing_are_counted_again(spark: Any, join: LabelJoin) -> None:
    """A stage that runs again counts its rows again; the rows themselves are well."""

    def passing_twice(rows: Any, url: str, partition_by: tuple[str, ...]) -> None:
        rows.union(rows).count()  # an observation sees the first action only
        write_parquet(rows, url, partition_by)

    report = join_labels(join, spark, write=passing_twice)
    assert (
        report.document["output"]["num_rows"] == report.document["impressions"]["num_rows"] == 100
    )
    assert report.document["labels"][0]["num_hit"] == 13


def test_a_writer_that_dies_leaves_nothing_visible(engine: Engine, join: LabelJoin) -> None:
    def dying(url: str) -> None:
        assert list(Path(url).glob("*.parquet"))
        assert not visible(join)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.join(join, then=dying)
    assert not visible(join)
    assert not hidden(join)


def test_of_two_first_writers_one_is_told(engine: Engine, join: LabelJoin) -> None:
    def overtaken(url: str) -> None:
        other.publish({}, "")

    other = engine.output(f"{join.output_url}/dt=2026-11-01")
    Path(other.rows_url.removeprefix("file://")).mkdir(parents=True)
    with pytest.raises(InputError, match="is not the output of a join"):
        engine.join(join, then=overtaken)
    assert not hidden(join)


def test_rows_are_never_moved_into_a_directory_that_exists(engine: Engine, tmp_path: Path) -> None:
    output = engine.output(str(tmp_path / "out"))
    Path(output.rows_url.removeprefix("file://")).mkdir(parents=True)
    (tmp_path / "out").mkdir()
    with pytest.raises(
        CommitConflictError, match=r"the rows cannot be moved there .*another writer is at work"
    ):
        output._rename(output.rows_url, str(tmp_path / "out"))
    assert not list((tmp_path / "out").iterdir())


def test_what_no_join_has_written_is_left_as_it_is(engine: Engine, join: LabelJoin) -> None:
    write_impressions(Path(join.output_url) / "dt=2026-11-01")
    with pytest.raises(
        InputError, match=r"exists, and is not the output of a join \(_report.json is missing"
    ):
        engine.join(join)
    assert len(visible(join)) == 1


def test_a_store_that_cannot_rename_is_refused(engine: Engine, join: LabelJoin) -> None:
    with pytest.raises(InputError, match="s3:// cannot do in one step; expected one of file, hdfs"):
        engine.join(replace(join, output_url="s3://bucket/out"))


@pytest.mark.slow
def test_the_settings_of_the_session_are_put_back_and_change_nothing(
    spark: Any, join: LabelJoin
) -> None:
    expected = pq.read_table(join_labels(join, spark).url).sort_by("rid")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        moved = join_labels(replace(join, output_url=f"{join.output_url}2"), spark)
        assert spark.conf.get("spark.sql.session.timeZone") == "America/New_York"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert pq.read_table(moved.url).sort_by("rid").equals(expected)
    assert expected.schema.field("ts").type == pa.timestamp("us", tz="UTC")


def test_logs_without_rows_give_a_report_of_zeros(
    engine: Engine, join: LabelJoin, tmp_path: Path
) -> None:
    for log in ("clicks", "impressions"):
        path = tmp_path / log / "a.parquet"
        pq.write_table(pq.read_table(path).slice(0, 0), path)
        report = engine.join(join).document
        assert report["labels"][0]["num_hit"] == 0
    assert (report["output"]["num_rows"], report["labels"][0]["hit_rate"]) == (0, None)


def test_nothing_counts_before_it_was_logged_and_unripe_is_null(
    engine: Engine, join: LabelJoin, tmp_path: Path
) -> None:
    times = {
        "at": [minutes(1), minutes(2), minutes(4)],
        "logged": [CUT_OFF - datetime.timedelta(microseconds=1), CUT_OFF, minutes(4)],
    }
    pq.write_table(pa.table({"rid": ["r0", "r1", "r3"]} | times), tmp_path / "clicks" / "a.parquet")
    put_parquet(
        tmp_path / "users" / "a.parquet",
        {
            "user": [0, 0],
            "at": [minutes(0), minutes(5)],
            "logged": [minutes(0), minutes(10)],
            "age": [30, 31],
        },
    )
    label = replace(join.labels[0], log_time="logged", horizon_s=118 * 60)
    users = LogSource(url=str(tmp_path / "users"))
    user = Lookup(
        name="user",
        source=users,
        key=("user",),
        event_time="at",
        log_time="logged",
        columns=("age",),
    )
    report = engine.join(replace(join, labels=(label,), lookups=(user,)))
    rows = {row["rid"]: row for row in pq.read_table(report.url).to_pylist()}
    assert [rows[f"r{n}"]["click"] for n in range(4)] == [1, 0, 0, None]
    assert [rows[f"r{n}"]["user_age"] for n in (0, 1, 7, 14)] == [30, None, 30, 31]
    found = report.document["labels"][0]
    assert (found["num_late"], found["num_hit"], found["num_unripe"]) == (1, 1, 97)


def test_a_lower_rate_keeps_a_part_of_what_a_higher_one_keeps(
    engine: Engine, join: LabelJoin
) -> None:
    kept = []
    for rate in (0.2, 0.5, 1.0):
        url = engine.join(
            replace(
                join, negatives=NegativeSampling(rate=rate), output_url=f"{join.output_url}-{rate}"
            )
        ).url
        rows = pq.read_table(url).to_pylist()
        assert {row["sample_weight"] for row in rows if row["click"] == 0} == {1 / rate}
        assert {row["sample_weight"] for row in rows if row["click"] != 0} == {1.0}
        kept.append({row["rid"] for row in rows})
    assert kept[0] < kept[1] < kept[2]
    assert len(kept[2]) == 100


def test_impressions_that_cannot_be_told_apart_fail_the_join_unless_dropped(
    engine: Engine, join: LabelJoin, tmp_path: Path
) -> None:
    path = tmp_path / "impressions" / "a.parquet"
    table = pq.read_table(path)
    pq.write_table(
        table.set_column(0, "rid", pa.array([None, *table["rid"].to_pylist()[1:]])), path
    )
    with pytest.raises(
        InputError, match=r"1 of 100 impressions have a null in rid, ts, .*\(--drop-incomplete\)"
    ):
        engine.join(join)
    assert not visible(join)
    report = engine.join(replace(join, drop_incomplete=True)).document
    assert (report["impressions"]["num_incomplete"], report["output"]["num_rows"]) == (1, 99)


def test_rows_are_spread_by_a_column(engine: Engine, join: LabelJoin) -> None:
    report = engine.join(replace(join, partition={}, partition_by=("user",)))
    assert {path.name for path in Path(report.url).glob("user=*")} == {
        f"user={n}" for n in range(7)
    }
    assert sum(pq.read_metadata(url).num_rows for url in visible(join)) == 100


def arguments(join: LabelJoin, clicks: str) -> list[str]:
    given = {
        "--impressions": f"from={join.impressions.source.url} row_id=rid event_time=ts",
        "--label": f"name=click {clicks} key=rid event_time=at window=1h",
        "--cut-off": "2026-11-01T02:00",
        "--output": join.output_url,
        "--partition": "dt=2026-11-01",
        "--negative-rate": "0.5",
    }
    return [text for pair in given.items() for text in pair]


@pytest.mark.slow
def test_the_script_reads_queries_and_runs_them_each_time(spark: Any, join: LabelJoin) -> None:
    url = join.labels[0].source.url
    clicks = f"sql='select rid, cast(at as timestamp) as at from parquet.`file://{url}`'"
    options = join_job.job.make_context("join-labels", arguments(join, clicks)).params
    made = join_job.label_join(options)
    assert made.negatives == NegativeSampling(rate=0.5)
    for _ in range(2):
        report = join_labels(made, spark)
        assert report.written
        assert report.document["input_digest"] is None
        assert report.document["labels"][0]["num_hit"] == 13


@pytest.mark.slow
def test_the_script_makes_a_session_of_its_own_and_prints_the_report(
    join: LabelJoin, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.ui.enabled false\nspark.sql.shuffle.partitions 1\n"
    )
    environ = {
        "PYTHONPATH": str(ROOT),
        "SPARK_CONF_DIR": str(tmp_path),
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
    }
    given = arguments(join, f"from={join.labels[0].source.url}")
    place = ROOT / "spark_jobs" / "join_labels.py"
    done = run_python(place, *given, warnings="ignore", cwd=tmp_path, variables=environ)
    assert "click: delay" in done.stdout


@pytest.mark.slow
def test_the_script_answers_bad_input_with_one_line_and_code_2(
    join: LabelJoin, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(join, f"from={join.labels[0].source.url}")
    assert join_job.main([*given, "--negative-label", "buy"]) == 2
    assert capsys.readouterr().err.startswith(
        "join-labels: error: negatives: no label 'buy' among ['click']"
    )
