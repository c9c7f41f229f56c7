"""A slot group keeps the files that a retained version of the table reads or that its next commit
may reference, and no others.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from featstore import api
from featstore.explore.table import open_table
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.local import LocalRunner
from featstore.extraction.rewriting import compact
from featstore.spec.parse import load_spec
from featstore.table import delta
from featstore.table.layout import GROUPS_DIR, data_file_name
from featstore.table.vacuum import VacuumReport, vacuum
from tests.interposed import followed, preceded
from tests.old_files import age
from tests.parquet_files import put_parquet

DAY_S = 86_400.0
DAY = {"day": "1"}
SLOTS = [{"slot": 1, "name": "user_id", "op": "hash", "of": "user"}]
MORE = [*SLOTS, {"slot": 2, "name": "price_log", "op": "log1p", "of": "price"}]


def spec_of(slots: list[dict[str, Any]]) -> Any:
    inputs = {"user": "string", "price": "double", "clicked": "long"}
    return load_spec(
        {
            "spec": 1,
            "inputs": inputs,
            "labels": {"click": "clicked"},
            "keep": ["user"],
            "slots": slots,
        }
    )


def write_raw(directory: Path, clicked: int) -> Path:
    put_parquet(
        directory / "a.parquet",
        {
            "user": [f"u{i}" for i in range(50)],
            "price": [float(i) for i in range(50)],
            "clicked": [clicked] * 50,
        },
    )
    return directory


@pytest.fixture
def job(tmp_path: Path) -> ExtractJob:
    """A day whose labels were rewritten twice (versions 1 and 2), with slots in a group (version
    3).
    """
    raw = write_raw(tmp_path / "raw", 0)
    job = ExtractJob(
        spec=spec_of(SLOTS),
        input_url=str(raw),
        table_url=str(tmp_path / "table"),
        partition=DAY,
        run_id="first",
    )
    extract_files(job)
    for clicked in (1, 2):
        api.relabel(
            job.spec,
            write_raw(tmp_path / f"ripe{clicked}", clicked),
            job.table_url,
            key="user",
            partition=DAY,
        )
    extract_group(GroupJob(job=replace(job, spec=spec_of(MORE), run_id="more"), name="more"))
    return job


def later(job: ExtractJob, **options: Any) -> VacuumReport:
    """A vacuum ten days later."""
    return vacuum(job.table_url, now_s=time.time() + 10 * DAY_S, **options)


def group_files(job: ExtractJob, name: str) -> set[str]:
    return {
        str(path.relative_to(job.table_url))
        for path in Path(job.table_url, GROUPS_DIR, name).rglob("*.parquet")
    }


def clicks(job: ExtractJob, version: int | None = None) -> set[object]:
    return set(open_table(job.table_url, version).to_arrow()["click"].to_pylist())


def test_rewritten_labels_are_removed_and_those_that_are_read_stay(
    job: ExtractJob,
) -> None:
    before = open_table(job.table_url).to_arrow()
    assert later(job, retain_s=30 * DAY_S).removed == ()
    assert len(group_files(job, "labels")) == 2
    (removed,) = later(job).removed
    assert (removed.kind, removed.path.startswith("_groups/labels/day=1/part-")) == (
        "replaced",
        True,
    )
    assert open_table(job.table_url).to_arrow().equals(before)
    assert (len(group_files(job, "labels")), len(group_files(job, "more"))) == (1, 1)


def test_a_version_that_is_kept_keeps_its_groups(job: ExtractJob) -> None:
    assert later(job, keep_versions=[1]).removed == ()
    assert [clicks(job, version) for version in (0, 1, 2, 3)] == [{0}, {1}, {2}, {2}]


def test_group_files_are_removed_with_their_base_files(job: ExtractJob) -> None:
    # With a slot that no group holds: otherwise it would be equal to what is there.
    wide = spec_of([*MORE, {"slot": 3, "name": "cost", "op": "identity", "of": "price"}])
    extract_files(replace(job, spec=wide, run_id="again"))
    assert len(open_table(job.table_url).snapshot.groups[0].stale) == 1
    removed = {left.path for left in later(job).removed}
    assert group_files(job, "labels") == group_files(job, "more") == set()
    assert len({path for path in removed if path.endswith(".parquet")}) == 4
    assert clicks(job) == {0}
    api.relabel(
        job.spec, Path(job.input_url).parent / "ripe1", job.table_url, key="user", partition=DAY
    )
    assert clicks(job) == {1}


def test_compacted_groups_are_removed_once_no_version_needs_them(job: ExtractJob) -> None:
    before = open_table(job.table_url).to_arrow()
    compact(job.table_url)
    assert later(job, keep_versions=[3]).removed
    assert open_table(job.table_url, 3).to_arrow().equals(before)
    later(job)
    assert group_files(job, "labels") == group_files(job, "more") == set()
    after = open_table(job.table_url).to_arrow()
    assert after.select(before.column_names).equals(before)


def test_the_files_of_a_run_that_died_between_its_commits_are_kept(
    job: ExtractJob,
) -> None:
    wide = spec_of([*MORE, {"slot": 3, "name": "cost", "op": "identity", "of": "price"}])
    died = GroupJob(job=replace(job, spec=wide, run_id="died"), name="third")
    with pytest.raises(KeyboardInterrupt):
        extract_group(died, publish=Mock(side_effect=KeyboardInterrupt))
    files = group_files(job, "third")
    assert not any(left.path.startswith("_groups/third") for left in later(job).removed)
    assert extract_group(died).committed
    assert group_files(job, "third") == files
    assert open_table(job.table_url).to_arrow()["cost"].to_pylist() == [float(i) for i in range(50)]


def test_a_vacuum_during_any_step_of_a_group_run_removes_none_of_its_files(
    job: ExtractJob,
) -> None:
    """Its files are older than the grace. While it works it has a mark, and between its commits the
    group's log references the files.
    """
    seen: list[int] = []

    def look() -> None:
        age(job.table_url, what="part-*")
        report = vacuum(job.table_url, retain_s=0)
        assert not any(left.path.startswith("_groups/third") for left in report.removed)
        seen.append(report.num_running)

    wide = spec_of([*MORE, {"slot": 3, "name": "cost", "op": "identity", "of": "price"}])
    group = GroupJob(job=replace(job, spec=wide, run_id="third"), name="third")
    publish = preceded(delta.publish_groups(lambda named: named | {"third": 0}), look)
    runner, commit = followed(LocalRunner(1), look), preceded(delta.commit, look)
    extract_group(group, runner=runner, commit=commit, publish=publish)
    assert seen == [1, 1, 0]
    assert open_table(job.table_url).to_arrow()["cost"].null_count == 0


@pytest.mark.parametrize("group", ["more", "never-committed"])
def test_leftovers_of_a_dead_group_run_are_removed(job: ExtractJob, group: str) -> None:
    orphan = Path(
        job.table_url, GROUPS_DIR, group, "day=1", "part", data_file_name("0a0a0a0a-1b1b1b1b", 0, 0)
    )
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"x")
    foreign = orphan.with_name("notes.txt")
    foreign.write_bytes(b"x")
    assert {left.kind for left in later(job, keep_versions=[1]).removed} == {"orphan"}
    assert (orphan.exists(), foreign.exists()) == (False, True)
