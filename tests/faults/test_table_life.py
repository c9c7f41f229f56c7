"""Readers, tasks and drivers that die while a table lives on: never a half day, a duplicate row, or
a missing one.
"""

import errno
import json
import os
import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import featstore
from featstore.base.errors import DiskFullError
from featstore.base.processes import MAY_PASS
from featstore.extraction.job import ExtractJob, extract_files
from featstore.spec.parse import load_spec
from featstore.table import delta
from featstore.table.delta import open_delta
from featstore.table.vacuum import vacuum
from tests.faults.late_attempt import LateAttempt
from tests.faults.raw_users import write_raw
from tests.full_disk import fill
from tests.interposed import preceded
from tests.old_files import age
from tests.parquet_files import put_parquet
from tests.programs import CLI, Program, run_python

DOCUMENT: dict[str, Any] = {
    "spec": 1,
    "inputs": {"row": "long", "user": "string"},
    "keep": ["row"],
    "slots": [{"slot": 1, "name": "user", "op": "hash", "of": "user"}],
    "output": {"rows_per_row_group": 100, "rows_per_file": 100},
}


@pytest.fixture
def job(tmp_path: Path) -> ExtractJob:
    """Rows 0 to 499 into day 1 of a table that holds rows 1,000,000 to 1,000,049 there."""
    old = write_raw(tmp_path / "old", range(1_000_000, 1_000_050))
    url = str(tmp_path / "table")
    first = ExtractJob(
        spec=load_spec(DOCUMENT), input_url=old, table_url=url, partition={"dt": "1"}, run_id="old"
    )
    extract_files(first)
    return replace(first, input_url=write_raw(tmp_path / "raw"), run_id="new")


OLD, NEW = list(range(1_000_000, 1_000_050)), list(range(500))


def rows_of(url: str, version: int | None = None) -> list[int]:
    return sorted(featstore.open_table(url, version).to_arrow()["row"].to_pylist())


def parquet_files(url: str) -> set[str]:
    return {str(path.relative_to(url)) for path in Path(url).rglob("*.parquet")}


def vacuum_all(url: str) -> set[str]:
    """What a vacuum removes once everything that is there has grown old."""
    age(url, 10)
    return {left.path for left in vacuum(url).removed}


def test_a_loader_goes_on_with_its_snapshot_while_the_day_is_replaced(job: ExtractJob) -> None:
    extract_files(job)
    table = featstore.open_table(job.table_url)
    again = replace(
        job,
        input_url=write_raw(Path(job.input_url).parent / "next", range(2_000_000, 2_000_070)),
        run_id="next",
    )
    seen: list[int] = []
    with featstore.FeatureLoader(
        table, slots=["user"], labels=[], extras=["row"], batch_size=64
    ) as loader:
        for number, batch in enumerate(loader):
            if number == 0:
                assert extract_files(again).version == 2
            seen += batch.extras["row"].to_pylist()
    assert sorted(seen) == NEW
    assert rows_of(job.table_url) == list(range(2_000_000, 2_000_070))
    assert vacuum_all(job.table_url) == set()
    assert rows_of(job.table_url, 1) == NEW


def test_readers_see_one_version_or_the_other_while_a_day_is_replaced_again_and_again(
    job: ExtractJob,
) -> None:
    done, seen = threading.Event(), Counter[str]()

    def read() -> None:
        while not done.is_set():
            rows = rows_of(job.table_url)
            assert rows in (OLD, NEW)
            seen["old" if rows == OLD else "new"] += 1

    with ThreadPoolExecutor(2) as threads:
        readers = [threads.submit(read) for _ in range(2)]
        try:
            for number in range(8):
                source = (
                    job.input_url if number % 2 == 0 else str(Path(job.input_url).parent / "old")
                )
                before = seen.total()
                extract_files(replace(job, input_url=source, run_id=f"r{number}"))
                while seen.total() < before + 4 and not any(reader.done() for reader in readers):
                    time.sleep(0.001)
        finally:
            done.set()
        for reader in readers:
            reader.result()
    assert min(seen["old"], seen["new"]) > 0


