"""Files of a run that are removed while it is at work: nothing is committed that cannot be read;
and who never removes them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from featstore import api
from featstore.base.errors import CommitConflictError
from featstore.explore.table import open_table
from featstore.extraction import rewriting
from featstore.extraction.by_key import run_by_key
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.local import LocalRunner
from featstore.extraction.spark.runners import SparkRunner, extract_dataframe
from featstore.extraction.units.unit import Progress, UnitReport, UnitTask
from featstore.spec.parse import load_spec
from featstore.table.delta import open_delta
from featstore.table.vacuum import vacuum
from tests.faults.raw_users import write_raw
from tests.interposed import preceded
from tests.old_files import age
from tests.programs import run_python

VACUUM_AHEAD = Path(__file__).parents[1] / "table" / "vacuum_ahead.py"
SLOTS = [{"slot": 1, "name": "user_id", "op": "hash", "of": "user"}]
MORE = [*SLOTS, {"slot": 2, "name": "user_x_row", "op": "cross", "of": ["user", "row"]}]
Fault = Callable[[Path], None]
"""What befalls the table whose directory is given, when all files of a run are written and none is
committed.
"""


def spec_of(slots: list[dict[str, Any]]) -> Any:
    document = {
        "spec": 1,
        "inputs": {"row": "long", "user": "string", "clicked": "long"},
        "labels": {"click": "clicked"},
        "keep": ["row"],
        "slots": slots,
        "output": {"rows_per_row_group": 100, "rows_per_file": 100},
    }
    return load_spec(document)


@pytest.fixture
def job(tmp_path: Path) -> ExtractJob:
    """A job that replaces the day of a table that has 500 rows there, in five files, all labels
    being 0.
    """
    raw, url = write_raw(tmp_path / "raw", clicked=0), str(tmp_path / "table")
    job = ExtractJob(
        spec=spec_of(SLOTS), input_url=raw, table_url=url, partition={"dt": "1"}, run_id="first"
    )
    extract_files(job)
    return replace(job, input_url=write_raw(tmp_path / "ripe", clicked=1), run_id="second")


class Faulty:
    """A runner of units or partitions: the real one, and then the fault."""

    def __init__(self, run: Any, fault: Fault) -> None:
        self._run, self._fault = run, fault

    def __call__(
        self, task: UnitTask, units: Sequence[Any], progress: Progress
    ) -> list[UnitReport]:
        reports: list[UnitReport] = self._run(task, units, progress)
        self._fault(Path(task.table_url))
        return reports


def replace_the_day(job: ExtractJob, fault: Fault, patch: pytest.MonkeyPatch) -> None:
    extract_files(job, runner=Faulty(LocalRunner(), fault))


def add_slots(job: ExtractJob, fault: Fault, patch: pytest.MonkeyPatch) -> None:
    job = replace(job, spec=spec_of(MORE), input_url=str(Path(job.input_url).parent / "raw"))
    extract_group(GroupJob(job=job, name="more"), runner=Faulty(LocalRunner(), fault))


def relabel(job: ExtractJob, fault: Fault, patch: pytest.MonkeyPatch) -> None:
    extract_group(
        GroupJob(job=job, name="labels", key="row", labels=True),
        run_keyed=Faulty(run_by_key, fault),
    )


def compact(job: ExtractJob, fault: Fault, patch: pytest.MonkeyPatch) -> None:
    """The fault comes when the change is made, which names the written files."""
    api.relabel(job.spec, job.input_url, job.table_url, key="row", partition={"dt": "1"})
    change = preceded(rewriting.replacement, lambda: fault(Path(job.table_url)))
    patch.setattr(rewriting, "replacement", change)
    rewriting.compact(job.table_url)


WAYS = [replace_the_day, add_slots, relabel, compact]


def own(table: Path, what: str) -> list[Path]:
    """Files of the run at work, whose mark is the only one."""
    (mark,) = (table / "_runs").iterdir()
    return sorted(table.rglob(what.format(tag=mark.name)))


def lose_a_file(table: Path) -> None:
    own(table, "part-*-{tag}-*.parquet")[2].unlink()


def lose_the_mark(table: Path) -> None:
    own(table, "_runs/{tag}")[0].unlink()


def be_taken_for_dead(table: Path) -> None:
    """The machine stood still for two days, and was vacuumed meanwhile."""
    base = table.parents[1] if "_groups" in table.parts else table
    num_files = len(own(table, "part-*-{tag}-*.parquet"))
    age(table, 2)
    removed = [left.kind for left in vacuum(str(base)).removed]
    assert removed[0] == "mark of a dead run"
    assert removed.count("orphan") == num_files == 5


FAULTS: dict[Fault, str] = {
    lose_a_file: r"1 of 5 data files are gone or of another size \(dt=1/part-00002-.*run it again$",
    lose_the_mark: r"its mark _runs/[0-9a-f-]+ is gone: a vacuum took the run for dead",
    be_taken_for_dead: r"its mark _runs/[0-9a-f-]+ is gone: a vacuum took the run for dead",
}


def rows(url: str) -> pa.Table:
    return open_table(url).to_arrow().sort_by("row")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_job_whose_mark_or_files_are_gone_commits_nothing(
    job: ExtractJob, way: Any, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, versions, faults = rows(job.table_url), [], []

    def at_work(table: Path) -> None:
        versions.append(open_delta(job.table_url).version)
        fault(table)
        faults.append(table)

    with pytest.raises(CommitConflictError, match=FAULTS[fault]):
        way(job, at_work, monkeypatch)
    assert len(faults) == 1
    assert open_delta(job.table_url).version == versions[0]
    after = rows(job.table_url)
    assert after.drop_columns(["click"]).equals(before.drop_columns(["click"]))
    named = {file.path for file in open_delta(job.table_url).data_files}
    left = {
        str(path.relative_to(job.table_url)) for path in Path(job.table_url, "dt=1").rglob("part-*")
    }
    assert left == named
    monkeypatch.undo()
    way(job, lambda table: None, monkeypatch)
    assert rows(job.table_url)["row"].to_pylist() == list(range(500))


def test_of_a_job_on_spark_whose_files_are_gone_nothing_is_committed(
    spark: Any, job: ExtractJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, faults = rows(job.table_url), []

    def fault(table: Path) -> None:
        own(table, "part-*-{tag}-*.parquet")[0].unlink()
        faults.append(table)

    def on_progress(num_files: int, num_files_total: int, num_rows: int) -> None:
        if num_rows == 500 and not faults:
            fault(Path(job.table_url))

    labels = GroupJob(job=job, name="labels", key="row", labels=True)
    ways: list[Callable[[], object]] = [
        lambda: extract_files(job, runner=Faulty(SparkRunner(spark), fault)),
        lambda: extract_group(labels, run_keyed=Faulty(SparkRunner(spark).by_key, fault)),
        lambda: extract_dataframe(job, spark.read.parquet(job.input_url), progress=on_progress),
    ]
    for way in ways:
        faults.clear()
        with pytest.raises(CommitConflictError, match=r"1 of \d data files are gone"):
            way()
        assert len(faults) == 1
        assert rows(job.table_url).equals(before)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_vacuum_by_a_host_whose_clock_is_26_hours_ahead_takes_nothing_of_a_running_job(
    job: ExtractJob, way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def vacuum_ahead(table: Path) -> None:
        told.append(run_python(VACUUM_AHEAD, job.table_url, 26).stdout)

    way(job, vacuum_ahead, monkeypatch)
    assert "0 files, 0 bytes removed" in told[0]
    assert rows(job.table_url)["row"].to_pylist() == list(range(500))
