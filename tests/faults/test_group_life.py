"""Slot groups, labels and compactions that die half-way: the table shows all of a change or nothing
of it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from featstore.base.errors import DiskFullError
from featstore.explore.table import open_table
from featstore.extraction.deletion import delete_rows
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.restoring import restore
from featstore.extraction.rewriting import compact
from featstore.extraction.units.raw import Unit
from featstore.extraction.units.unit import Progress, UnitReport, UnitTask, run_unit
from featstore.spec.parse import load_spec
from featstore.table import delta
from featstore.table.vacuum import vacuum
from tests.faults.late_attempt import LateAttempt
from tests.faults.raw_users import write_raw
from tests.full_disk import fill
from tests.history_tables import make_table
from tests.interposed import preceded
from tests.loader.test_histories import make, rows_checked
from tests.old_files import age
from tests.programs import Program

DOCUMENT: dict[str, Any] = {
    "spec": 1,
    "inputs": {"row": "long", "user": "string", "clicked": "long"},
    "labels": {"click": "clicked"},
    "keep": ["row"],
    "slots": [{"slot": 1, "name": "user_id", "op": "hash", "of": "user"}],
    "output": {"rows_per_row_group": 100, "rows_per_file": 100},
}
ADDED = {"slot": 2, "name": "user_x_row", "op": "cross", "of": ["user", "row"]}
WIDER = DOCUMENT | {"slots": [*DOCUMENT["slots"], ADDED]}
DAY = {"dt": "1"}


@pytest.fixture
def job(tmp_path: Path) -> ExtractJob:
    """A day of 500 rows in five files, and the raw rows of riper labels beside."""
    write_raw(tmp_path / "ripe", clicked=1)
    raw, url = write_raw(tmp_path / "raw", clicked=0), str(tmp_path / "table")
    job = ExtractJob(
        spec=load_spec(DOCUMENT), input_url=raw, table_url=url, partition=DAY, run_id="first"
    )
    extract_files(job)
    return job


def added(job: ExtractJob) -> GroupJob:
    return GroupJob(job=replace(job, spec=load_spec(WIDER), run_id="more"), name="more")


def ripened(job: ExtractJob) -> GroupJob:
    ripe = replace(job, input_url=str(Path(job.input_url).parent / "ripe"), run_id="ripe")
    return GroupJob(job=ripe, name="labels", key="row", labels=True)


def state(url: str) -> tuple[bool, set[Any]]:
    """Whether the added slot is there, and the labels; all rows once, each with its own values."""
    table = open_table(url).to_arrow()
    assert table["row"].to_pylist() == list(range(500))
    assert len(set(table["user_id"].to_pylist())) == 500
    there = "user_x_row" in table.column_names
    if there:
        assert table["user_x_row"].null_count == 0
        assert len(set(table["user_x_row"].to_pylist())) == 500
    return there, set(table["click"].to_pylist())


def test_a_groups_attempt_that_publishes_after_the_commit_changes_nothing(job: ExtractJob) -> None:
    with LateAttempt() as run:
        extract_group(added(job), runner=run)
        path = Path(job.table_url, "_groups", "more", run.end())
    assert path.exists()
    assert state(job.table_url) == (True, {0})
    age(job.table_url, 10, but=["_runs"])
    late = path.relative_to(job.table_url)
    texts = Path("_groups", "more", "_stats", f"{late.relative_to('_groups/more')}.values")
    removed = {left.path for left in vacuum(job.table_url).removed}
    assert removed == {str(late), str(texts)}
    assert state(job.table_url) == (True, {0})


DRIVER = """
import json, sys
from dataclasses import replace
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob
from featstore.extraction.rewriting import compact
from featstore.extraction.deletion import delete_rows
from featstore.extraction.restoring import restore
from featstore.spec.parse import load_spec
from featstore.table import delta
what, document, raw, table = sys.argv[1], json.loads(sys.argv[2]), *sys.argv[3:]

def wait(*arguments, **options):
    print("there", flush=True)
    sys.stdin.read()

def commit_and_wait(url, change):
    delta.commit(url, change)
    wait()

def go_back(publish):
    delta.restore = publish
    restore(table, 1)

