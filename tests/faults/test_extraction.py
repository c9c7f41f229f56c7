"""Whatever goes wrong during an extraction, the table is at its previous version or at the next
one, whole.
"""

import hashlib
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from featstore.base.errors import CommitConflictError, InputError
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.local import LocalRunner
from featstore.extraction.units.raw import Unit
from featstore.extraction.units.unit import Progress, UnitReport, UnitTask, run_unit
from featstore.spec.parse import load_spec
from featstore.table import delta
from featstore.table.delta import history, open_delta, open_delta_or_none
from tests.damaged_files import overwrite
from tests.interposed import followed, preceded
from tests.parquet_files import put_parquet
from tests.process import our_threads
from tests.programs import Program

DOCUMENT = {
    "spec": 1,
    "inputs": {"user": "string", "clicked": "long"},
    "labels": {"click": "clicked"},
    "slots": [{"slot": 1, "name": "user", "op": "hash", "of": "user"}],
    "output": {"rows_per_row_group": 100, "rows_per_file": 100},
}


TAG = hashlib.sha256(b"new").hexdigest()[:8]


def write_raw(path: Path, num_rows: int) -> None:
    put_parquet(
        path,
        {
            "user": [f"u{row}" for row in range(num_rows)],
            "clicked": [row % 2 for row in range(num_rows)],
        },
        row_group_size=100,
    )


