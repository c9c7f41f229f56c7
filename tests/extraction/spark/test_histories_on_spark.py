"""Rows with the events that they see, by Spark's shuffle: the files that threads write."""

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import featstore
from featstore import api
from featstore.base.errors import ConfigError, InputError
from featstore.extraction.job import ExtractJob, ExtractReport, extract_files
from featstore.extraction.spark.runners import SparkRunner, extract_dataframe
from featstore.spec.parse import load_spec
from featstore.table.delta import history, open_delta, open_delta_or_none
from featstore.table.layout import group_url
from tests.extraction.conftest import run_job
from tests.extraction.spark.test_cluster_by_on_spark import contents
from tests.extraction.test_histories import (
    USERS,
    check_rows,
    job_of,
    make_events,
    make_rows,
    read,
    spec_of,
    write,
)
from tests.faults.test_table_life import KILLERS, OPTIONS
from tests.histories import oracle
from tests.parquet_files import put_parquet
from tests.programs import run_python


@pytest.fixture
def job(tmp_path: Path) -> ExtractJob:
    """Rows of two partitions, and a log of three units."""
    rng = random.Random(7)
    rows, events = make_rows(rng, 300, [*USERS, "lonely"]), make_events(rng, 360, [*USERS, "x"])
    write(tmp_path, rows, events)
    return job_of(tmp_path, spec_of(logged_at="arrived", window="5m", max_len=40))


def test_both_engines_write_the_same_bytes_and_report_the_same(
    spark: Any, job: ExtractJob, tmp_path: Path
) -> None:
    rows = read(job.input_url)
    for day, first in enumerate((0, 170)):
        put_parquet(tmp_path / f"by_day/day={day}/a.parquet", rows.slice(first, 170))
    history_of = oracle.document_of()["histories"][0]
    events = read(job.events["clicks"])
    column = pa.array([b"\xff" if row % 50 == 3 else b"ok" for row in range(len(events))])
    put_parquet(tmp_path / "log/b.parquet", events.set_column(3, "item", column), row_group_size=70)
    job = replace(
        job,
        # Lists of few bytes, so that rows are cut by how many events they may see.
        spec=spec_of({"bytes_per_file": 2_000}, inputs=history_of["inputs"]),
        input_url=str(tmp_path / "by_day"),
        no_partition=False,
        partition_from_path=("day",),
    )
    here = extract_files(replace(job, table_url=f"{job.table_url}2"))
    report = extract_files(job, runner=SparkRunner(spark))
    assert contents(job.table_url) == contents(here.table_url)
    assert len(contents(job.table_url)) > 4
    assert replace(report, table_url="", run_id="", seconds=0) == replace(
        here, table_url="", run_id="", seconds=0
    )
    assert report.counts["clicks.item: invalid utf-8"] == 8
    assert report.counts["clicks.events without key or time"] > 0
    [told], [expected] = (history(url) for url in (job.table_url, here.table_url))
    assert told.metadata is not None
    assert expected.metadata is not None
    assert told.metadata.input_digest == expected.metadata.input_digest
    assert told.metadata.events == expected.metadata.events
    assert told.metadata.events["clicks"]["as_of"]
    assert not extract_files(job).committed


@pytest.mark.slow
def test_a_slot_group_gets_the_same_history_by_sparks_tasks(
    spark: Any, job: ExtractJob, tmp_path: Path
) -> None:
    rows = read(job.input_url)
    for day, first in enumerate((0, 170)):
        put_parquet(tmp_path / f"by_day/day={day}/a.parquet", rows.slice(first, 170))
    options: dict[str, Any] = {"partition_from_path": ("day",), "no_partition": False}
    job = replace(job, input_url=str(tmp_path / "by_day"), **options)
    reports = []
    for url, session in ((job.table_url, spark), (f"{job.table_url}2", None)):
        plain = replace(job, spec=replace(job.spec, histories=()), events={}, table_url=url)
        extract_files(replace(plain, run_id="base"))
        group: dict[str, Any] = {"group": "seen", "key": "row", "events": job.events}
        report = api.extract(
            job.spec, job.input_url, url, partition_from_path=["day"], spark=session, **group
        )
        files = open_delta(group_url(url, "seen")).data_files
        # As text, in which NaN is NaN.
        found = [str(pq.read_table(file.url).to_pylist()) for file in files]
        reports.append((found, report.counts, report.num_rows))
    assert reports[0] == reports[1]
    assert len(reports[0][0]) == 4
    assert "'clicks_at': [" in reports[0][0][0]
    assert check_rows(replace(job, input_url=str(tmp_path / "raw"))) > 500


def by_queries(spark: Any, job: ExtractJob) -> ExtractReport:
    rows = spark.read.parquet(job.input_url).repartition(3)
    log = spark.read.parquet(job.events["clicks"]).repartition(2)
    return api.extract(job.spec, None, job.table_url, dataframe=rows, events={"clicks": log})


def by_the_job(spark: Any, job: ExtractJob) -> ExtractReport:
    sql, events = f"select * from parquet.`{job.input_url}`", f"clicks={job.events['clicks']}"
    arguments = ["--spec", "x", "--sql", sql, "--table", job.table_url, "--events", events]
    report: ExtractReport = run_job(job.spec, spark, arguments)
    return report


