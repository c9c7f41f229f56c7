"""Spark tasks keep the same texts of values as this process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.spark.runners import SparkRunner, extract_dataframe
from featstore.spec.model import Spec
from featstore.statistics.values_file import read_values


def kept(url: str) -> list[pa.Table]:
    """The texts of each partition."""
    paths = sorted(Path(url, "_stats").rglob("*.values"))
    return [read_values(url, str(path.relative_to(url))).table for path in paths]


def by_id(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.sort_by(
        [("slot", "ascending"), ("id", "ascending")]
    ).to_pylist()
    return rows


def test_spark_keeps_the_texts_that_this_process_keeps(
    spark: Any, spec: Spec, raw: Path, tmp_path: Path, write_raw: Any
) -> None:
    for month in (1, 2):
        write_raw(f"month={month}/a.parquet", 300)
        write_raw(f"month={month}/b.parquet", 100, 300)
    job = ExtractJob(
        spec=spec,
        input_url=str(raw),
        table_url=str(tmp_path / "spark"),
        partition_from_path=("month",),
    )
    extract_files(job, runner=SparkRunner(spark))
    here = replace(job, table_url=str(tmp_path / "here"))
    extract_files(here)
    found, expected = kept(job.table_url), kept(here.table_url)
    assert len(found) == 2
    assert all(table.num_rows > 20 for table in found)
    assert all(one.equals(other) for one, other in zip(found, expected, strict=True))


def test_a_dataframe_keeps_the_texts_of_the_same_rows(
    spark: Any, spec: Spec, raw: Path, tmp_path: Path, write_raw: Any
) -> None:
    write_raw("a.parquet", 400)
    job = ExtractJob(
        spec=spec,
        input_url=str(raw),
        table_url=str(tmp_path / "spark"),
        partition={"month": "1"},
    )
    extract_dataframe(job, spark.read.parquet(str(raw)).repartition(2))
    here = replace(job, table_url=str(tmp_path / "here"))
    extract_files(here)
    (found,), (expected,) = kept(job.table_url), kept(here.table_url)
    assert by_id(found) == by_id(expected)
