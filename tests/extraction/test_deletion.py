"""Rows that are deleted are in no file that the newest version reads, and the others stay as they
were.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from featstore import api
from featstore.base.errors import (
    CommitConflictError,
    DataFileError,
    InputError,
    SelectionError,
    StoreError,
    TableNotFoundError,
)
from featstore.explore.table import Table, open_table
from featstore.extraction import deletion, rewriting
from featstore.extraction.deletion import delete_rows
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, extract_files
from featstore.extraction.rewriting import compact
from featstore.spec.parse import load_spec
from featstore.statistics.values_file import read_values
from featstore.table import delta
from featstore.table.open import open_snapshot
from featstore.table.vacuum import vacuum
from tests.interposed import preceded
from tests.old_files import age
from tests.parquet_files import put_parquet

DAY_S = 86_400.0
INPUTS = {"user": "string", "tags": "list<string>", "price": "double", "clicked": "long"}
SLOTS = [
    {"slot": 101, "name": "user_id", "op": "hash", "of": "user"},
    {"slot": 102, "name": "tag_ids", "op": "hash", "of": "tags", "max_len": 3},
]
MORE = [
    {"slot": 103, "name": "price_log", "op": "log1p", "of": "price"},
    {"slot": 104, "name": "user_x_tags", "op": "cross", "of": ["user", "tags"]},
]


def spec_of(slots: list[dict[str, Any]]) -> Any:
    output = {"rows_per_row_group": 100, "rows_per_file": 250}
    return load_spec(
        {
            "spec": 1,
            "inputs": INPUTS,
            "labels": {"click": "clicked"},
            "keep": ["user"],
            "slots": slots,
            "output": output,
        }
    )


def write_raw(path: Path, users: Iterable[str | None]) -> Path:
    users = list(users)
    numbers = range(len(users))
    columns = {
        "user": pa.array(users, pa.string()),
        "tags": pa.array([[f"t{i % 5}", f"of {users[i]}"] for i in numbers], pa.list_(pa.string())),
        "price": [i / 3 for i in numbers],
        "clicked": [i % 2 for i in numbers],
    }
    put_parquet(path / "a.parquet", columns, row_group_size=200)
    return path


@pytest.fixture
def job(tmp_path: Path) -> ExtractJob:
    """Day 1 holds 600 rows of 40 users in three files, day 2 300 rows of 20 of them."""
    for day, num_users, num_rows in (("1", 40, 600), ("2", 20, 300)):
        # In blocks, so that a user's rows are in one file.
        users = (f"u{i * num_users // num_rows}" for i in range(num_rows))
        write_raw(tmp_path / "raw" / f"day={day}", users)
    job = ExtractJob(
        spec=spec_of(SLOTS),
        input_url=str(tmp_path / "raw" / "day=1"),
        table_url=str(tmp_path / "table"),
        partition={"day": "1"},
        run_id="day 1",
    )
    extract_files(job)
    extract_files(second(job))
    return job


def second(job: ExtractJob) -> ExtractJob:
    url = job.input_url.replace("day=1", "day=2")
    return replace(job, input_url=url, partition={"day": "2"}, run_id=f"{job.run_id} of day 2")


def grouped(job: ExtractJob) -> None:
    wider = replace(job, spec=spec_of([*SLOTS, *MORE]), run_id="group")
    extract_group(GroupJob(job=wider, name="more"))


def paths(job: ExtractJob, day: str) -> list[str]:
    files = open_snapshot(job.table_url).in_partitions([{"day": day}])
    return [file.path for file in files]


def texts(table: Table, day: str) -> dict[str, dict[str, int]]:
    """The counts of the day's texts, by slot."""
    url = Path(table.snapshot.url)
    tags = {path.split("-", 2)[2][:17] for path in (f.path for f in table.snapshot.data_files)}
    found: dict[str, dict[str, int]] = {}
    for path in (url / "_stats" / f"day={day}").glob("*.values"):
        if path.name.partition(".")[0] in tags:
            for entry in read_values(str(url), str(path.relative_to(url))).table.to_pylist():
                found.setdefault(entry["slot"], {})[entry["text"]] = entry["count"]
    return found


