import json
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import CommitConflictError, InputError, TableNotFoundError
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.explore.table import open_table
from featstore.table import delta
from featstore.table.delta import (
    Change,
    commit,
    commit_of_run,
    commits_of_input,
    history,
    is_delta,
    open_delta,
)
from featstore.table.layout import overwrite_filters
from featstore.table.metadata import CommitMetadata
from featstore.table.snapshot import DataFile, Snapshot, files_digest
from tests.interposed import followed, preceded
from tests.programs import run_python
from tests.threads import run_together


def change(
    schema: SlotSchema,
    files: Iterable[DataFile],
    run_id: str = "r1",
    base: Snapshot | None = None,
    **changed: Any,
) -> Change:
    files = tuple(files)
    partitions: tuple[Any, ...] = tuple(
        {json.dumps(dict(file.partition)): file.partition for file in files}.values()
    )
    metadata = CommitMetadata(
        run_id=run_id,
        spec_hash="s1",
        spec_version=1,
        input_digest="i1",
        data_digest=files_digest(files),
        partitions=partitions,
        num_files=len(files),
        num_rows=sum(file.num_rows for file in files),
        size_bytes=sum(file.size_bytes for file in files),
    )
    keys = tuple(pa.field(key, pa.string()) for key in partitions[0])
    schema = replace(schema, partition_keys=keys)
    return Change(
        base=base,
        schema=schema,
        partitions=partitions,
        files=files,
        metadata=replace(metadata, **changed),
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def paths(url: Path) -> list[str]:
    return [file.path for file in open_delta(str(url)).data_files]


def test_a_first_commit_makes_the_table_and_describes_it(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    file = write_file(table, {"month": "1"}, "r1")
    assert commit(str(table), change(schema, [file])) == 0
    snapshot = open_delta(str(table))
    (found,) = snapshot.data_files
    assert replace(found, version="") == file
    assert (
        abs(int(found.version) / 1000 - time.time()) < 600
    )  # when the log says that it was written
    assert snapshot.schema == replace(schema, partition_keys=(pa.field("month", pa.string()),))
    assert (snapshot.version, snapshot.spec_hash, snapshot.num_rows) == (0, "s1", 10)
    assert is_delta(str(table))


@pytest.mark.parametrize(("alias", "known"), [("gcs", "gs"), ("s3a", "s3"), ("azure", "az")])
def test_aliases_of_a_stores_scheme_are_recognised(
    monkeypatch: pytest.MonkeyPatch, alias: str, known: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "GOOGLE_SERVICE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.setenv(name, "given")
    asked: list[str] = []

    def ask(url: str, options: Any) -> bool:
        asked.append(url)
        return True

    monkeypatch.setattr(DeltaTable, "is_deltatable", ask)
    assert is_delta(f"{alias}://bucket/table")
    assert asked == [f"{known}://bucket/table"]


def test_file_urls_and_plain_paths_name_the_same_table(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    commit(str(table), change(schema, [write_file(table, {}, "r1")]))
    assert open_delta(f"file://{table}").digest == open_delta(str(table)).digest


def test_other_engines_read_the_table(table: Path, schema: SlotSchema, write_file: Any) -> None:
    commit(str(table), change(schema, [write_file(table, {"month": "a:b/c d%"}, "r1")]))
    rows = polars.read_delta(str(table)).sort("place")
    assert rows["month"].unique().to_list() == ["a:b/c d%"]
    assert rows["user"].to_list() == [row % 7 + 1 for row in range(10)]
    assert open_delta(str(table)).data_files[0].partition == {"month": "a:b/c d%"}


def test_a_commit_replaces_its_partitions_and_no_other(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    first = [write_file(table, {"month": month}, "r1") for month in "123"]
    commit(str(table), change(schema, first))
    second = [write_file(table, {"month": month}, "r2") for month in "14"]
    assert commit(str(table), change(schema, second, "r2", open_delta(str(table)))) == 1
    assert paths(table) == sorted([first[1].path, first[2].path, second[0].path, second[1].path])
    assert [file.path for file in open_delta(str(table), 0).data_files] == sorted(
        file.path for file in first
    )


def test_a_table_without_partition_keys_is_replaced_whole(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    commit(str(table), change(schema, [write_file(table, {}, "r1")]))
    file = write_file(table, {}, "r2")
    commit(str(table), change(schema, [file], "r2", open_delta(str(table))))
    assert paths(table) == [file.path]


def test_a_new_slot_becomes_a_column_in_the_same_commit(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    commit(str(table), change(schema, [write_file(table, {"month": "1"}, "r1")]))
    wider = replace(
        schema,
        slots=(*schema.slots, Slot(name="price", kind=SlotKind.FLOAT, number=104, op="log1p")),
    )
    file = write_file(table, {"month": "2"}, "r2", 10, wider)
    assert commit(str(table), change(wider, [file], "r2", open_delta(str(table)))) == 1
    assert open_delta(str(table)).schema.names == ("user", "tags", "place", "price")
    assert open_delta(str(table)).schema["price"].number == 104
    assert polars.read_delta(str(table))["price"].null_count() == 10


def test_slots_without_a_meaning_are_read_beside_slots_with_one(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    commit(str(table), change(schema, [write_file(table, {"month": "1"}, "r1")]))
    said = [
        replace(slot, op_path=f"hash({slot.name})", meaning="0123456789abcdef")
        for slot in schema.slots
    ]
    described = replace(schema, slots=tuple(said))
    file = write_file(table, {"month": "2"}, "r2", 10, described)
    assert commit(str(table), change(described, [file], "r2", open_delta(str(table)))) == 1
    assert open_delta(str(table), 0).schema["user"].op_path is None
    assert open_delta(str(table)).schema["user"].op_path == "hash(user)"
    rows = open_table(table).to_arrow()
    assert rows["user"].to_pylist() == 2 * [row % 7 + 1 for row in range(10)]


def test_a_commit_that_adds_no_column_leaves_the_tables_metadata_alone(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    commit(str(table), change(schema, [write_file(table, {"month": "1"}, "r1")]))
    commit(
        str(table),
        change(schema, [write_file(table, {"month": "1"}, "r2")], "r2", open_delta(str(table))),
    )
    log = (table / "_delta_log" / f"{1:020d}.json").read_text()
    assert "metaData" not in log
    assert '"featstore"' in log


def test_types_that_delta_lacks_are_kept_as_their_nearest(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    odd = replace(
        schema,
        kept=(pa.field("request", pa.large_string()), pa.field("ts", pa.timestamp("ms", tz="UTC"))),
    )
    assert [str(field.type) for field in delta.as_stored(odd).kept] == [
        "string",
        "timestamp[us, tz=UTC]",
    ]


def test_the_history_has_the_metadata_of_each_run(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    commit(str(table), change(schema, [write_file(table, {"month": "1"}, "r1")]))
    commit(
        str(table),
        change(schema, [write_file(table, {"month": "2"}, "r2")], "r2", open_delta(str(table))),
    )
    newest, oldest = history(str(table))
    assert (newest.version, oldest.version) == (1, 0)
    assert newest.metadata is not None
    assert newest.metadata.partitions == ({"month": "2"},)
    found = commit_of_run(str(table), "r1")
    assert found is not None
    assert found.version == 0
    assert commit_of_run(str(table), "r3") is None


def test_an_old_version_has_the_spec_hash_of_its_time(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    for version in range(3):
        base = open_delta(str(table)) if version else None
        file = write_file(table, {"month": f"{version}"}, f"r{version}")
        commit(str(table), change(schema, [file], f"r{version}", base, spec_hash=f"s{version}"))
    DeltaTable(str(table)).delete("month = '2'")
    assert [open_delta(str(table), version).spec_hash for version in (0, 1, 2, 3, None)] == [
        "s0",
        "s1",
        "s2",
        "s2",
        "s2",
    ]


def test_an_equal_input_is_found_until_its_partition_changes(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    commit(str(table), change(schema, [write_file(table, {"month": "1"}, "r1")]))
    commit(
        str(table),
        change(schema, [write_file(table, {"month": "2"}, "r2")], "r2", open_delta(str(table))),
    )

    def found(digest: str) -> list[tuple[int, str]]:
        same = commits_of_input(open_delta(str(table)), [{"month": "1"}], digest)
        return [(commit.version, made.spec_hash) for commit, made in same]

    assert found("i1") == [(0, "s1")]
    assert found("i2") == []
    DeltaTable(str(table)).delete("month = '1'")
    assert found("i1") == []


def test_the_second_writer_of_a_partition_is_refused(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    commit(str(table), change(schema, [write_file(table, {"month": "1"}, "r1")]))
    base = open_delta(str(table))
    winner = write_file(table, {"month": "2"}, "r2")
    commit(str(table), change(schema, [winner], "r2", base))
    with pytest.raises(
        CommitConflictError, match="another writer committed month=2 while this run was at work"
    ):
        commit(str(table), change(schema, [write_file(table, {"month": "2"}, "r3")], "r3", base))
    assert winner.path in paths(table)
    assert open_delta(str(table)).version == 1


def test_writers_of_different_partitions_do_not_conflict(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    commit(str(table), change(schema, [write_file(table, {"month": m}, "r1") for m in "12"]))
    base = open_delta(str(table))
    commit(str(table), change(schema, [write_file(table, {"month": "1"}, "r2")], "r2", base))
    assert (
        commit(str(table), change(schema, [write_file(table, {"month": "2"}, "r3")], "r3", base))
        == 2
    )


def test_one_of_many_concurrent_writers_of_an_empty_partition_wins(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    commit(str(table), change(schema, [write_file(table, {"month": "1"}, "r0")], "r0"))
    base = open_delta(str(table))
    changes = [
        change(schema, [write_file(table, {"month": "2"}, f"r{i}")], f"r{i}", base)
        for i in range(1, 5)
    ]
    everyone = threading.Barrier(len(changes))
    outcomes: list[object] = []

    publish = preceded(delta.publish_once, lambda: everyone.wait(60))

    def write(wanted: Change) -> None:
        try:
            outcomes.append(commit(str(table), wanted, publish))
        except CommitConflictError as error:
            outcomes.append(error)

    run_together(*(partial(write, wanted) for wanted in changes))
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [1]
    assert len(open_delta(str(table)).in_partitions([{"month": "2"}])) == 1


def test_the_partitions_of_two_concurrent_first_writers_are_both_committed(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    """Both find no table. The second to commit finds one, and commits to it."""
    first = change(schema, [write_file(table, {"month": "1"}, "r1")])
    second = change(schema, [write_file(table, {"month": "2"}, "r2")], "r2")
    race = cache(lambda: commit(str(table), first))
    assert commit(str(table), second, preceded(delta.publish_once, race)) == 1
    assert (race.cache_info().currsize, race()) == (1, 0)
    assert open_delta(str(table)).partitions == ({"month": "1"}, {"month": "2"})


@pytest.mark.parametrize(
    "reply", [OSError("connection reset"), Exception("External error: reset"), DeltaError("reset")]
)
def test_a_reply_lost_after_the_commit_landed_is_a_commit(
    table: Path, schema: SlotSchema, write_file: Any, reply: Exception
) -> None:
    lost = Mock(side_effect=reply)
    wanted = change(schema, [write_file(table, {"month": "1"}, "r1")])
    assert commit(str(table), wanted, followed(delta.publish_once, lost)) == 0
    assert lost.call_count == 1
    assert len(history(str(table))) == 1


def test_another_process_under_the_same_run_id_is_another_writer(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    first, second = (change(schema, [write_file(table, {"month": "1"}, "r1")]) for _ in range(2))

    publish = preceded(delta.publish_once, lambda: commit(str(table), first))
    with pytest.raises(CommitConflictError, match="another writer committed month=1"):
        commit(str(table), second, publish)
    assert paths(table) == [first.files[0].path]


def test_an_attempt_whose_outcome_is_unknown_is_no_conflict(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    """It may still land, whatever else is committed meanwhile, so its files must be left alone."""
    commit(str(table), change(schema, [write_file(table, {"month": "1"}, "r0")], "r0"))
    base = open_delta(str(table))
    winner = change(schema, [write_file(table, {"month": "1"}, "r1")], "r1", base)

    lost = Mock(side_effect=OSError("connection reset"))
    with pytest.raises(OSError, match="connection reset"):
        commit(
            str(table),
            change(schema, [write_file(table, {"month": "1"}, "r2")], "r2", base),
            preceded(lost, lambda: commit(str(table), winner)),
        )


def test_a_failure_that_is_not_a_conflict_is_raised_unchanged(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    publish = Mock(side_effect=OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        commit(str(table), change(schema, [write_file(table, {"month": "1"}, "r1")]), publish)
    assert publish.call_count == 1
    assert not is_delta(str(table))


def test_a_run_replaces_partitions_of_two_keys_if_one_filter_selects_them() -> None:
    existing = [{"dt": day, "hour": hour} for day in "12" for hour in "ab"]
    assert overwrite_filters([{"dt": "1", "hour": "a"}, {"dt": "1", "hour": "b"}], existing) == [
        ("dt", "in", ["1"]),
        ("hour", "in", ["a", "b"]),
    ]
    with pytest.raises(
        InputError, match="one run cannot replace dt=1/hour=a, dt=2/hour=b without dt=1/hour=b"
    ):
        overwrite_filters([{"dt": "1", "hour": "a"}, {"dt": "2", "hour": "b"}], existing)


def test_a_missing_table_and_a_missing_version_are_named(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    with pytest.raises(TableNotFoundError, match=r"no table at .*table: expected a Delta table"):
        open_delta(str(table))
    with pytest.raises(TableNotFoundError, match=r"no table at .*table"):
        history(str(table))
    commit(str(table), change(schema, [write_file(table, {"month": "1"}, "r1")]))
    with pytest.raises(
        TableNotFoundError, match=r"no version 7 of .*table; it has versions 0 to 0"
    ):
        open_delta(str(table), 7)


def test_a_foreign_delta_table_opens_without_our_metadata(table: Path) -> None:
    rows = polars.DataFrame(
        {"id": [1, 2], "score": [0.5, 1.5], "name": ["a", "b"], "day": ["x", "y"]}
    )
    rows.write_delta(str(table), delta_write_options={"partition_by": ["day"]})
    snapshot = open_delta(str(table))
    assert (snapshot.schema.names, snapshot.spec_hash, snapshot.num_rows) == (
        ("id", "score"),
        None,
        2,
    )
    assert [file.partition for file in snapshot.data_files] == [{"day": "x"}, {"day": "y"}]
    assert history(str(table))[0].metadata is None


@pytest.mark.parametrize(
    "values",
    [
        [1, None],
        [1.5, None],
        [True, False, None],
        [date(2026, 11, 1), None],
        [
            datetime(2026, 11, 1, 12, tzinfo=UTC),
            datetime(2026, 11, 1, 12, 0, 0, 5, tzinfo=UTC),
            None,
        ],
        ["a", None],
    ],
)
def test_partition_values_of_any_type_are_texts_that_cast_back_and_null_is_none(
    table: Path, values: list[Any]
) -> None:
    rows = polars.DataFrame({"id": range(len(values)), "day": values})
    rows.write_delta(str(table), delta_write_options={"partition_by": ["day"]})
    snapshot = open_delta(str(table))
    [key] = snapshot.schema.partition_keys
    found = [file.partition["day"] for file in snapshot.data_files]
    assert all(text is None or type(text) is str for text in found)
    cast = [pa.scalar(text, pa.string()).cast(key.type).as_py() for text in found]
    assert sorted(cast, key=str) == sorted(values, key=str)


def test_row_counts_come_from_footers_if_the_log_has_none(
    table: Path, schema: SlotSchema, write_file: Any
) -> None:
    commit(str(table), change(schema, [write_file(table, {}, "r1")]))
    log = table / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        line.get("add", {}).pop("stats", None)
    log.write_text("\n".join(map(json.dumps, lines)))
    assert open_delta(str(table)).num_rows == 10


_FORKS = """
import os, sys
from featstore.table.delta import is_delta, open_delta
url, has_used = sys.argv[1], sys.argv[2] == "used"
if has_used:
    open_delta(url)
if os.fork() == 0:
    assert is_delta(url)
    try:
        print("opened", open_delta(url).version, flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.wait()
open_delta(url)
"""


@pytest.mark.parametrize("use", ["used", "not used"])
def test_a_child_forked_after_its_parent_used_delta_rs_gets_an_error(
    tmp_path: Path, use: str
) -> None:
    write_deltalake(tmp_path, pa.table({"a": [1]}))
    done = run_python(_FORKS, tmp_path, use)
    refused = f"StoreError {tmp_path} cannot be opened in this process: it was forked"
    assert done.stdout.startswith(refused if use == "used" else "opened 0")
    assert done.stdout.count("\n") == 1
    assert "panicked" not in done.stderr


@given(st.lists(st.none() | st.integers(0, 20), max_size=20))
def test_commits_in_effect_are_those_that_made_what_the_newest_version_holds(
    steps: list[int | None],
) -> None:
    """A step is a write, or goes back to a version, or to one that its log does not tell."""
    held, commits = list[list[int]](), list[delta.Commit]()
    for version, back in enumerate(steps):
        before = held[-1] if held else []
        if back is None:
            held.append([*before, version])
        elif back < version:
            held.append(held[back])
        else:
            back = -1
            held.append([])
        commits.append(
            delta.Commit(
                version=version, timestamp_ms=0, operation="", metadata=None, restored=back
            )
        )
    found = [commit.version for commit in delta.in_effect(reversed(commits))]
    assert found[::-1] == (held[-1] if held else [])
