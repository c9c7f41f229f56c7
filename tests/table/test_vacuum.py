import errno
import itertools
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from featstore.base.errors import (
    DataFileError,
    FeatstoreError,
    InputError,
    StoreError,
    TableNotFoundError,
)
from featstore.table import vacuum as vacuum_module
from featstore.table.delta import Change, commit, open_delta
from featstore.table.layout import tag_of
from featstore.table.log_files import read_actions
from featstore.table.metadata import CommitMetadata
from featstore.table.running import marked, running
from featstore.table.snapshot import files_digest
from featstore.table.vacuum import oldest_retained, vacuum
from tests.old_files import age
from tests.programs import run_python

TAG = "0a0a0a0a-1b1b1b1b"
ORPHAN = f"month=1/part-00000-{TAG}-0.parquet"
DAY_S = 86_400.0


@pytest.fixture
def table(tmp_path: Path, schema: Any, write_file: Any) -> Path:
    """Three versions of month 1, of which only the last is current, and one of month 2. All files
    are old.
    """
    url = tmp_path / "table"
    for version, month in enumerate("1121"):
        base = open_delta(str(url)) if version else None
        commit(
            str(url),
            change(schema, [write_file(url, {"month": month}, f"r{version}")], f"r{version}", base),
        )
    age(url)
    return url


def change(schema: Any, files: Any, run_id: str, base: Any) -> Any:
    metadata = CommitMetadata(
        run_id=run_id,
        spec_hash="s1",
        spec_version=1,
        input_digest="i1",
        data_digest=files_digest(files),
        partitions=tuple(file.partition for file in files),
        num_files=len(files),
        num_rows=10,
        size_bytes=1,
    )
    keys = tuple(pa.field(key, pa.string()) for key in files[0].partition)
    schema = replace(schema, partition_keys=keys)
    return Change(
        base=base,
        schema=schema,
        partitions=metadata.partitions,
        files=tuple(files),
        metadata=metadata,
    )


def put(url: Path, name: str) -> Path:
    path = url / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    os.utime(path, (time.time() - 30 * DAY_S,) * 2)
    return path


def on_disk(url: Path) -> set[str]:
    return {
        str(path.relative_to(url))
        for path in url.rglob("*")
        if path.is_file() and "_delta_log" not in path.parts
    }


def live(url: Path, version: int | None = None) -> set[str]:
    return {file.path for file in open_delta(str(url), version).data_files}


def test_files_of_versions_within_the_retention_stay(table: Path) -> None:
    before = on_disk(table)
    assert vacuum(str(table)).removed == ()
    assert on_disk(table) == before
    for version in range(4):
        assert live(table, version) <= before


def test_files_replaced_before_the_retention_are_removed(table: Path) -> None:
    report = vacuum(str(table), retain_s=0, now_s=time.time() + 1)
    assert (report.oldest_version, {left.kind for left in report.removed}) == (3, {"replaced"})
    assert on_disk(table) == live(table)
    assert polars.read_delta(str(table)).height == 20
    assert open_delta(str(table)).version == 3


def test_a_version_that_is_kept_can_still_be_read(table: Path) -> None:
    vacuum(str(table), retain_s=0, keep_versions=[0], now_s=time.time() + 1)
    assert on_disk(table) == live(table) | live(table, 0)
    with pytest.raises(TableNotFoundError, match="no version 9 of"):
        vacuum(str(table), keep_versions=[9])


def test_a_dry_run_removes_nothing_and_gives_the_same_report(table: Path) -> None:
    put(table, ORPHAN)
    before = on_disk(table)
    now_s = time.time() + 1
    planned = vacuum(str(table), retain_s=0, dry_run=True, now_s=now_s)
    assert on_disk(table) == before
    assert vacuum(str(table), retain_s=0, now_s=now_s).removed == planned.removed
    assert str(planned).splitlines()[-1].startswith(f"{table}: 3 files, ")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (ORPHAN, "orphan"),
        (f"part-00000-{TAG}-7-00001.parquet", "orphan"),
        (f"month=1/.part-00000-{TAG}-0.parquet.01234567.partial", "unfinished"),
        (f"_stats/month=1/{TAG}.statistics", "statistics"),
        (f"_stats/{ORPHAN}.statistics", "statistics"),
        (f"_stats/month=1/.{TAG}.statistics.01234567.partial", "unfinished"),
        (f"_runs/{TAG}", "mark of a dead run"),
        (f"_runs/.{TAG}.01234567.partial", "unfinished"),
    ],
)
def test_leftovers_of_dead_runs_are_removed(table: Path, name: str, what: str) -> None:
    before = on_disk(table)
    path = put(table, name)
    report = vacuum(str(table))
    assert [(left.path, left.kind) for left in report.removed] == [(name, what)]
    assert not path.exists()
    assert on_disk(table) == before


