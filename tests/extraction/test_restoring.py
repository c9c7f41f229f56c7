"""Going back to an earlier version is a version as any other, for readers and for what is written
next; a version that a vacuum has taken files from is refused.
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable

import featstore
from featstore import api
from featstore.base.errors import CommitConflictError, InputError, StoreError, TableNotFoundError
from featstore.explore.description import table_history
from featstore.extraction import restoring
from featstore.extraction.days import extract_days
from featstore.extraction.deletion import delete_rows
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.restoring import restore
from featstore.extraction.rewriting import compact
from featstore.files.listings import find_file
from featstore.table import delta
from featstore.table import vacuum as vacuum_module
from featstore.table.delta import history
from featstore.table.open import open_snapshot
from featstore.table.vacuum import vacuum
from tests.extraction.test_deletion import MORE, SLOTS, spec_of, write_raw
from tests.interposed import followed, preceded
from tests.old_files import age

DAYS = "2026-11-01..2026-11-02"


@pytest.fixture
def job(tmp_path: Path) -> ExtractJob:
    """Two days of 20 rows, versions 0 and 1, by a good spec."""
    for day in ("01", "02"):
        write_raw(tmp_path / "raw" / f"dt=2026-11-{day}", (f"u{i % 7}" for i in range(20)))
    job = ExtractJob(
        spec=spec_of(SLOTS),
        input_url=str(tmp_path / "raw" / "dt={dt}"),
        table_url=str(tmp_path / "table"),
        run_id="good",
    )
    extract_days(job, DAYS)
    return job


def badly(job: ExtractJob) -> ExtractJob:
    """Versions 2 and 3, which replace both days."""
    wider = [*SLOTS, {"slot": 110, "name": "price", "op": "identity", "of": "price"}]
    bad = replace(job, spec=spec_of(wider), run_id="bad")
    assert extract_days(bad, DAYS).num_extracted == 2
    return bad


def group(
    job: ExtractJob, day: str, run_id: str, slots: list[dict[str, Any]] = MORE, **how: Any
) -> int:
    of_day = replace(
        job,
        spec=spec_of([*SLOTS, *slots]),
        input_url=job.input_url.replace("{dt}", day),
        partition={"dt": day},
        run_id=run_id,
    )
    return extract_group(GroupJob(job=of_day, name="more"), **how).version


def rows(url: str, version: int | None = None) -> Any:
    return featstore.open_table(url, version=version).to_arrow()


def by_featstore(url: str, version: int) -> None:
    assert restore(url, version).committed


def by_delta(url: str, version: int) -> None:
    DeltaTable(url).restore(version)


@pytest.mark.parametrize("how", [by_featstore, by_delta])
def test_a_version_that_is_back_is_what_it_was(
    job: ExtractJob, how: Callable[[str, int], None]
) -> None:
    url, good = job.table_url, featstore.open_table(job.table_url)
    inspected, expected = good.inspect(), rows(url)
    bad = badly(job)
    how(url, 1)
    back = featstore.open_table(url)
    assert back.version == 4
    assert rows(url).equals(expected)
    assert rows(url, 3).num_columns > expected.num_columns
    now = back.inspect()
    assert now == replace(inspected, version=4, num_commits=5)
    assert now.spec_hash == job.spec.hash
    assert back.profile().to_polars().equals(good.profile().to_polars())
    assert "back to version 1" in str(table_history(url))
    # The next night knows the days to be those of the good spec, and those of the bad one stale.
    assert extract_days(replace(job, run_id="next"), DAYS).num_extracted == 0
    plan = extract_days(replace(bad, run_id="again"), DAYS, dry_run=True)
    assert [str(day.reason) for day in plan.days] == ["stale spec", "stale spec"]


def test_a_version_between_two_restores_has_its_own_spec(job: ExtractJob) -> None:
    url, bad = job.table_url, badly(job)
    restore(url, 1)
    restore(url, 3)
    restore(url, 4)
    hashes = [open_snapshot(url, version).spec_hash for version in range(7)]
    good = job.spec.hash
    assert hashes == [good, good, bad.spec.hash, bad.spec.hash, good, bad.spec.hash, good]


def test_nothing_is_done_where_the_table_is_as_it_was(job: ExtractJob) -> None:
    badly(job)
    dry = restore(job.table_url, 1, dry_run=True)
    assert (dry.committed, dry.num_files_back, dry.num_files_left) == (False, 2, 2)
    assert "would restore 40 rows as of version 1: 2 data files are back, 2 are" in str(dry)
    first = api.restore(job.table_url, 1)
    again = api.restore(job.table_url, 1)
    assert (first.version, again.version, again.committed) == (4, 4, False)
    assert "committed version 4" in str(first)
    assert "nothing to do: version 4" in str(again)


@pytest.mark.parametrize("how", [by_featstore, by_delta])
def test_slots_that_are_extracted_into_a_group_next_are_added_to_what_is_back(
    job: ExtractJob, how: Callable[[str, int], None]
) -> None:
    url = job.table_url
    group(job, "2026-11-01", "of day 1")  # version 2
    expected = rows(url)
    wrong = [{**MORE[0], "op": "identity"}, MORE[1]]
    group(job, "2026-11-01", "bad", wrong)
    group(job, "2026-11-02", "bad 2", wrong)
    bad = rows(url)
    how(url, 2)
    assert rows(url).equals(expected)
    assert open_snapshot(url).group_versions == {"more": 0}
    group(job, "2026-11-02", "of day 2")
    found = rows(url)
    assert found["price_log"].null_count == 0
    assert found.slice(0, 20).equals(expected.slice(0, 20))
    how(url, 3)
    group(job, "2026-11-02", "of day 2 again")
    found = rows(url)
    assert found.slice(0, 20).equals(bad.slice(0, 20))
    assert not found.slice(20).equals(bad.slice(20))
    how(url, 1)
    how(url, 0)
    assert not open_snapshot(url).group_versions
    how(url, 1)
    group(job, "2026-11-02", "of day 2 alone")
    assert rows(url)["price_log"].null_count == 20


def test_a_group_that_goes_back_keeps_what_a_dead_run_has_added_since(job: ExtractJob) -> None:
    url = job.table_url
    group(job, "2026-11-01", "of day 1")  # version 2
    extract_days(replace(job, spec=spec_of([SLOTS[0]]), run_id="bad"), "2026-11-02")
    restore(url, 2)
    dead = Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        group(job, "2026-11-02", "dead", publish=dead)
    group(job, "2026-11-02", "of day 2")
    assert rows(url)["price_log"].null_count == 0
    assert [each.operation for each in history(f"{url}/_groups/more")] == [
        "WRITE",
        "CREATE TABLE",
    ]


def back_to_2(url: str) -> Any:
    """`delta.commit`, after whose first commit another writer goes back to version 2."""
    return followed(delta.commit, cache(lambda: restore(url, 2)))


@pytest.mark.parametrize("when", ["after the group's commit", "just before the table's"])
def test_a_group_that_was_extracted_while_the_table_went_back_is_a_conflict(
    job: ExtractJob, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, publishing, how = job.table_url, delta.publish_groups, {}
    group(job, "2026-11-01", "of day 1")  # version 2
    expected = rows(url)
    group(job, "2026-11-01", "bad", [{**MORE[0], "op": "identity"}, MORE[1]])
    if when == "after the group's commit":
        how["commit"] = back_to_2(url)
    else:
        back = cache(lambda: restore(url, 2))
        monkeypatch.setattr(delta, "publish_groups", lambda by: preceded(publishing(by), back))
    with pytest.raises(CommitConflictError, match="took the table back to an earlier version"):
        group(job, "2026-11-02", "of day 2", **how)
    assert rows(url).equals(expected)
    group(job, "2026-11-02", "of day 2")
    found = rows(url)
    assert found["price_log"].null_count == 0
    assert found.slice(0, 20).equals(expected.slice(0, 20))


def test_a_compaction_drops_no_groups_of_a_version_that_came_back_meanwhile(
    job: ExtractJob,
) -> None:
    url = job.table_url
    group(job, "2026-11-01", "of day 1")  # version 2
    expected = rows(url)
    with pytest.raises(CommitConflictError, match="took the table back to an earlier version"):
        compact(url, commit=back_to_2(url))
    assert rows(url).equals(expected)
    assert compact(url).groups == ("more",)
    assert rows(url).equals(expected)


def test_rows_that_come_back_while_others_are_deleted_are_deleted_too(job: ExtractJob) -> None:
    url = job.table_url
    DeltaTable(url).delete("dt = '2026-11-02'")
    late = preceded(delta.commit, lambda: restore(url, 1))
    with pytest.raises(CommitConflictError, match="took the table back to an earlier version"):
        delete_rows(url, "user = 'u1'", commit=late)
    assert delete_rows(url, "user = 'u1'").num_rows == 6
    assert "u1" not in rows(url)["user"].to_pylist()


@pytest.mark.parametrize("when", ["before its look", "after it"])
def test_a_day_extracted_while_the_table_goes_back_is_a_conflict_and_leaves_no_file(
    job: ExtractJob, when: str
) -> None:
    badly(job)
    day = "2026-11-03"
    back = cache(lambda: restore(job.table_url, 1))
    commit: Any = {
        "before its look": preceded(delta.commit, back),
        "after it": partial(delta.commit, publish=preceded(delta.publish_once, back)),
    }[when]
    write_raw(Path(job.input_url.format(dt=day)), ["u1"])
    run = replace(
        job, input_url=job.input_url.format(dt=day), partition={"dt": day}, run_id="day 3"
    )
    with pytest.raises(CommitConflictError, match=r"now version 4.*run it again"):
        extract_files(run, commit=commit)
    assert not [*Path(job.table_url).glob(f"dt={day}/*")]
    assert extract_files(run).num_rows == 1
    assert rows(job.table_url).num_rows == 41


def test_of_two_restores_at_once_one_wins_and_the_other_is_told(
    job: ExtractJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    badly(job)
    together = threading.Barrier(2)
    monkeypatch.setattr(delta, "restore", preceded(delta.restore, lambda: together.wait(60)))

    def back(version: int) -> int | None:
        with contextlib.suppress(CommitConflictError):
            return restore(job.table_url, version).restored
        return None

    with ThreadPoolExecutor(2) as threads:
        won = [*threads.map(back, (0, 1))]
    assert won.count(None) == 1
    assert rows(job.table_url).equals(rows(job.table_url, 0 if won[1] is None else 1))
    assert open_snapshot(job.table_url).version == 4
    assert not [*Path(job.table_url, "_runs").iterdir()]


def vacuum_all(url: str) -> set[str]:
    """What a vacuum removes of versions that are not the newest one."""
    age(url, but=["_runs"])
    return {left.kind for left in vacuum(url, retain_s=0).removed}


def test_a_vacuum_that_begins_while_a_version_comes_back_leaves_its_files(
    job: ExtractJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = job.table_url
    group(job, "2026-11-01", "of day 1")  # version 2
    expected, profile = rows(url), featstore.open_table(url).profile().to_polars()
    badly(job)
    removed: list[set[str]] = []
    late = preceded(delta.restore, lambda: removed.append(vacuum_all(url)))
    monkeypatch.setattr(delta, "restore", late)
    restore(url, 2)
    assert removed == [set()]
    assert rows(url).equals(expected)
    assert featstore.open_table(url).profile().to_polars().equals(profile)
    assert vacuum_all(url) == {"replaced", "statistics"}
    assert rows(url).equals(expected)


def test_while_a_vacuum_is_at_work_nothing_is_restored(
    job: ExtractJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = job.table_url
    badly(job)
    found: list[str] = []

    def back() -> None:
        with pytest.raises(CommitConflictError, match="no vacuum at work") as error:
            restore(url, 1)
        found.append(str(error.value))
        assert restore(url, 1, dry_run=True).num_files_back == 2

    look = preceded(vacuum_module.find_leftovers, back)
    monkeypatch.setattr(vacuum_module, "find_leftovers", look)
    assert "replaced" in vacuum_all(url)
    assert re.search(r"found the mark _runs/vacuum-[0-9a-f]{8}; nothing is restored", found[0])
    with pytest.raises(InputError, match="found 2 gone"):
        restore(url, 1)
    assert open_snapshot(url).version == 3
    assert not [*Path(url, "_runs").iterdir()]


def test_the_mark_of_a_vacuum_that_was_killed_counts_for_an_hour(job: ExtractJob) -> None:
    badly(job)
    mark = Path(job.table_url, "_runs", "vacuum-0a0a0a0a")
    mark.write_text('{"format": 1}')
    os.utime(mark, (time.time() - 3500,) * 2)
    with pytest.raises(CommitConflictError, match="if it was killed, in an hour"):
        restore(job.table_url, 1)
    os.utime(mark, (time.time() - 3700,) * 2)
    assert restore(job.table_url, 1).committed


def test_a_version_without_its_files_is_refused_by_name(job: ExtractJob) -> None:
    url = job.table_url
    gone = open_snapshot(url, 1).data_files.paths
    badly(job)
    age(url)
    vacuum(url, retain_s=0)
    with pytest.raises(
        InputError, match=r"all 2 files of version 1, found 2 gone, such as dt="
    ) as e:
        restore(url, 1)
    assert any(path in str(e.value) for path in gone)
    with pytest.raises(TableNotFoundError, match="no version 9"):
        restore(url, 9)
    with pytest.raises(TableNotFoundError, match="no table at"):
        restore(f"{url}s", 0)
    assert open_snapshot(url).version == 3


def test_a_commit_in_between_is_a_conflict(
    job: ExtractJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    badly(job)
    act = DeltaTable.restore

    def late(table: DeltaTable, *args: Any, **options: Any) -> Any:
        DeltaTable(job.table_url).delete("dt = '2026-11-02'")
        return act(table, *args, **options)

    monkeypatch.setattr(DeltaTable, "restore", late)
    with pytest.raises(CommitConflictError, match="nothing is restored: run it again"):
        restore(job.table_url, 1)
    assert open_snapshot(job.table_url).version == 4


def test_a_commit_while_files_are_looked_up_is_a_conflict(
    job: ExtractJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    badly(job)
    look = find_file

    def late(url: str) -> Any:
        if open_snapshot(job.table_url).version == 3:
            DeltaTable(job.table_url).delete("dt = '2026-11-02'")
        return look(url)

    monkeypatch.setattr(restoring, "_NUM_LOOKING_THREADS", 1)
    monkeypatch.setattr(restoring, "find_file", late)
    with pytest.raises(CommitConflictError, match="nothing is restored: run it again"):
        restore(job.table_url, 1)
    assert open_snapshot(job.table_url).version == 4


def test_a_run_that_was_undone_may_be_made_again(job: ExtractJob) -> None:
    day = "2026-11-03"
    write_raw(Path(job.input_url.format(dt=day)), ["u1"])
    run = replace(
        job, input_url=job.input_url.format(dt=day), partition={"dt": day}, run_id="day 3"
    )
    extract_files(run)
    expected = rows(job.table_url)
    restore(job.table_url, 1)
    assert extract_files(run).committed
    assert rows(job.table_url).equals(expected)
    assert not extract_files(run).committed


def test_deletions_that_are_undone_are_told(job: ExtractJob) -> None:
    url = job.table_url
    delete_rows(url, "user = 'u1'")  # version 2
    DeltaTable(url).delete("dt = '2026-11-02'")
    last = open_snapshot(url).version or 0
    assert restore(url, last).deletions == ()
    dry = restore(url, 1, dry_run=True)
    assert dry.deletions == (2, last)
    assert f"rows that version 2, {last} had deleted are back: delete them again" in str(dry)
    assert restore(url, 2).deletions == (last,)
    assert restore(url, 1).deletions == (2,)


def test_a_lost_reply_is_a_commit(job: ExtractJob, monkeypatch: pytest.MonkeyPatch) -> None:
    badly(job)
    act = DeltaTable.restore

    def lost(table: DeltaTable, *args: Any, **options: Any) -> Any:
        act(table, *args, **options)
        raise OSError("connection reset")

    monkeypatch.setattr(DeltaTable, "restore", lost)
    assert restore(job.table_url, 1).version == 4
    monkeypatch.setattr(DeltaTable, "restore", lambda *_, **__: lost_before())
    with pytest.raises(StoreError, match="no route"):
        restore(job.table_url, 3)
    # The commit may still land, so a vacuum is to keep the version for a while.
    [mark] = Path(job.table_url, "_runs").iterdir()
    assert re.fullmatch("restore-3-[0-9a-f]{8}", mark.name)


def lost_before() -> Any:
    raise OSError("no route")


def test_a_loader_that_follows_takes_it_as_any_version(job: ExtractJob) -> None:
    badly(job)
    restore(job.table_url, 1)
    follow = {"until": "dt = '2026-11-02'", "every_s": 0.1}
    with featstore.FeatureLoader(
        job.table_url, slots=["tag_ids"], batch_size=8, follow=follow
    ) as loader:
        assert sum(batch.num_rows for batch in loader) == 40