def holding(job: ExtractJob, text: str) -> set[str]:
    """The suffixes of the table's Parquet files with this text in a value."""
    found = set()
    for path in Path(job.table_url).rglob("*.*"):
        if path.suffix in (".parquet", ".values", ".statistics") and path.is_file():
            with pq.ParquetFile(path) as file:
                if text in str(file.read().to_pylist()):
                    found.add(path.suffix)
    return found


def test_rows_of_a_person_are_deleted_and_all_others_stay_in_order(job: ExtractJob) -> None:
    before = open_table(job.table_url)
    report = delete_rows(job.table_url, "user = 'u3' or user = 'u30'")
    after = open_table(job.table_url)
    assert (report.num_rows, report.num_files, report.num_partitions) == (45, 3, 2)
    assert (report.version, report.rows_left) == (after.version, 855)
    kept = before.to_arrow(where="not (user = 'u3' or user = 'u30')")
    assert after.to_arrow().equals(kept)
    assert before.to_arrow().num_rows == 900
    assert "855 rows left" in str(report)


def test_a_partition_without_such_rows_is_not_touched(job: ExtractJob) -> None:
    before = paths(job, "1"), paths(job, "2")
    report = delete_rows(job.table_url, "user in ('u30', 'u31')")
    assert (report.num_rows, report.num_partitions) == (30, 1)
    assert paths(job, "2") == before[1]
    assert set(paths(job, "1")).isdisjoint(before[0])


def test_files_without_such_rows_are_copied_byte_for_byte(job: ExtractJob) -> None:
    before = [Path(job.table_url, path).read_bytes() for path in paths(job, "1")]
    report = delete_rows(job.table_url, "user = 'u39'")
    after = [Path(job.table_url, path).read_bytes() for path in paths(job, "1")]
    assert (report.num_files, len(after)) == (1, 3)
    assert after[:2] == before[:2]
    assert after[2] != before[2]


def test_a_file_whose_rows_all_match_is_left_out_and_an_empty_day_too(job: ExtractJob) -> None:
    users = [f"u{i}" for i in range(25)]
    listed = ", ".join(f"'{user}'" for user in users)
    report = delete_rows(job.table_url, f"user in ({listed})")
    assert (report.num_rows, report.rows_left) == (375 + 300, 225)
    table = open_table(job.table_url)
    assert [dict(partition) for partition in table.partitions] == [{"day": "1"}]
    assert len(table.snapshot.data_files) == 2
    assert set(table.to_arrow().column("user").to_pylist()) == {f"u{i}" for i in range(25, 40)}


def test_a_whole_partition_is_deleted_by_its_key_without_reading_it(job: ExtractJob) -> None:
    for path in paths(job, "2"):
        Path(job.table_url, path).write_bytes(b"unreadable")
    assert delete_rows(job.table_url, "day = '2'").num_rows == 300
    assert [dict(p) for p in open_table(job.table_url).partitions] == [{"day": "1"}]


def test_all_rows_can_be_deleted_and_a_day_be_extracted_again(job: ExtractJob) -> None:
    assert delete_rows(job.table_url, "click in (0, 1)").rows_left == 0
    assert open_table(job.table_url).to_arrow().num_rows == 0
    extract_files(replace(job, run_id="again", spec=spec_of([*SLOTS, *MORE])))
    assert open_table(job.table_url).to_arrow().num_rows == 600


def test_a_dry_run_counts_and_changes_nothing(job: ExtractJob) -> None:
    before = open_table(job.table_url).version
    found = sorted(Path(job.table_url).rglob("*"))
    report = delete_rows(job.table_url, "user = 'u3'", dry_run=True)
    assert (report.num_rows, report.num_files, report.rows_left) == (30, 2, 870)
    assert "would delete 30 rows of 2 data files in 2 partitions" in str(report)
    assert (open_table(job.table_url).version, sorted(Path(job.table_url).rglob("*"))) == (
        before,
        found,
    )


def test_nothing_is_committed_where_no_row_matches(job: ExtractJob) -> None:
    before = open_table(job.table_url).version
    report = delete_rows(job.table_url, "user = 'nobody'")
    assert f"nothing to do: no row of version {before}" in str(report)
    assert open_table(job.table_url).version == before