def test_an_attempt_that_is_taken_for_dead_and_publishes_after_the_commit_changes_nothing(
    job: ExtractJob,
) -> None:
    """A speculative duplicate: the slower attempt ends when the table has been committed with the
    other's file.
    """
    with LateAttempt() as run:
        extract_files(job, runner=run)
        late = run.end()
    assert rows_of(job.table_url) == NEW
    assert late in parquet_files(job.table_url)
    assert {path for path in vacuum_all(job.table_url) if path.endswith(".parquet")} == {late}
    assert rows_of(job.table_url) == NEW


DRIVER = """
import json, sys
from featstore.extraction.job import ExtractJob, extract_files
from featstore.spec.parse import load_spec
document, raw, table = json.loads(sys.argv[1]), *sys.argv[2:]

def commit(url, change):
    print(len(change.files), flush=True)
    sys.stdin.read()

job = ExtractJob(spec=load_spec(document), input_url=raw, table_url=table, partition={"dt": "1"}, run_id="new")
extract_files(job, commit=commit)
"""


def test_a_driver_killed_between_writing_and_commit_leaves_the_old_day_and_its_files_for_vacuum(
    job: ExtractJob,
) -> None:
    before = parquet_files(job.table_url)
    with Program(DRIVER, json.dumps(DOCUMENT), job.input_url, job.table_url) as driver:
        assert driver.line() == "5"
        age(job.table_url, 10, "part-*.parquet")
        # Five data files, their statistics and texts: the run is older than the grace, and lives.
        assert vacuum(job.table_url).num_running == 7
        driver.die()
    assert rows_of(job.table_url) == OLD
    orphans = parquet_files(job.table_url) - before
    assert len(orphans) == 5
    assert {path for path in vacuum_all(job.table_url) if path.endswith(".parquet")} == orphans
    assert extract_files(job).committed
    assert rows_of(job.table_url) == NEW


def full(table_url: str, path: str) -> str:
    """What an error says, in one line, of a file of the table on a full disk."""
    what = "cannot be written, since the disk, or the quota on it, is full"
    return rf"^{re.escape(table_url)}(?:{path}): {what} \(.*\); free space there .*(\n|$)"


def test_a_full_disk_while_data_is_written_leaves_the_table_and_no_file(
    job: ExtractJob, small_disk: Path
) -> None:
    on_disk = replace(job, table_url=str(small_disk / "table"))
    extract_files(replace(on_disk, input_url=str(Path(job.input_url).parent / "old"), run_id="old"))
    before = parquet_files(on_disk.table_url)
    ballast = fill(small_disk, leave_bytes=16_384)
    with pytest.raises(
        DiskFullError, match=full(on_disk.table_url, r"/(_stats/)?dt=1/part-\S+")
    ) as raised:
        extract_files(on_disk)
    assert raised.value.errno == errno.ENOSPC
    assert rows_of(on_disk.table_url) == OLD
    assert parquet_files(on_disk.table_url) == before
    ballast.unlink()
    extract_files(on_disk)
    assert rows_of(on_disk.table_url) == NEW


@pytest.mark.parametrize("kilobytes", [0, 16, 64])
def test_the_command_line_names_the_file_on_a_full_disk_in_one_line(
    tmp_path: Path, job: ExtractJob, small_disk: Path, kilobytes: int
) -> None:
    """With no room at all it is the mark of the run that cannot be written, else a data file."""
    (tmp_path / "spec.yaml").write_text(json.dumps(DOCUMENT))
    fill(small_disk, leave_bytes=kilobytes * 1024)
    url = str(small_disk / "table")
    options = ["--spec", tmp_path / "spec.yaml", "--input", job.input_url, "--table", url]
    done = run_python(CLI, "extract", *options, status=MAY_PASS)
    (line,) = done.stderr.splitlines()
    told = line.removeprefix("featstore: error: ")
    assert re.match(full(url, r"/part-\S+|/_stats/\S+" if kilobytes else r"/_runs/\S+"), told)


