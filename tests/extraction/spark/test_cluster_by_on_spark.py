"""Rows of one key side by side, by Spark's shuffle: the files that threads write."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars
import pytest
from pyspark.sql import DataFrame

from featstore.base.errors import InputError
from featstore.extraction.job import ExtractJob, ExtractReport, extract_files
from featstore.extraction.spark.runners import SparkRunner, extract_dataframe
from featstore.spec.parse import load_spec
from featstore.table.delta import open_delta, open_delta_or_none


@pytest.fixture
def job(document: dict[str, Any], raw: Path, tmp_path: Path) -> ExtractJob:
    document["output"] |= {"cluster_by": "user"}
    spec, url = load_spec(document), str(tmp_path / "table")
    return ExtractJob(spec=spec, input_url=str(raw), table_url=url, partition={"month": "1"})


@pytest.fixture
def frame(spark: Any, raw: Path, write_raw: Any) -> DataFrame:
    """533 raw rows in three Spark partitions."""
    write_raw("a.parquet", 533)
    return spark.read.parquet(str(raw)).repartition(3)


def contents(url: str) -> list[tuple[str, int, bytes]]:
    """Partition, rows and bytes of the data files, in order."""
    files = open_delta(url).data_files
    return [
        (json.dumps(dict(file.partition)), file.num_rows, Path(file.url).read_bytes())
        for file in files
    ]


def sorted_rows(url: str) -> polars.DataFrame:
    return polars.read_delta(url).sort("price_log")


def test_both_engines_write_the_same_bytes_and_report_the_same(
    spark: Any, job: ExtractJob, write_raw: Any
) -> None:
    for month in (1, 2):
        write_raw(f"month={month}/a.parquet", 600)
        write_raw(f"month={month}/b.parquet", 100, 600)
    job = replace(job, partition={}, partition_from_path=("month",))
    seen: list[tuple[int, int, int]] = []
    here = extract_files(replace(job, table_url=f"{job.table_url}2"))
    report = extract_files(
        job, runner=SparkRunner(spark), progress=lambda *counts: seen.append(counts)
    )
    assert contents(job.table_url) == contents(here.table_url)
    assert replace(report, table_url="", run_id="", seconds=0) == replace(
        here, table_url="", run_id="", seconds=0
    )
    assert seen[-1] == (6, 6, 1400)


def test_a_query_gives_the_same_rows_with_each_key_in_one_bucket(
    job: ExtractJob, frame: DataFrame
) -> None:
    seen: list[tuple[int, int, int]] = []
    report = extract_dataframe(job, frame, progress=lambda *counts: seen.append(counts))
    here = extract_files(replace(job, table_url=f"{job.table_url}2"))
    assert sorted_rows(job.table_url).equals(sorted_rows(here.table_url))
    assert (report.num_rows, report.committed, report.counts) == (533, True, here.counts)
    assert seen[-1] == (2, 0, 533)
    buckets = Counter[tuple[str, str]]()
    for file in open_delta(job.table_url).data_files:
        own = set(polars.read_parquet(file.url)["user"].drop_nulls())
        buckets.update({(user, file.path.split("-")[1]): 1 for user in own})
    assert len({user for user, _ in buckets}) == len(buckets) == 50


def test_an_error_in_a_row_is_raised_and_nothing_is_left(
    spark: Any, job: ExtractJob, document: dict[str, Any], write_raw: Any
) -> None:
    write_raw("a.parquet", 60, note=b"\xff")
    document["inputs"]["note"] = {"type": "string", "on_error": "fail"}
    document["keep"].append("note")
    failing = replace(job, spec=load_spec(document))
    runs: list[Callable[[], ExtractReport]] = [
        lambda: extract_files(failing, runner=SparkRunner(spark)),
        lambda: extract_dataframe(failing, spark.read.parquet(job.input_url)),
    ]
    for run in runs:
        with pytest.raises(InputError, match=r"row 0: column 'note': expected string, found .*utf"):
            run()
        assert open_delta_or_none(job.table_url) is None
        assert [path for path in Path(job.table_url).rglob("*") if path.is_file()] == []