@pytest.mark.parametrize("extract", [by_queries, by_the_job])
def test_a_query_gives_each_row_its_events_of_a_query_or_of_files(
    spark: Any, job: ExtractJob, extract: Callable[[Any, ExtractJob], ExtractReport]
) -> None:
    report = extract(spark, job)
    assert report.num_rows == 300
    assert check_rows(job) > 500
    here = extract_files(replace(job, table_url=f"{job.table_url}2"))
    assert report.counts == here.counts


def test_events_that_do_not_fit_are_named_as_by_threads(
    spark: Any, job: ExtractJob, tmp_path: Path
) -> None:
    events = read(job.events["clicks"])
    inputs = oracle.document_of()["histories"][0]["inputs"]
    inputs |= {"item": {"type": "string", "on_error": "fail"}}
    column = pa.array([b"ok"] * 80 + [b"\xff"] * (len(events) - 80))
    put_parquet(tmp_path / "bad/x.parquet", events.set_column(3, "item", column))
    put_parquet(tmp_path / "less/x.parquet", events.drop_columns(["item"]))
    put_parquet(
        tmp_path / "other/x.parquet", events.set_column(1, "at", pa.nulls(360, pa.list_(pa.int8())))
    )
    for log, said in (
        ("bad", r"bad/x.parquet, row 80: column 'item': expected string, found .*utf"),
        ("less", r"less/x.parquet: missing input column: expected 'item'"),
        ("other", r"other/x.parquet: column 'at'"),
    ):
        failing = replace(job, spec=spec_of(inputs=inputs), events={"clicks": str(tmp_path / log)})
        texts = set()
        for runner in (None, SparkRunner(spark)):
            with pytest.raises(InputError, match=said) as raised:
                extract_files(failing, runner=runner)
            texts.add(str(raised.value))
        assert len(texts) == 1
    rows = spark.read.parquet(job.input_url)
    bad = spark.read.parquet(str(tmp_path / "bad"))
    without = replace(job, spec=spec_of(inputs=inputs), events={})
    said = r"DataFrame of clicks, partition 0, row 80: column 'item': expected string"
    with pytest.raises(InputError, match=said):
        extract_dataframe(without, rows, events={"clicks": bad})
    assert open_delta_or_none(job.table_url) is None
    assert [path for path in Path(job.table_url).rglob("*") if path.is_file()] == []


def test_each_history_has_one_log(spark: Any, job: ExtractJob, tmp_path: Path) -> None:
    rows = spark.read.parquet(job.input_url)
    with pytest.raises(ConfigError, match="history 'clicks', found none: give --events clicks=URL"):
        extract_dataframe(replace(job, events={}), rows)
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.jsonl").write_text("{}")
    text = replace(job, events={"clicks": str(tmp_path / "text")})
    with pytest.raises(InputError, match=r"text/a.jsonl is text, which is read without Spark only"):
        extract_files(text, runner=SparkRunner(spark))
    for frame, events in ((None, rows), (rows, 5)):
        with pytest.raises(ConfigError, match="expected the URL of the log of clicks, or a DataF"):
            api.extract(
                job.spec,
                None if frame else job.input_url,
                job.table_url,
                dataframe=frame,
                events={"clicks": events},
            )


KILLING = """
@featstore.operator(inputs=[pa.string()], result=pa.string())
def killing(items):
    if len(items) and once("worker"):
        os.kill(os.getpid(), signal.SIGKILL)
    if len(items) and once("executor"):
        daemon = parent(os.getpid())
        for process in (parent(daemon), daemon, os.getpid()):
            os.kill(process, signal.SIGKILL)
    return items
"""
CLUSTER = """
import json, sys
from featstore import api
from featstore.extraction.spark.runners import spark_session
from featstore.spec.parse import load_spec
document, options = map(json.loads, sys.argv[1:3])
raw, log, table = sys.argv[3:]
spark = spark_session("faults", options)
report = api.extract(load_spec(document), raw, table, no_partition=True, spark=spark, events={"clicks": log})
print("rows", report.num_rows)
spark.stop()
"""


@pytest.mark.slow
def test_a_worker_and_an_executor_killed_among_events_leave_every_row_its_events(
    job: ExtractJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second pass dies twice, and with the executor what both first passes gave it."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "history_killers.py").write_text(
        KILLERS[: KILLERS.index("@featstore")] + KILLING
    )
    (tmp_path / "faults").mkdir()
    document = oracle.document_of()
    slot = {"slot": 304, "name": "clicks_killed", "op": "history_killers:killing", "of": "item"}
    document["histories"][0]["slots"].append(slot)
    document["inputs"] |= {"row": "long"}
    document |= {"keep": ["ts", "row"], "output": {"rows_per_row_group": 40, "rows_per_file": 120}}
    roots = [tmp_path / "modules", Path(featstore.__file__).parents[1]]
    environ = {
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
        "FAULTS": str(tmp_path / "faults"),
        "PYTHONWARNINGS": "ignore",
    }
    options = OPTIONS | {"spark.local.dir": str(tmp_path / "local")}
    arguments = [json.dumps(document), json.dumps(options)]
    arguments += [job.input_url, job.events["clicks"], job.table_url]
    done = run_python(CLUSTER, *arguments, variables=environ, cwd=tmp_path, status=None)
    assert "rows 300" in done.stdout, done.stderr[-20000:]
    assert {fault.name for fault in (tmp_path / "faults").iterdir()} == {"worker", "executor"}
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setenv("FAULTS", environ["FAULTS"])
    job = replace(job, spec=load_spec(document))
    here = extract_files(replace(job, table_url=f"{job.table_url}2"))
    assert here.num_rows == 300
    assert contents(job.table_url) == contents(here.table_url)