def test_a_disk_that_is_full_at_the_commit_leaves_the_table_and_a_second_run_goes_through(
    job: ExtractJob, small_disk: Path
) -> None:
    on_disk = replace(job, table_url=str(small_disk / "table"))
    extract_files(replace(on_disk, input_url=str(Path(job.input_url).parent / "old"), run_id="old"))
    ballast: list[Path] = []

    commit = preceded(delta.commit, lambda: ballast.append(fill(small_disk)))
    with pytest.raises(DiskFullError, match=full(on_disk.table_url, "")) as raised:
        extract_files(on_disk, commit=commit)
    assert raised.value.errno == errno.ENOSPC
    assert "not known whether run 'new' was committed" in raised.value.__notes__[0]
    assert rows_of(on_disk.table_url) == OLD
    ballast[0].unlink()
    assert open_delta(on_disk.table_url).version == 0
    extract_files(on_disk)
    assert rows_of(on_disk.table_url) == NEW
    assert len({path for path in vacuum_all(on_disk.table_url) if path.endswith(".parquet")}) == 5


KILLERS = """
import os, signal
import pyarrow as pa
import featstore

def once(name):
    try:
        os.close(os.open(os.path.join(os.environ["FAULTS"], name), os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

def parent(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])

@featstore.operator(inputs=[pa.int64()], result=pa.int64())
def killing(rows):
    first = rows[0].as_py() if len(rows) else None
    if first == 70_000 + 65_536 and once("worker"):  # the second batch of a file
        os.kill(os.getpid(), signal.SIGKILL)
    if first == 210_000 + 65_536 and once("executor"):
        daemon = parent(os.getpid())
        for process in (parent(daemon), daemon, os.getpid()):
            os.kill(process, signal.SIGKILL)
    return rows
"""
CLUSTER = """
import json, sys
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.spark.runners import SparkRunner, spark_session
from featstore.spec.parse import load_spec
document, options = map(json.loads, sys.argv[1:3])
raw, table = sys.argv[3:]
spark = spark_session("faults", options)
job = ExtractJob(spec=load_spec(document), input_url=raw, table_url=table, partition={"dt": "1"}, run_id="new")
print("rows", extract_files(job, runner=SparkRunner(spark)).num_rows)
spark.stop()
"""
OPTIONS = {
    "spark.master": "local-cluster[1,2,1024]",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@pytest.mark.slow
def test_a_worker_and_an_executor_killed_in_mid_file_leave_every_row_once(
    tmp_path: Path, job: ExtractJob
) -> None:
    """Real processes of a real cluster on this host: Spark repeats their tasks under other
    attempts' names.
    """
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "killers.py").write_text(KILLERS)
    (tmp_path / "faults").mkdir()
    source = tmp_path / "many"
    for number in range(4):
        rows = range(number * 70_000, (number + 1) * 70_000)
        put_parquet(
            source / f"{number}.parquet", {"row": list(rows), "user": [f"u{row}" for row in rows]}
        )
    node = {"slot": 2, "name": "killed", "op": "killers:killing", "of": "row"}
    document = DOCUMENT | {
        "slots": [*DOCUMENT["slots"], node],
        "output": {"rows_per_row_group": 5_000, "rows_per_file": 70_000},
    }
    path = os.pathsep.join([str(tmp_path / "modules"), str(Path(featstore.__file__).parents[1])])
    environ = {
        "PYTHONPATH": path,
        "FAULTS": str(tmp_path / "faults"),
        "PYTHONWARNINGS": "ignore",
    }
    arguments = [
        json.dumps(document),
        json.dumps(OPTIONS | {"spark.local.dir": str(tmp_path / "local")}),
        str(source),
        job.table_url,
    ]
    done = run_python(CLUSTER, *arguments, variables=environ, cwd=tmp_path, status=None)
    assert "rows 280000" in done.stdout, done.stderr[-3000:]
    assert {fault.name for fault in (tmp_path / "faults").iterdir()} == {"worker", "executor"}
    assert rows_of(job.table_url) == list(range(280_000))
    assert len(open_delta(job.table_url).data_files) == 4
    left = {
        str(path.relative_to(job.table_url)) for path in Path(job.table_url).rglob(".part*.partial")
    }
    assert left  # what the killed ones were writing
    assert vacuum_all(job.table_url) >= left
    assert rows_of(job.table_url) == list(range(280_000))