@pytest.mark.parametrize(
    "name",
    [
        "month=1/theirs.parquet",
        "notes.txt",
        ".hidden.01234567.partial",
        "_groups/readme.parquet",
        "_other/x",
        "_delta_log/x.tmp",
    ],
)
def test_files_that_neither_the_log_nor_a_run_has_named_are_left_alone(
    table: Path, name: str
) -> None:
    path = put(table, name)
    assert vacuum(str(table)).removed == ()
    assert path.exists()


def test_statistics_of_retained_files_stay(table: Path) -> None:
    tags = [tag_of(path) for path in on_disk(table)]
    for tag in tags:
        put(table, f"_stats/month=1/{tag}.statistics")
    assert vacuum(str(table)).removed == ()
    removed = {left.kind for left in vacuum(str(table), retain_s=0, now_s=time.time() + 1).removed}
    assert removed == {"replaced", "statistics"}
    assert len(list((table / "_stats").rglob("*.statistics"))) == 2


def test_young_files_stay(table: Path) -> None:
    os.utime(put(table, ORPHAN), (time.time() - DAY_S + 60,) * 2)
    report = vacuum(str(table))
    assert (report.removed, report.num_young) == ((), 1)
    assert (table / ORPHAN).exists()


def test_old_files_of_a_live_run_stay_and_are_removed_once_it_is_dead(table: Path) -> None:
    put(table, ORPHAN)
    partial = put(table, f"month=1/.part-00001-{TAG}-0.parquet.01234567.partial")
    with marked(str(table), TAG) as mark:
        report = vacuum(str(table))
        assert (report.removed, report.num_running) == ((), 2)
        mark.keep()
    assert vacuum(str(table)).removed == ()
    os.utime(table / "_runs" / TAG, (time.time() - 2 * DAY_S,) * 2)
    assert {left.kind for left in vacuum(str(table)).removed} == {
        "orphan",
        "unfinished",
        "mark of a dead run",
    }
    assert not (table / ORPHAN).exists()
    assert not partial.exists()