go_back_once = delta.restore
job = ExtractJob(spec=load_spec(document), input_url=raw, table_url=table, partition={"dt": "1"}, run_id="killed")
added = GroupJob(job=job, name="more")
labels = GroupJob(job=job, name="labels", key="row", labels=True)
{
    "group, before its commit": lambda: extract_group(added, commit=wait),
    "group, before the table names it": lambda: extract_group(added, publish=wait),
    "labels, before their commit": lambda: extract_group(labels, commit=wait),
    "labels, before the table names them": lambda: extract_group(labels, publish=wait),
    "compaction, before its commit": lambda: compact(table, commit=wait),
    "compaction, before it drops groups": lambda: compact(table, commit=commit_and_wait),
    "deletion, before its commit": lambda: delete_rows(table, "row < 10", commit=wait),
    "deletion, after its commit": lambda: delete_rows(table, "row < 10", commit=commit_and_wait),
    "restore, before its commit": lambda: go_back(wait),
    "restore, after its commit": lambda: go_back(lambda *a, **b: wait(go_back_once(*a, **b))),
}[what]()
"""


def kill(what: str, document: dict[str, Any], raw: str, url: str) -> None:
    with Program(DRIVER, what, json.dumps(document), raw, url) as driver:
        assert driver.line() == "there"
        driver.die()


@pytest.mark.parametrize("when", ["group, before its commit", "group, before the table names it"])
def test_a_driver_killed_while_it_adds_slots_changes_nothing_and_the_next_run_goes_through(
    job: ExtractJob, when: str
) -> None:
    kill(when, WIDER, job.input_url, job.table_url)
    assert state(job.table_url) == (False, {0})
    assert extract_group(added(job)).committed
    assert state(job.table_url) == (True, {0})


@pytest.mark.parametrize(
    "when", ["labels, before their commit", "labels, before the table names them"]
)
def test_a_driver_killed_while_it_relabels_changes_nothing_and_the_next_run_goes_through(
    job: ExtractJob, when: str
) -> None:
    kill(when, DOCUMENT, ripened(job).job.input_url, job.table_url)
    assert state(job.table_url) == (False, {0})
    assert extract_group(ripened(job)).committed
    assert state(job.table_url) == (False, {1})


@pytest.mark.parametrize(
    "when", ["compaction, before its commit", "compaction, before it drops groups"]
)
def test_a_driver_killed_while_it_compacts_leaves_equal_rows_and_the_next_one_ends_it(
    job: ExtractJob, when: str
) -> None:
    extract_group(added(job))
    extract_group(ripened(job))
    kill(when, WIDER, job.input_url, job.table_url)
    assert state(job.table_url) == (True, {1})
    assert compact(job.table_url).groups == ("labels", "more")
    assert state(job.table_url) == (True, {1})
    age(job.table_url, 10)  # the dead run's mark too
    vacuum(job.table_url, retain_s=0)
    assert state(job.table_url) == (True, {1})
    live = {file.path for file in open_table(job.table_url).data_files()}
    assert {
        str(path.relative_to(job.table_url)) for path in Path(job.table_url).rglob("*.parquet")
    } == live


@pytest.mark.parametrize(
    ("when", "first"), [("deletion, before its commit", 0), ("deletion, after its commit", 10)]
)
def test_a_driver_killed_while_it_deletes_rows_has_deleted_all_or_none_and_the_next_run_goes_through(
    job: ExtractJob, when: str, first: int
) -> None:
    extract_group(added(job))
    kill(when, WIDER, job.input_url, job.table_url)
    table = open_table(job.table_url).to_arrow()
    assert table["row"].to_pylist() == list(range(first, 500))
    assert table["user_x_row"].null_count == 0
    assert delete_rows(job.table_url, "row < 10").num_rows == 10 - first
    age(job.table_url, 10)  # the dead run's mark too
    vacuum(job.table_url, retain_s=0)
    assert open_table(job.table_url).to_arrow()["row"].to_pylist() == list(range(10, 500))


@pytest.mark.parametrize(
    ("when", "first"), [("deletion, before its commit", 1), ("deletion, after its commit", 10)]
)
def test_a_driver_killed_while_it_trims_histories_has_done_all_or_nothing(
    tmp_path: Path, when: str, first: int
) -> None:
    root = tmp_path / "table"
    fat = make_table(root, 7, [[40, 25, 7], [30]])
    kill(when, DOCUMENT, "", str(root))
    # Row 0 has the mark of a missing value, which no predicate finds.
    for left in (first, 10):
        with make(root) as loader:
            assert sorted(rows_checked(loader, fat)) == [0, *range(left, 102)]
        assert delete_rows(str(root), "row < 10").num_rows == 10 - left
        age(root, 10)  # the dead run's mark too
        vacuum(str(root), retain_s=0)
        live = {file.path for file in open_table(str(root)).data_files()}
        assert {path.name for path in root.rglob("part-*.parquet")} == live


@pytest.mark.parametrize(
    ("when", "label"), [("restore, before its commit", 1), ("restore, after its commit", 0)]
)
def test_a_driver_killed_while_it_goes_back_has_done_all_or_nothing_and_the_next_one_goes_through(
    job: ExtractJob, when: str, label: int
) -> None:
    extract_group(added(job))
    extract_group(ripened(job))
    compact(job.table_url)
    kill(when, WIDER, job.input_url, job.table_url)
    assert state(job.table_url) == (True, {label})
    # What its mark names stays, for the next one.
    age(job.table_url, 10, but=["_runs"])
    vacuum(job.table_url, retain_s=0)
    assert restore(job.table_url, 1).committed == bool(label)
    assert state(job.table_url) == (True, {0})
    extract_group(ripened(job))
    assert state(job.table_url) == (True, {1})
    age(job.table_url, 10)  # the dead run's mark too
    vacuum(job.table_url, retain_s=0)
    assert state(job.table_url) == (True, {1})


def test_a_vacuum_while_a_compaction_is_at_work_takes_nothing_of_it(job: ExtractJob) -> None:
    extract_group(added(job))
    seen: list[int] = []

    def vacuum_old() -> None:
        age(job.table_url, 10, but=["_runs"])
        seen.append(vacuum(job.table_url, retain_s=0).num_running)

    compact(job.table_url, commit=preceded(delta.commit, vacuum_old))
    assert seen == [6]
    assert state(job.table_url) == (True, {0})


FULL = (
    r"^{}/?\S*: cannot be written, since the disk, or the quota on it, is full \(.*\); free space "
)


@pytest.mark.parametrize("when", ["data", "commit", "naming"])
def test_a_disk_that_is_full_leaves_the_table_and_a_second_run_goes_through(
    job: ExtractJob, small_disk: Path, when: str
) -> None:
    on_disk = replace(job, table_url=str(small_disk / "table"))
    extract_files(on_disk)
    filled: list[Path] = []

    def reached(what: str) -> None:
        if what == when:
            filled.append(fill(small_disk))

    def run(task: UnitTask, units: Sequence[Unit], progress: Progress) -> list[UnitReport]:
        reports = [report for unit in units[:3] for report in run_unit(task, unit)]
        reached("data")
        return [*reports, *(report for unit in units[3:] for report in run_unit(task, unit))]

    commit = preceded(delta.commit, lambda: reached("commit"))
    name_more = delta.publish_groups(lambda named: named | {"more": 0})
    publish = preceded(name_more, lambda: reached("naming"))
    with pytest.raises(DiskFullError, match=FULL.format(re.escape(on_disk.table_url))):
        extract_group(added(on_disk), runner=run, commit=commit, publish=publish)
    assert state(on_disk.table_url) == (False, {0})
    filled[0].unlink()
    extract_group(added(on_disk))
    assert state(on_disk.table_url) == (True, {0})


def test_a_disk_that_is_full_at_a_compactions_commit_leaves_the_table(
    job: ExtractJob, small_disk: Path
) -> None:
    on_disk = replace(job, table_url=str(small_disk / "table"))
    extract_files(on_disk)
    extract_group(added(on_disk))
    filled: list[Path] = []

    commit = preceded(delta.commit, lambda: filled.append(fill(small_disk)))
    with pytest.raises(DiskFullError, match=FULL.format(re.escape(on_disk.table_url))):
        compact(on_disk.table_url, commit=commit)
    assert state(on_disk.table_url) == (True, {0})
    filled[0].unlink()
    assert compact(on_disk.table_url).groups == ("more",)
    assert state(on_disk.table_url) == (True, {0})
