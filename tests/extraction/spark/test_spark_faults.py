"""Spark's tasks on a full disk, or killed: one line says so in the driver."""

import errno
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import pyarrow as pa
import pytest

from featstore.base.errors import DiskFullError, WorkerError
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.spark.runners import SparkRunner, extract_dataframe
from featstore.spec.model import Spec
from featstore.table.delta import open_delta_or_none
from tests.full_disk import fill

Run = Callable[[Any, ExtractJob], None]


@pytest.fixture
def job(spec: Spec, raw: Path, tmp_path: Path, write_raw: Any) -> ExtractJob:
    write_raw("a.parquet", 533)
    url = str(tmp_path / "table")
    return ExtractJob(spec=spec, input_url=str(raw), table_url=url, partition={"month": "1"})


def run_files(spark: Any, job: ExtractJob) -> None:
    extract_files(job, runner=SparkRunner(spark))


def run_dataframe(spark: Any, job: ExtractJob) -> None:
    extract_dataframe(job, spark.read.parquet(job.input_url))


@pytest.mark.parametrize("run", [run_files, run_dataframe])
def test_a_disk_that_is_full_under_sparks_tasks_is_named_with_the_file(
    spark: Any, job: ExtractJob, small_disk: Path, run: Run
) -> None:
    on_disk = replace(job, table_url=str(small_disk / "table"))
    fill(small_disk, leave_bytes=4 * os.statvfs(small_disk).f_frsize)
    file = rf"{re.escape(on_disk.table_url)}/(_stats/)?month=1/part-\S+"
    said = rf"^{file}: cannot be written, since .*is full"
    with pytest.raises(DiskFullError, match=said) as raised:
        run(spark, on_disk)
    assert "\n" not in str(raised.value)
    assert raised.value.errno == errno.ENOSPC
    assert open_delta_or_none(on_disk.table_url) is None


def killed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield next(batches)
    os.kill(os.getpid(), signal.SIGKILL)


def exiting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    os._exit(3)
    yield from batches


@pytest.mark.parametrize("die", [killed, exiting])
def test_a_python_worker_of_spark_that_dies_is_told_in_one_line(
    spark: Any, job: ExtractJob, caplog: pytest.LogCaptureFixture, die: Any
) -> None:
    raw = spark.read.parquet(job.input_url)
    # A function of this module would be sent by its name, which workers cannot import.
    by_value = FunctionType(die.__code__, {"os": os, "signal": signal, "next": next})
    dying = raw.mapInArrow(by_value, raw.schema)
    with (
        caplog.at_level(logging.DEBUG, "featstore"),
        pytest.raises(
            WorkerError, match=r"^Spark's Python worker died in task 0\.0 of stage .*memoryOverhead"
        ) as raised,
    ):
        extract_dataframe(job, dying)
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    traces = [record for record in caplog.records if "\tat org.apache.spark" in record.getMessage()]
    assert [trace.levelno for trace in traces] == [logging.DEBUG]
    assert open_delta_or_none(job.table_url) is None
    assert extract_dataframe(job, raw).num_rows == 533