def test_a_commit_that_lands_during_the_vacuum_keeps_its_files(
    table: Path, schema: Any, write_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run ends between the listing of files and the reading of marks: its mark is gone, and its
    files are old.
    """
    file = write_file(table, {"month": "5"}, "late")
    age(table)
    landed: list[int] = []

    def look(*arguments: Any, **options: Any) -> set[str]:
        landed.append(commit(str(table), change(schema, [file], "late", open_delta(str(table)))))
        return set()

    monkeypatch.setattr("featstore.table.vacuum.running", look)
    assert vacuum(str(table)).removed == ()
    assert landed == [4]
    assert Path(file.url).exists()


def test_a_version_whose_log_is_gone_is_not_retained(table: Path) -> None:
    DeltaTable(str(table)).create_checkpoint()
    for version in (0, 1):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    report = vacuum(str(table))
    assert report.oldest_version == 3
    assert live(table) <= on_disk(table)
    with pytest.raises(
        TableNotFoundError,
        match=r"version 2 of .* cannot be opened any more: the log before it is gone",
    ):
        open_delta(str(table), 2)


def test_the_oldest_retained_version_is_the_one_that_was_current_at_the_cutoff() -> None:
    written = [(version, float(version)) for version in (5, 4, 3)]
    assert [oldest_retained(written, cutoff_s) for cutoff_s in (9.0, 5.0, 4.5, 4.0, 2.0)] == [
        5,
        5,
        4,
        4,
        3,
    ]


def test_versions_age_by_the_stores_clock_and_not_the_writers(table: Path) -> None:
    """By its own timestamp each commit is a month old, since the clock of its host is behind."""
    for path in (table / "_delta_log").glob("*.json"):
        actions = list(map(json.loads, path.read_text().splitlines()))
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] -= int(30 * DAY_S * 1000)
        path.write_text("\n".join(map(json.dumps, actions)))
    assert vacuum(str(table)).removed == ()
    assert live(table, 0) <= on_disk(table)
    os.utime(table / "_delta_log" / f"{2:020d}.json", (time.time() - 8 * DAY_S,) * 2)
    assert vacuum(str(table)).oldest_version == 2


def test_a_vacuum_by_a_host_whose_clock_is_ten_days_ahead_keeps_what_is_retained(
    table: Path,
) -> None:
    before = on_disk(table)
    told = run_python(Path(__file__).with_name("vacuum_ahead.py"), table, 240).stdout
    assert (
        "0 files, 0 bytes removed; 0 too young, 0 of running jobs left alone; versions from 0 on "
        "can be read" in told
    )
    assert on_disk(table) == before


def test_a_suspended_run_that_resumes_during_the_vacuum_keeps_its_files(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It renews its mark after the vacuum has read the marks, and before the first removal."""
    put(table, ORPHAN)
    renewed: list[set[str]] = []
    with marked(str(table), TAG) as mark:
        os.utime(table / "_runs" / TAG, (time.time() - 2 * DAY_S,) * 2)

        def look(*arguments: Any, **options: Any) -> set[str]:
            renewed.append(running(*arguments, **options))
            mark.renew()
            return renewed[0]

        monkeypatch.setattr("featstore.table.vacuum.running", look)
        report = vacuum(str(table))
    assert TAG not in renewed[0]
    assert (report.removed, report.num_young, report.num_running) == ((), 1, 1)
    assert (table / ORPHAN).exists()


@pytest.mark.parametrize("times", [{"grace_s": 3599}, {"retain_s": -1}])
def test_invalid_times_are_refused(table: Path, times: dict[str, Any]) -> None:
    with pytest.raises(
        InputError,
        match="vacuum: expected a grace of at least 3600 s and a retention of 0 s or more",
    ):
        vacuum(str(table), **times)


def test_a_plain_directory_is_not_vacuumed(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="expected a Delta table"):
        vacuum(str(tmp_path))


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("below", ["_delta_log", "_runs", "month=1", ""])
def test_nothing_is_removed_if_a_directory_cannot_be_listed(
    table: Path, below: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each listing of the directory in turn; the next vacuum, without failures, removes."""
    put(table, "_runs/0a0a0a0a-1b1b1b1b")
    before, scandir = on_disk(table), os.scandir
    failed = list[int]()
    for failing in itertools.count():
        num_seen = itertools.count()

        def fails_once(path: Any = ".", failing: int = failing, num_seen: Any = num_seen) -> Any:
            if str(path) == str(table / below) and next(num_seen) == failing:
                failed.append(failing)
                raise OSError(number, os.strerror(number), str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", fails_once)
        now_s = time.time() + 1
        if failed[-1:] != [failing] and not _fails(table, now_s):
            break
        assert failed[-1] == failing
        assert before == on_disk(table)
    monkeypatch.undo()
    assert failed
    assert on_disk(table) == live(table)


def _fails(table: Path, now_s: float) -> bool:
    try:
        vacuum(str(table), retain_s=0, now_s=now_s)
    except StoreError as error:
        return str(table) in str(error)
    return False


@pytest.mark.parametrize("version", [1, 2, 3])
def test_nothing_is_removed_if_a_commit_is_missing_or_cannot_be_read(
    table: Path, version: int
) -> None:
    entry = table / f"_delta_log/{version:020d}.json"
    before, content = on_disk(table), entry.read_bytes()
    entry.write_bytes(content[:-40])
    with pytest.raises(FeatstoreError, match=str(table)):
        vacuum(str(table), retain_s=9e9)
    entry.unlink()
    if version < 3:
        with pytest.raises(FeatstoreError, match=str(table)):
            vacuum(str(table), retain_s=9e9)
    assert on_disk(table) == before


def test_nothing_is_removed_if_commits_do_not_make_the_newest_version(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit whose lines a store gives in part, each whole."""
    before = on_disk(table)

    def without_adds(url: str, version: int) -> list[dict[str, Any]]:
        return [a for a in read_actions(url, version) if version != 3 or "add" not in a]

    monkeypatch.setattr(vacuum_module, "read_actions", without_adds)
    with pytest.raises(DataFileError, match=r"cannot tell which files .* nothing was removed"):
        vacuum(str(table), retain_s=9e9)
    assert on_disk(table) == before


def test_what_the_client_leaves_in_the_log_is_removed(table: Path) -> None:
    put(table, f"_delta_log/{9:020d}.json#1")
    put(table, "_delta_log/_commit_0b1c.json.tmp")
    put(table, "_delta_log/other.tmp")
    report = vacuum(str(table))
    assert {left.path for left in report.removed} == {
        f"_delta_log/{9:020d}.json#1",
        "_delta_log/_commit_0b1c.json.tmp",
    }
    assert (table / "_delta_log/other.tmp").exists()


def test_links_into_another_table_are_not_followed(table: Path, tmp_path: Path) -> None:
    """Neither a file nor a directory of the other table is removed through a link."""
    other = tmp_path / "other"
    for name in (ORPHAN, "month=2/part-00000-2c2c2c2c-3d3d3d3d-0.parquet"):
        put(other, name)
    (table / "month=9").symlink_to(other / "month=1")
    (table / ORPHAN).symlink_to(other / "month=2/part-00000-2c2c2c2c-3d3d3d3d-0.parquet")
    os.utime(table / ORPHAN, (time.time() - 30 * DAY_S,) * 2, follow_symlinks=False)
    vacuum(str(table), retain_s=0, now_s=time.time() + 1)
    assert len(on_disk(other)) == 2
    assert (table / ORPHAN).is_symlink()