def test_a_row_for_which_the_predicate_is_null_stays(job: ExtractJob, tmp_path: Path) -> None:
    write_raw(tmp_path / "raw" / "day=1", [None, "u1", None, "u2"])
    extract_files(replace(job, run_id="with nulls"))
    assert delete_rows(job.table_url, "user != 'u1' and day = '1'").num_rows == 1
    left = open_table(job.table_url).to_arrow(where="day = '1'").column("user").to_pylist()
    assert left == [None, "u1", None]
    assert delete_rows(job.table_url, "user is null").num_rows == 2


def test_slot_groups_are_folded_into_the_days_that_are_rewritten(job: ExtractJob) -> None:
    grouped(job)
    grouped(second(replace(job, run_id="g")))
    before = open_table(job.table_url)
    delete_rows(job.table_url, "user = 'u30' or price_log is null")
    after = open_table(job.table_url)
    expected = before.to_arrow(where="user != 'u30'")
    assert after.to_arrow().select(expected.column_names).equals(expected)
    files = (
        after.snapshot.in_partitions([{"day": "1"}]),
        after.snapshot.in_partitions([{"day": "2"}]),
    )
    assert [any(file.groups for file in day) for day in files] == [False, True]
    assert compact(job.table_url).groups == ("more",)
    folded = open_table(job.table_url).to_arrow()
    assert folded.select(expected.column_names).equals(expected)


def test_statistics_and_texts_are_those_of_a_table_that_never_had_the_rows(
    job: ExtractJob, tmp_path: Path
) -> None:
    assert texts(open_table(job.table_url), "1")["user_id"]["u30"] == 15
    delete_rows(job.table_url, "user in ('u30', 'u31')")
    raw = pq.read_table(Path(job.input_url, "a.parquet"))
    left = raw.filter(pc.invert(pc.is_in(raw["user"], pa.array(["u30", "u31"]))))
    put_parquet(tmp_path / "left" / "a.parquet", left, row_group_size=200)
    never = replace(job, input_url=str(tmp_path / "left"), table_url=str(tmp_path / "never"))
    for made in (never, second(replace(never, input_url=job.input_url))):
        extract_files(made)
    found, expected = open_table(job.table_url), open_table(never.table_url)
    assert found.to_arrow().equals(expected.to_arrow())
    assert texts(found, "1") == texts(expected, "1")
    profiles = [table.profile(stored=True) for table in (found, expected)]
    only_extraction_knew = 5
    assert "stored" in profiles[0].source
    tables = [profile.table for profile in profiles]
    # Merged sketches of several units have larger errors than one of all rows.
    names = [n for n in tables[0].column_names[:-only_extraction_knew] if "error" not in n]
    for name in names:
        assert tables[0][name].to_pylist() == tables[1][name].to_pylist(), name


def test_the_bytes_are_gone_after_a_vacuum(job: ExtractJob, tmp_path: Path) -> None:
    grouped(job)
    assert holding(job, "u30") == {".parquet", ".values"}
    delete_rows(job.table_url, "user = 'u30'")
    age(Path(job.table_url), 3 * DAY_S)
    vacuum(job.table_url, retain_s=0)
    assert holding(job, "u30") == set()
    assert open_table(job.table_url).to_arrow(where="user = 'u30'").num_rows == 0


@pytest.mark.parametrize("are_folded", [False, True])
def test_a_run_with_the_slots_of_a_group_brings_nothing_back(
    job: ExtractJob, are_folded: bool
) -> None:
    wider = replace(job, spec=spec_of([*SLOTS, *MORE]), run_id="wider")
    grouped(job)
    if are_folded:
        compact(job.table_url)
    delete_rows(job.table_url, "user = 'u30'")
    assert not extract_files(wider).committed
    assert extract_files(second(wider)).committed
    found = open_table(job.table_url).to_arrow(where="user = 'u30'")
    assert found.num_rows == 0


def test_an_equal_run_brings_nothing_back_and_a_changed_one_does(job: ExtractJob) -> None:
    delete_rows(job.table_url, "user = 'u30'")
    assert not extract_files(replace(job, run_id="equal")).committed
    assert open_table(job.table_url).to_arrow(where="user = 'u30'").num_rows == 0
    wider = replace(job, run_id="wider", spec=spec_of([*SLOTS, *MORE]))
    assert extract_files(wider).committed
    assert open_table(job.table_url).to_arrow(where="user = 'u30'").num_rows == 15