@pytest.fixture(params=["no table", "a table"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> ExtractJob:
    """A run over five units: into a new table, and into one whose partition it replaces."""
    write_raw(tmp_path / "raw" / "a.parquet", 500)
    raw, table = str(tmp_path / "raw"), str(tmp_path / "table")
    job = ExtractJob(
        spec=load_spec(DOCUMENT),
        input_url=raw,
        table_url=table,
        partition={"day": "1"},
        run_id="new",
    )
    if request.param == "a table":
        write_raw(tmp_path / "old" / "a.parquet", 50)
        extract_files(replace(job, input_url=str(tmp_path / "old"), run_id="old"))
    return job


@pytest.fixture
def before(job: ExtractJob) -> set[str]:
    return data_files(job)


def data_files(job: ExtractJob) -> set[str]:
    files = (path for path in Path(job.table_url).rglob("*") if path.is_file())
    return {str(path) for path in files if not {"_delta_log", "_runs", "_stats"} & set(path.parts)}


def assert_as_before(job: ExtractJob, before: set[str]) -> None:
    snapshot = open_delta_or_none(job.table_url)
    assert (snapshot.num_rows if snapshot else 0) == (50 if before else 0)
    assert data_files(job) == before


def assert_new(job: ExtractJob) -> None:
    snapshot = open_delta(job.table_url)
    assert (snapshot.num_rows, len(snapshot.data_files)) == (500, 5)
    assert all(Path(file.url).stat().st_size == file.size_bytes for file in snapshot.data_files)


def test_a_unit_that_fails_leaves_the_table_and_no_file(job: ExtractJob, before: set[str]) -> None:
    written: list[str] = []

    def run(task: UnitTask, units: Sequence[Unit], progress: Progress) -> list[UnitReport]:
        written.extend(report.path for unit in units[:3] for report in run_unit(task, unit))
        raise InputError("unit 3 cannot be read")

    with pytest.raises(InputError, match="unit 3 cannot be read"):
        extract_files(job, runner=run)
    assert len(written) == 3
    assert_as_before(job, before)
    extract_files(job)
    assert_new(job)


def test_a_repeated_attempt_leaves_at_most_a_file_that_nobody_names(
    job: ExtractJob, before: set[str]
) -> None:
    def run(task: UnitTask, units: Sequence[Unit], progress: Progress) -> list[UnitReport]:
        for unit in units:
            run_unit(task, unit, attempt=0)
        return [report for unit in units for report in run_unit(task, unit, attempt=1)]

    extract_files(job, runner=run)
    assert_new(job)
    assert len(data_files(job) - before) == 10


def test_a_failing_thread_stops_the_others(
    job: ExtractJob, before: set[str], tmp_path: Path
) -> None:
    raw = tmp_path / "raw" / "a.parquet"
    overwrite(raw, pq.read_metadata(raw).row_group(0).column(0).data_page_offset)
    with pytest.raises(InputError, match=r"a\.parquet, rows 0 to 99: cannot be read"):
        extract_files(job, runner=LocalRunner(1))
    assert_as_before(job, before)
    assert not our_threads()


def test_an_interrupt_while_units_run_leaves_the_table_and_no_file(
    job: ExtractJob, before: set[str]
) -> None:
    seen: list[int] = []

    def interrupt(num_files: int, num_files_total: int, num_rows: int) -> None:
        seen.append(num_files)
        if num_files == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_files(job, runner=LocalRunner(2), progress=interrupt)
    assert 2 in seen
    assert_as_before(job, before)


def assert_files_left(job: ExtractJob, before: set[str], error: BaseException) -> None:
    """The table is as it was; five files that nobody names are there, and the error says so."""
    snapshot = open_delta_or_none(job.table_url)
    assert (snapshot.num_rows if snapshot else 0) == (50 if before else 0)
    assert len(data_files(job) - before) == 5
    [note] = error.__notes__
    assert f"not known whether run 'new' was committed, so its 5 data files (part-*-{TAG}" in note
    assert f"are left in {job.table_url}" in note


def test_an_interrupt_during_the_commit_leaves_the_table_and_says_which_files(
    job: ExtractJob, before: set[str]
) -> None:
    commit = Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) as raised:
        extract_files(job, commit=commit)
    assert [len(call.args[1].files) for call in commit.call_args_list] == [5]
    assert_files_left(job, before, raised.value)


def test_an_interrupt_right_after_the_commit_keeps_the_new_version_whole(job: ExtractJob) -> None:
    with pytest.raises(KeyboardInterrupt):
        extract_files(job, commit=followed(delta.commit, Mock(side_effect=KeyboardInterrupt)))
    assert_new(job)


def test_a_reply_lost_after_the_commit_landed_is_recognised_by_the_run_id(
    job: ExtractJob, before: set[str]
) -> None:
    lost = Mock(side_effect=OSError("connection reset by peer"))
    publish = followed(delta.publish_once, lost)
    report = extract_files(job, commit=partial(delta.commit, publish=publish))
    assert lost.call_count == 1
    assert (report.committed, report.version) == (True, 1 if before else 0)
    assert len(history(job.table_url)) == report.version + 1
    assert_new(job)


def test_a_commit_that_fails_leaves_the_table_and_says_which_files(
    job: ExtractJob, before: set[str]
) -> None:
    publish = Mock(side_effect=OSError("No space left on device"))
    with pytest.raises(OSError, match="No space left on device") as raised:
        extract_files(job, commit=partial(delta.commit, publish=publish))
    assert publish.call_count == 1
    assert_files_left(job, before, raised.value)
    extract_files(job)
    assert_new(job)


def test_a_commit_that_lands_after_its_run_gave_up_has_all_its_files(job: ExtractJob) -> None:
    publish = Mock(side_effect=Exception("External error: operation timed out"))
    with pytest.raises(Exception, match="operation timed out"):
        extract_files(job, commit=partial(delta.commit, publish=publish))
    delta.publish_once(*publish.call_args_list[0].args)
    assert_new(job)


def test_a_run_that_fails_leaves_the_files_of_another_under_the_same_id(job: ExtractJob) -> None:
    """A scheduler that takes a live driver for dead starts it again."""

    def fail(task: UnitTask, units: Sequence[Unit], progress: Progress) -> list[UnitReport]:
        run_unit(task, units[0])
        raise OSError("disk full")

    def start_again() -> None:
        with pytest.raises(OSError, match="disk full"):
            extract_files(job, runner=fail)

    extract_files(job, commit=preceded(delta.commit, start_again))
    assert_new(job)


def test_of_two_runs_under_one_id_at_once_one_commits(job: ExtractJob) -> None:
    with pytest.raises(CommitConflictError, match="another writer committed day=1"):
        extract_files(job, commit=preceded(delta.commit, lambda: extract_files(job)))
    assert_new(job)


def test_a_run_id_that_the_log_forgot_overwrites_no_live_file(
    job: ExtractJob, tmp_path: Path
) -> None:
    extract_files(job)
    live = {path: Path(path).read_bytes() for path in data_files(job)}
    DeltaTable(job.table_url).create_checkpoint()
    write_raw(tmp_path / "more" / "a.parquet", 10)
    extract_files(
        replace(job, input_url=str(tmp_path / "more"), partition={"day": "2"}, run_id="later")
    )
    for log in (Path(job.table_url) / "_delta_log").glob("*.json"):
        if '"run_id":"new"' in log.read_text():
            log.unlink()
    write_raw(tmp_path / "raw" / "a.parquet", 300)
    extract_files(job)
    assert open_delta(job.table_url).num_rows == 310
    assert {path: Path(path).read_bytes() for path in live} == live


def test_the_second_of_two_writers_of_one_partition_fails_and_leaves_the_first(
    job: ExtractJob, tmp_path: Path
) -> None:
    write_raw(tmp_path / "mine" / "a.parquet", 300)
    mine = replace(job, input_url=str(tmp_path / "mine"), run_id="mine")

    with pytest.raises(
        CommitConflictError, match="another writer committed day=1 while this run was at work"
    ):
        extract_files(mine, commit=preceded(delta.commit, lambda: extract_files(job)))
    assert_new(job)
    assert len(data_files(job)) == 5 + (open_delta(job.table_url).version == 1)


def meeting(num_writers: int, begun: list[str]) -> Callable[[str, Any, delta.Change], None]:
    """Publishes, but the first time that a run does only once all writers do; `begun` has who."""
    together = threading.Barrier(num_writers)

    def publish(url: str, table: Any, change: delta.Change) -> None:
        if change.metadata.run_id not in begun:
            begun.append(change.metadata.run_id)
            together.wait(60)
        delta.publish_once(url, table, change)

    return publish


def test_of_four_writers_of_one_partition_that_commit_at_once_one_wins_and_three_are_told(
    job: ExtractJob, before: set[str], tmp_path: Path
) -> None:
    """All have read the same version when they commit. What is left is the winner's rows, and no
    file of the others.
    """
    for number in range(4):
        write_raw(tmp_path / str(number) / "a.parquet", 100 * (number + 1))
    begun: list[str] = []
    publish = meeting(4, begun)

    def run(number: int) -> str:
        mine = replace(job, input_url=str(tmp_path / str(number)), run_id=f"r{number}")
        try:
            extract_files(
                mine, runner=LocalRunner(1), commit=partial(delta.commit, publish=publish)
            )
        except CommitConflictError as error:
            return str(error)
        return "won"

    with ThreadPoolExecutor(4) as threads:
        said = list(threads.map(run, range(4)))
    winner = said.index("won")
    assert len(begun) == 4
    assert all(
        "another writer committed day=1 while this run was at work" in text
        for text in said
        if text != "won"
    )
    assert said.count("won") == 1
    snapshot = open_delta(job.table_url)
    assert (snapshot.num_rows, snapshot.version) == (100 * (winner + 1), 1 if before else 0)
    assert len(data_files(job) - before) == winner + 1


def test_writers_of_four_partitions_of_a_new_table_all_commit_at_once(job: ExtractJob) -> None:
    """Each finds no table; one makes it, and the others' days join it."""
    job = replace(job, table_url=f"{job.table_url}2")
    publish = meeting(4, [])

    def run(number: int) -> int:
        mine = replace(job, partition={"day": str(number)}, run_id=f"r{number}")
        return extract_files(
            mine, runner=LocalRunner(1), commit=partial(delta.commit, publish=publish)
        ).version

    with ThreadPoolExecutor(4) as threads:
        versions = list(threads.map(run, range(4)))
    assert sorted(versions) == [0, 1, 2, 3]
    snapshot = open_delta(job.table_url)
    assert (snapshot.num_rows, len(snapshot.partitions)) == (2000, 4)


@pytest.mark.parametrize("first", [{"dt": "0", "hour": "0"}, {"hour": "0", "dt": "0"}, None])
def test_writers_that_order_the_keys_of_a_partition_differently_conflict_too(
    tmp_path: Path, first: Any
) -> None:
    write_raw(tmp_path / "raw" / "a.parquet", 100)
    raw, table = str(tmp_path / "raw"), str(tmp_path / "table")
    one = ExtractJob(
        spec=load_spec(DOCUMENT), input_url=raw, table_url=table, partition={"dt": "1", "hour": "2"}
    )
    other = replace(one, partition={"hour": "2", "dt": "1"}, run_id="other")
    if first is not None:
        extract_files(replace(one, partition=first, run_id="first"))

    publish = preceded(delta.publish_once, cache(lambda: extract_files(one)))
    with pytest.raises(
        CommitConflictError, match=r"another writer committed (dt=1/hour=2|hour=2/dt=1)"
    ):
        extract_files(other, commit=partial(delta.commit, publish=publish))
    assert open_delta(table).num_rows == (100 if first is None else 200)


def test_writers_of_two_partitions_both_commit(job: ExtractJob) -> None:
    other = replace(job, partition={"day": "2"}, run_id="other")

    extract_files(job, commit=preceded(delta.commit, lambda: extract_files(other)))
    assert {file.partition["day"] for file in open_delta(job.table_url).data_files} == {"1", "2"}
    assert open_delta(job.table_url).num_rows == 1000


def test_readers_of_the_old_version_go_on_while_it_is_replaced(
    job: ExtractJob, before: set[str]
) -> None:
    old = open_delta_or_none(job.table_url)
    extract_files(job)
    for file in old.data_files if old else ():
        assert pq.read_table(file.url, partitioning=None).num_rows == file.num_rows
    assert before <= data_files(job)


WRITER = """
import sys
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.local import LocalRunner
from featstore.spec.parse import load_spec
raw, table = sys.argv[1:]

def told(num_files, num_files_total, num_rows):
    print(num_files, flush=True)
    if num_files == 3:
        sys.stdin.read()  # until the signal was sent

spec = load_spec({document})
extract_files(ExtractJob(spec=spec, input_url=raw, table_url=table, run_id="killed"), runner=LocalRunner(1), progress=told)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_extraction_is_invisible_and_can_be_run_again(
    tmp_path: Path, kill: signal.Signals
) -> None:
    write_raw(tmp_path / "raw" / "a.parquet", 20_000)
    arguments = [str(tmp_path / "raw"), str(tmp_path / "table")]
    code = WRITER.format(document=DOCUMENT)
    with Program(code, *arguments) as process:
        while process.line() != "3":
            assert process.poll() is None
        process.send_signal(kill)
        process.communicate()
    assert process.returncode != 0
    assert open_delta_or_none(arguments[1]) is None
    left = len(list((tmp_path / "table").glob("*.parquet")))
    assert (left > 0) == (kill is signal.SIGKILL)
    job = ExtractJob(
        spec=load_spec(DOCUMENT), input_url=arguments[0], table_url=arguments[1], run_id="killed"
    )
    assert extract_files(job).num_rows == 20_000
