"""Spark's tasks on a full disk, or killed: one line says so in the driver."""

import errno
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from featstore.errors import DiskFullError
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.spark import SparkRunner, extract_dataframe
from featstore.spec.model import Spec
from featstore.table.delta import open_delta_or_none

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
    room = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(b"x" * ((room.f_bavail - 4) * room.f_frsize))
    file = rf"{re.escape(on_disk.table_url)}/(_stats/)?month=1/part-\S+"
    said = rf"^{file}: cannot be written, since .*is full"
    with pytest.raises(DiskFullError, match=said) as raised:
        run(spark, on_disk)
    assert "\n" not in str(raised.value)
    assert raised.value.errno == errno.ENOSPC
    assert open_delta_or_none(on_disk.table_url) is None