def test_deletions_at_once_from_days_of_one_run_bring_nothing_back(job: ExtractJob) -> None:
    both = replace(
        job,
        input_url=job.input_url.removesuffix("/day=1"),
        table_url=f"{job.table_url} of both",
        partition={},
        partition_from_path=["day"],
    )
    extract_files(both)
    other = preceded(delta.commit, lambda: delete_rows(both.table_url, "user = 'u3' and day = '2'"))
    with pytest.raises(CommitConflictError, match="another writer committed day=1, day=2"):
        delete_rows(both.table_url, "user = 'u30'", commit=other)
    delete_rows(both.table_url, "user = 'u30'")
    assert not extract_files(replace(both, run_id="equal")).committed
    assert open_table(both.table_url).to_arrow().num_rows == 900 - 15 - 15


def test_a_group_that_was_folded_wholly_leaves_the_table_and_its_slots_stay(
    job: ExtractJob,
) -> None:
    grouped(job)
    before = open_table(job.table_url).snapshot
    report = delete_rows(job.table_url, "user = 'u3'")
    after = open_table(job.table_url).snapshot
    assert [group.name for group in before.groups] == ["more"]
    assert after.groups == ()
    assert (report.version, after.version) == ((before.version or 0) + 1, report.version + 1)
    assert [slot.name for slot in after.schema] == [slot.name for slot in before.schema]
    assert not compact(job.table_url).groups


def test_a_deletion_that_dies_before_it_drops_an_emptied_group_is_finished_by_compaction(
    job: ExtractJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    grouped(job)
    expected = open_table(job.table_url).to_arrow(where="user <> 'u3'")
    with monkeypatch.context() as dying:
        dying.setattr(deletion, "drop_folded", die)
        with pytest.raises(KeyboardInterrupt):
            delete_rows(job.table_url, "user = 'u3'")
    left = open_table(job.table_url)
    assert [group.name for group in left.snapshot.groups] == ["more"]
    assert left.to_arrow().equals(expected)
    compact(job.table_url)
    after = open_table(job.table_url)
    assert after.snapshot.groups == ()
    assert after.to_arrow().equals(expected)


def test_a_deletion_whose_commit_may_have_landed_says_so_and_keeps_its_files(
    job: ExtractJob,
) -> None:
    def lose_the_reply() -> NoReturn:
        raise StoreError("no answer")

    before = set(Path(job.table_url).rglob("part-*.parquet"))
    with pytest.raises(StoreError, match="no answer") as raised:
        delete_rows(job.table_url, "user = 'u3'", commit=preceded(delta.commit, lose_the_reply))
    (note,) = raised.value.__notes__
    assert "It is not known whether the deletion was committed, so its " in note
    assert note.endswith("Run it again: it deletes what rows still match.")
    assert len(set(Path(job.table_url).rglob("part-*.parquet")) - before) > 0
    assert len(list(Path(job.table_url, "_runs").iterdir())) == 1
    assert delete_rows(job.table_url, "user = 'u3'").num_rows > 0


def test_a_deletion_that_fails_before_its_commit_leaves_no_file_whatever_the_error(
    job: ExtractJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError("no statistics")

    before = set(Path(job.table_url).rglob("part-*"))
    monkeypatch.setattr(deletion, "store_remains", fail)
    with pytest.raises(OSError, match="no statistics"):
        delete_rows(job.table_url, "user = 'u3'")
    assert set(Path(job.table_url).rglob("part-*")) == before


def test_a_deletion_that_cannot_drop_a_group_says_that_rows_are_deleted(
    job: ExtractJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise StoreError("no answer")

    grouped(job)
    monkeypatch.setattr(rewriting, "drop_groups", fail)
    with pytest.raises(StoreError) as raised:
        delete_rows(job.table_url, "user = 'u3'")
    version = open_snapshot(job.table_url).version
    assert raised.value.__notes__ == [
        f"The rows are committed (version {version}), with those of more. What may be left is to "
        f"drop these slot groups, which nothing reads any more: `featstore table compact` does it."
    ]


def test_a_group_bound_by_raw_files_is_refused_where_rows_were_deleted(job: ExtractJob) -> None:
    delete_rows(job.table_url, "user = 'u30'")
    with pytest.raises(InputError, match="expected its 185 rows, found 200 in the slot group"):
        grouped(job)
    assert open_table(job.table_url).snapshot.groups == ()


def test_a_day_that_was_written_meanwhile_is_a_conflict_and_stays(job: ExtractJob) -> None:
    other = replace(job, run_id="other", spec=spec_of([*SLOTS, *MORE]))
    commit = preceded(delta.commit, lambda: extract_files(other))
    with pytest.raises(CommitConflictError, match="another writer committed day=1"):
        delete_rows(job.table_url, "user = 'u30'", commit=commit)
    assert open_table(job.table_url).to_arrow(where="user = 'u30'").num_rows == 15
    left = {
        str(path.relative_to(job.table_url)) for path in Path(job.table_url).rglob("part-*.parquet")
    }
    assert len(left) == 3 + 2 + 3  # both extractions of day 1, and day 2; nothing of the deletion


def test_a_damaged_file_is_told_and_the_table_unchanged(job: ExtractJob) -> None:
    version = open_table(job.table_url).version
    path = Path(job.table_url, paths(job, "1")[0])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(DataFileError, match=path.name):
        delete_rows(job.table_url, "user = 'u30'")
    assert open_table(job.table_url).version == version


def test_a_file_that_is_copied_is_checked(job: ExtractJob) -> None:
    path = Path(job.table_url, paths(job, "1")[0])
    data = bytearray(path.read_bytes())
    # In the first page of the first column chunk, which the predicate does not read.
    data[40] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataFileError, match="the file is damaged, and nothing is committed"):
        delete_rows(job.table_url, "click = 5 or (user = 'u39')")


def test_partitions_of_several_keys_are_replaced_with_those_that_one_commit_selects(
    tmp_path: Path,
) -> None:
    places = [("1", "a"), ("1", "b"), ("2", "a"), ("2", "b"), ("3", "b")]
    job = ExtractJob(
        spec=spec_of(SLOTS),
        input_url=str(write_raw(tmp_path / "raw", [f"u{i % 4}" for i in range(20)])),
        table_url=str(tmp_path / "table"),
    )
    for day, country in places:
        run_id = f"{day} {country}"
        partition = {"day": day, "country": country}
        extract_files(replace(job, run_id=run_id, partition=partition))
    untouched = [f.path for f in open_snapshot(job.table_url).data_files if "day=3" in f.path]
    where = "(day = '1' and country = 'a' and user = 'u1') or (day = '2' and country = 'b' and user = 'u2')"
    report = delete_rows(job.table_url, where)
    assert (report.num_rows, report.num_partitions) == (10, 2)
    after = open_table(job.table_url)
    counts = {
        (p["day"], p["country"]): after.to_arrow(
            where=f"day = '{p['day']}' and country = '{p['country']}'"
        ).num_rows
        for p in after.partitions
    }
    assert counts == {
        ("1", "a"): 15,
        ("1", "b"): 20,
        ("2", "a"): 20,
        ("2", "b"): 15,
        ("3", "b"): 20,
    }
    assert set(untouched) <= {file.path for file in after.snapshot.data_files}


def test_a_partition_that_is_added_between_the_wanted_ones_is_a_conflict(tmp_path: Path) -> None:
    job = ExtractJob(
        spec=spec_of(SLOTS),
        input_url=str(write_raw(tmp_path / "raw", [f"u{i % 4}" for i in range(20)])),
        table_url=str(tmp_path / "table"),
    )

    def extract(day: str, country: str) -> None:
        partition = {"day": day, "country": country}
        extract_files(replace(job, run_id=f"{day} {country}", partition=partition))

    extract("1", "a")
    extract("2", "b")
    commit = preceded(delta.commit, lambda: extract("1", "b"))
    with pytest.raises(CommitConflictError, match=r"rows were deleted: .*day=1/country=b.*again"):
        delete_rows(job.table_url, "user = 'u1'", commit=commit)
    assert open_table(job.table_url).to_arrow().num_rows == 60
    assert delete_rows(job.table_url, "user = 'u1'").num_rows == 15


def test_what_cannot_be_deleted_from_is_refused(job: ExtractJob, tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="expected a Delta table"):
        delete_rows(str(tmp_path / "none"), "user = 'u1'")
    with pytest.raises(SelectionError, match="usr"):
        api.delete_rows(job.table_url, "usr = 'u1'")
