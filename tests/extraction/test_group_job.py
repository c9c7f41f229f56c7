"""Slot groups: what is added to a table later reads as if it had always been there, or not at
all.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore import api
from featstore.base.errors import (
    CommitConflictError,
    EmptyInputError,
    InputError,
    StaleGroupError,
    StoreError,
    TableNotFoundError,
)
from featstore.explore.table import open_table
from featstore.extraction.group_job import GroupJob, extract_group
from featstore.extraction.job import ExtractJob, ExtractReport, extract_files
from featstore.extraction.rewriting import compact
from featstore.spec.parse import load_spec
from featstore.table import delta
from featstore.table.open import open_snapshot
from tests.interposed import followed, preceded
from tests.parquet_files import put_parquet

WriteRaw = Callable[..., Path]
INPUTS = {
    "user": "string",
    "tags": "list<string>",
    "price": "double",
    "clicked": "long",
    "request": "string",
}
OUTPUT = {"rows_per_row_group": 100, "rows_per_file": 250}
SLOTS = [
    {"slot": 101, "name": "user_id", "op": "hash", "of": "user"},
    {"slot": 102, "name": "tag_ids", "op": "hash", "of": "tags", "max_len": 3},
]
MORE = [
    {"slot": 103, "name": "price_log", "op": "log1p", "of": "price"},
    {"slot": 104, "name": "user_x_tags", "op": "cross", "of": ["user", "tags"]},
]
DAY = {"day": "1"}


def spec_of(slots: list[dict[str, Any]], **more: Any) -> Any:
    document = {
        "spec": 1,
        "inputs": INPUTS,
        "labels": {"click": "clicked"},
        "keep": ["request"],
        "slots": slots,
        "output": OUTPUT,
    }
    return load_spec(document | more)


def rows(num_rows: int, first: int = 0, clicked: int | None = None) -> pa.Table:
    places = range(first, first + num_rows)
    columns = {
        "user": pa.array(
            [None if row % 11 == 0 else f"u{row % 50}" for row in places], pa.string()
        ),
        "tags": pa.array(
            [None if row % 13 == 0 else [f"t{row % 7}"] * (row % 5) for row in places],
            pa.list_(pa.string()),
        ),
        "price": pa.array([row / 3 for row in places]),
        "clicked": pa.array([row % 2 if clicked is None else clicked for row in places]),
        "request": pa.array([f"r{row:05d}" for row in places]),
    }
    return pa.table(columns)


@pytest.fixture
def base(tmp_path: Path) -> ExtractJob:
    """A day of 640 rows in three base files, of two raw files; the job that made it."""
    raw = tmp_path / "raw"
    put_parquet(raw / "a.parquet", rows(400), row_group_size=40)
    pq.write_table(rows(240, 400), raw / "b.parquet", row_group_size=40)
    job = ExtractJob(
        spec=spec_of(SLOTS), input_url=str(raw), table_url=str(tmp_path / "table"), partition=DAY
    )
    extract_files(job)
    return job


def wider(base: ExtractJob, slots: Any = (*SLOTS, *MORE), **more: Any) -> ExtractJob:
    return replace(base, spec=spec_of([*slots], **more), run_id="more")


def grouped(base: ExtractJob, **more: Any) -> ExtractReport:
    return extract_group(GroupJob(job=wider(base), name="more"), **more)


def whole(base: ExtractJob, url: Path, **more: Any) -> pa.Table:
    """The same raw rows, all slots extracted at once into another table."""
    extract_files(replace(wider(base, **more), table_url=str(url), run_id="whole"))
    return open_table(url).to_arrow()


def base_files(base: ExtractJob) -> set[str]:
    return {path.name for path in (Path(base.table_url) / "day=1").rglob("*.parquet")}


def test_slots_added_later_read_as_if_extracted_at_once(base: ExtractJob, tmp_path: Path) -> None:
    before = base_files(base)
    report = grouped(base)
    table = open_table(base.table_url)
    assert (report.committed, report.version, table.version, report.num_files) == (True, 1, 1, 3)
    assert base_files(base) == before
    assert [slot.name for slot in table.slots] == ["user_id", "tag_ids", "price_log", "user_x_tags"]
    expected = whole(base, tmp_path / "other")
    assert table.to_arrow().select(expected.column_names).equals(expected)
    assert table.head(3).num_rows == 3
    assert (
        table.to_arrow(slots=["price*"], where="user_id is not null and price_log > 1").num_rows
        > 100
    )
    assert [str(row["slot"]) for row in table.profile().table.to_pylist()] == [
        slot.name for slot in table.slots
    ]


def test_a_group_holds_only_its_own_columns_in_the_same_row_groups(base: ExtractJob) -> None:
    grouped(base)
    for file in open_snapshot(base.table_url).data_files:
        (bound,) = file.groups
        found, own = pq.ParquetFile(bound.url), pq.ParquetFile(file.url)
        assert found.schema_arrow.names == ["price_log", "user_x_tags"]
        cuts = [
            [f.metadata.row_group(i).num_rows for i in range(f.num_row_groups)]
            for f in (found, own)
        ]
        assert cuts[0] == cuts[1]
        said = json.loads(found.schema_arrow.metadata[b"featstore"])["base"]
        assert (said["path"], said["bound_by"], len(said["rows"])) == (file.path, "input", 64)


def test_an_equal_run_of_a_group_writes_and_commits_nothing(base: ExtractJob) -> None:
    grouped(base)
    files = sorted(Path(base.table_url).rglob("*.parquet"))
    again = grouped(base)
    assert (again.committed, again.version) == (False, 1)
    assert sorted(Path(base.table_url).rglob("*.parquet")) == files
    assert "nothing to do" in str(again)


def test_an_old_version_reads_without_the_group_and_a_slot_that_was_retired_reads_in_it(
    base: ExtractJob,
) -> None:
    grouped(base)
    old = open_table(base.table_url, version=0)
    assert [slot.name for slot in old.slots] == ["user_id", "tag_ids"]
    retired = spec_of([SLOTS[0]], retired=[102])
    extract_files(replace(base, spec=retired, run_id="retired"))
    read = open_table(base.table_url).to_arrow(slots=["tag_ids"])
    assert read.column("tag_ids").null_count == 640
    assert open_table(base.table_url, version=1).to_arrow().column("tag_ids").null_count < 640


def test_a_group_of_a_replaced_day_is_stale_listed_and_read_when_extracted_again(
    base: ExtractJob,
) -> None:
    grouped(base)
    report = extract_files(replace(base, spec=spec_of([SLOTS[0]]), run_id="again"))
    assert report.stale_groups == {"more": ("price_log", "user_x_tags")}
    assert "warning: slot group 'more' is stale in these partitions, where price_log" in str(report)
    table = open_table(base.table_url)
    (group,) = table.snapshot.groups
    assert len(group.stale) == 3
    with pytest.raises(StaleGroupError, match="so price_log, user_x_tags would be missing there"):
        table.to_arrow()
    read = open_table(base.table_url, stale_groups="missing").to_arrow()
    assert read.column("price_log").null_count == 640
    assert "stale: more/day=1/part-00000-" in str(table.inspect())
    grouped(replace(base, spec=spec_of([SLOTS[0]])))
    assert open_table(base.table_url).to_arrow().column("price_log").null_count == 0


def test_a_day_that_has_the_slots_itself_afterwards_is_not_warned_of(base: ExtractJob) -> None:
    assert extract_files(replace(base, run_id="nothing to do")).stale_groups == {}
    grouped(base)
    report = extract_files(replace(wider(base), run_id="whole"))
    assert report.stale_groups == {}
    assert "stale" not in str(report)
    assert open_table(base.table_url).to_arrow().column("price_log").null_count == 0


def test_other_days_keep_their_groups_without_a_warning(base: ExtractJob, tmp_path: Path) -> None:
    grouped(base)
    other = replace(base, partition={"day": "2"}, run_id="other day")
    assert extract_files(other).stale_groups == {}


def test_the_raw_files_must_be_those_that_made_the_base(base: ExtractJob) -> None:
    put_parquet(
        Path(base.input_url) / "b.parquet",
        rows(240, 400).sort_by([("request", "descending")]),
        row_group_size=40,
    )
    with pytest.raises(InputError, match="not the raw files, whole and unchanged, that made day=1"):
        grouped(base)


def test_a_kept_column_binds_rows_that_come_in_another_order_and_other_files(
    base: ExtractJob, tmp_path: Path
) -> None:
    expected = whole(base, tmp_path / "other")
    other = tmp_path / "raw2"
    put_parquet(
        other / "z.parquet", rows(700).sort_by([("request", "descending")]), row_group_size=70
    )
    job = replace(wider(base), input_url=str(other))
    extract_group(GroupJob(job=job, name="more", key="request"))
    assert open_table(base.table_url).to_arrow().select(expected.column_names).equals(expected)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            rows(600),
            r"40 of 640 rows of the table .* are not among the raw rows, such as request 'r00600'",
        ),
        (pa.concat_tables([rows(640), rows(5)]), "not unique: it repeats 5 times in the raw rows"),
        (
            rows(641).set_column(
                4, "request", pa.array([f"r{i:05d}" for i in range(640)] + [None])
            ),
            "null in 1 rows of the raw",
        ),
    ],
)
def test_a_key_must_name_each_row(
    base: ExtractJob, tmp_path: Path, table: pa.Table, message: str
) -> None:
    other = tmp_path / "raw2"
    put_parquet(other / "z.parquet", table)
    with pytest.raises(InputError, match=message):
        extract_group(
            GroupJob(job=replace(wider(base), input_url=str(other)), name="more", key="request")
        )
    assert open_table(base.table_url).version == 0


def test_a_key_must_name_each_row_of_the_table_too(tmp_path: Path) -> None:
    put_parquet(tmp_path / "raw" / "a.parquet", pa.concat_tables([rows(50), rows(3)]))
    job = ExtractJob(
        spec=spec_of(SLOTS),
        input_url=str(tmp_path / "raw"),
        table_url=str(tmp_path / "table"),
        partition=DAY,
    )
    extract_files(job)
    put_parquet(tmp_path / "once" / "a.parquet", rows(50))
    with pytest.raises(InputError, match="not unique: it repeats 3 times in the table"):
        extract_group(
            GroupJob(
                job=replace(wider(job), input_url=str(tmp_path / "once")),
                name="more",
                key="request",
            )
        )


def test_two_columns_of_the_keys_name_in_a_file_of_the_table_are_refused(base: ExtractJob) -> None:
    path = sorted((Path(base.table_url) / "day=1").rglob("*.parquet"))[0]
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.append_column("request", table.column("request")), path)
    with pytest.raises(
        InputError, match=rf"{path.name}: column 'request': expected once, found 2 times"
    ):
        extract_group(GroupJob(job=wider(base), name="more", key="request"))


def test_a_group_of_a_spec_that_cuts_files_otherwise_is_refused(base: ExtractJob) -> None:
    job = wider(base, output={"rows_per_row_group": 100, "rows_per_file": 100})
    with pytest.raises(InputError, match="do not match the spec's output"):
        extract_group(GroupJob(job=job, name="more"))


def test_a_group_may_not_skip_rows_of_the_table(base: ExtractJob, tmp_path: Path) -> None:
    inputs = INPUTS | {"price": {"type": "long", "on_error": "skip"}}
    slots = [*SLOTS, {"slot": 103, "name": "price", "op": "identity", "of": "price"}]
    job = replace(base, spec=spec_of(slots, inputs=inputs), run_id="skips")
    with pytest.raises(InputError, match=r"expected its \d+ rows, found \d+ in the slot group"):
        extract_group(GroupJob(job=job, name="more"))
    assert not list(Path(base.table_url, "_groups").rglob("*.parquet"))


def test_rows_that_the_base_skipped_are_skipped_in_the_group_too(
    base: ExtractJob, tmp_path: Path
) -> None:
    inputs = INPUTS | {"price": {"type": "long", "on_error": "skip"}}
    slots = [SLOTS[0], {"slot": 103, "name": "price", "op": "identity", "of": "price"}]
    url = str(tmp_path / "skipping")
    first = replace(base, spec=spec_of(slots, inputs=inputs), table_url=url, run_id="skips")
    num_skipped = extract_files(first).num_rows_skipped
    assert num_skipped > 400
    extract_group(
        GroupJob(
            job=replace(first, spec=spec_of([*slots, MORE[1]], inputs=inputs), run_id="g"),
            name="more",
        )
    )
    newest = delta.history(url)[0].metadata
    assert newest is not None
    assert newest.run_id == "g"
    assert newest.num_rows_skipped == num_skipped
    extract_files(
        replace(
            first, spec=spec_of([*slots, MORE[1]], inputs=inputs), table_url=f"{url}2", run_id="w"
        )
    )
    expected = open_table(f"{url}2").to_arrow()
    assert open_table(url).to_arrow().select(expected.column_names).equals(expected)
    changed = spec_of([SLOTS[0], slots[1] | {"op": "log1p"}, SLOTS[1]], inputs=inputs)
    with pytest.raises(
        InputError,
        match="malformed raw rows were skipped when day=1 was made, by a spec that is not this one",
    ):
        extract_group(GroupJob(job=replace(first, spec=changed, run_id="c"), name="other"))


def test_stored_statistics_and_counts_of_the_base_are_shown_beside_a_group(
    base: ExtractJob, tmp_path: Path
) -> None:
    slots = [*SLOTS, {"slot": 105, "name": "ratio", "op": "ratio", "of": ["price", "price"]}]
    job = replace(base, spec=spec_of(slots), table_url=str(tmp_path / "filled"), run_id="filled")
    extract_files(job)
    before = open_table(job.table_url).profile(stored=True)
    extract_group(GroupJob(job=wider(job, [*slots, *MORE]), name="more"))
    table = open_table(job.table_url)
    after, counted = table.profile(stored=True), table.profile()
    assert sum(before.counts.values()) == 1  # 0 / 0
    assert after.counts == before.counts
    assert after.slots == table.schema.names
    assert [after[name] for name in before.slots] == [before[name] for name in before.slots]
    for name in ("price_log", "user_x_tags"):
        assert after[name] == counted[name]
    assert "of slot groups, and labels, from the rows" in str(after)
    assert after.label_rates == counted.label_rates
    only = table.profile(slots=["user_id"], stored=True)
    assert only["user_id"] == before["user_id"]
    assert only.source == before.source


def test_slots_share_one_namespace_with_base_and_other_groups(base: ExtractJob) -> None:
    grouped(base)
    again = replace(
        base,
        spec=spec_of([*SLOTS, {"slot": 103, "name": "fare", "op": "hash", "of": "user"}]),
        run_id="x",
    )
    with pytest.raises(InputError, match="slot number 103"):
        extract_group(GroupJob(job=replace(again), name="more"))
    with pytest.raises(InputError, match="slot number 103"):
        extract_files(again)
    with pytest.raises(InputError, match="all slots of the spec are in"):
        extract_group(GroupJob(job=wider(base), name="second"))


def test_there_must_be_a_table_and_the_partition(base: ExtractJob, tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="expected one to add slot group 'more' to"):
        extract_group(
            GroupJob(job=replace(wider(base), table_url=str(tmp_path / "none")), name="more")
        )
    with pytest.raises(InputError, match="has no day=2; extract its rows"):
        extract_group(GroupJob(job=replace(wider(base), partition={"day": "2"}), name="more"))
    with pytest.raises(InputError, match="is partitioned by day, the input by nothing"):
        extract_group(GroupJob(job=replace(wider(base), partition={}), name="more"))
    put_parquet(tmp_path / "none/a.parquet", rows(0))
    nothing = replace(wider(base), input_url=str(tmp_path / "none"))
    with pytest.raises(EmptyInputError, match="none holds no rows; the table is left as it is"):
        extract_group(GroupJob(job=nothing, name="more"))
    days = Path(base.input_url).rename(tmp_path / "day=1")
    with pytest.raises(InputError, match="give --partition-from-path day "):
        api.relabel(wider(base).spec, days, base.table_url, key="request")
    days.rename(base.input_url)
    with pytest.raises(InputError, match=r"slot group '\.\./x': expected 1 to 64 of"):
        extract_group(GroupJob(job=wider(base), name="../x"))
    with pytest.raises(InputError, match="take another name"):
        GroupJob(job=wider(base), name="labels")
    with pytest.raises(
        InputError, match="key 'price': expected a column that the spec and the table keep"
    ):
        GroupJob(job=wider(base), name="more", key="price")


def test_ripened_labels_replace_the_tables_and_touch_no_feature_file(
    base: ExtractJob, tmp_path: Path
) -> None:
    grouped(base)
    before = base_files(base)
    ripe = tmp_path / "ripe"
    put_parquet(ripe / "a.parquet", rows(640, clicked=1).sort_by([("price", "descending")]))
    old = open_table(base.table_url).to_arrow()
    report = api.relabel(wider(base).spec, ripe, base.table_url, key="request", partition=DAY)
    new = open_table(base.table_url).to_arrow()
    assert (report.committed, base_files(base)) == (True, before)
    assert set(new.column("click").to_pylist()) == {1}
    assert new.drop(["click"]).equals(old.drop(["click"]))
    assert open_table(base.table_url).to_arrow(slots=[], where="click = 0").num_rows == 0
    assert set(open_table(base.table_url, version=1).to_arrow().column("click").to_pylist()) == {
        0,
        1,
    }


def test_labels_need_a_spec_with_labels(base: ExtractJob) -> None:
    spec = spec_of(SLOTS, labels={})
    with pytest.raises(InputError, match="no labels and no weight"):
        api.relabel(spec, base.input_url, base.table_url, key="request", partition=DAY)


def test_compaction_folds_groups_into_new_base_files_of_equal_content(
    base: ExtractJob, tmp_path: Path
) -> None:
    grouped(base)
    ripe = tmp_path / "ripe"
    put_parquet(ripe / "a.parquet", rows(640, clicked=1))
    api.relabel(base.spec, ripe, base.table_url, key="request", partition=DAY)
    before = open_table(base.table_url)
    report = compact(base.table_url)
    after = open_table(base.table_url)
    assert (report.groups, report.num_files, report.num_rows) == (("labels", "more"), 3, 640)
    assert after.to_arrow().select(before.to_arrow().column_names).equals(before.to_arrow())
    assert after.snapshot.groups == ()
    assert not any(file.groups for file in after.snapshot.data_files)
    assert open_table(base.table_url, version=before.version).to_arrow().equals(before.to_arrow())
    assert "nothing to do" in str(compact(base.table_url))
    others = {file.path: file.num_rows for file in before.snapshot.data_files}
    assert sorted(others.values()) == sorted(file.num_rows for file in after.snapshot.data_files)


def test_compaction_keeps_the_codec_of_files_whose_first_columns_are_not_compressed(
    tmp_path: Path,
) -> None:
    put_parquet(
        tmp_path / "raw" / "a.parquet",
        {
            "user": [f"u{i}" for i in range(5_000)],
            "price": [0.5] * 5_000,
            "tags": pa.nulls(5_000, pa.list_(pa.string())),
            "clicked": [1] * 5_000,
            "request": [f"r{i}" for i in range(5_000)],
        },
    )
    output = {"rows_per_row_group": 5_000, "compression": "zstd"}
    job = ExtractJob(
        spec=spec_of(SLOTS, output=output),
        input_url=str(tmp_path / "raw"),
        table_url=str(tmp_path / "table"),
        partition=DAY,
    )
    extract_files(job)
    group = replace(job, spec=spec_of([*SLOTS, *MORE], output=output), run_id="more")
    extract_group(GroupJob(job=group, name="more"))
    compact(job.table_url)
    (file,) = open_snapshot(job.table_url).data_files
    chunks = pq.read_metadata(Path(job.table_url, file.path)).row_group(0)
    found = [chunks.column(i).compression for i in range(chunks.num_columns)]
    assert found[0] == "UNCOMPRESSED"
    assert set(found) == {"UNCOMPRESSED", "ZSTD"}


def test_a_compacted_day_is_still_known_by_its_raw_files(base: ExtractJob, tmp_path: Path) -> None:
    """An equal run commits nothing, a day is up to date, and a further group needs no key; also
    after a second compaction.
    """
    third = {
        "slot": 105,
        "name": "price_bin",
        "op": "bucketize",
        "of": "price",
        "boundaries": [10, 50],
    }
    fourth = {"slot": 106, "name": "tags_again", "op": "hash", "of": "tags"}
    extract_files(replace(base, partition={"day": "2"}, run_id="other day"))
    for number, added in enumerate(([*MORE], [*MORE, third], [*MORE, third, fourth])):
        job = replace(base, spec=spec_of([*SLOTS, *added]), run_id=f"g{number}")
        assert extract_group(GroupJob(job=job, name=f"g{number}")).committed
        version = compact(base.table_url).version
        assert open_snapshot(base.table_url).groups == ()
        again = extract_files(replace(base, run_id=f"again{number}"))
        assert (again.committed, again.num_rows, open_snapshot(base.table_url).version) == (
            False,
            640,
            version,
        )
    assert not extract_files(replace(base, partition={"day": "2"}, run_id="other again")).committed
    expected = tmp_path / "whole"
    extract_files(replace(job, table_url=str(expected), run_id="whole"))
    whole = open_table(expected).to_arrow()
    assert (
        open_table(base.table_url)
        .to_arrow(where="day = '1'")
        .select(whole.column_names)
        .equals(whole)
    )
    pq.write_table(rows(240, 401), Path(base.input_url) / "b.parquet", row_group_size=40)
    assert extract_files(replace(base, run_id="changed")).committed


@pytest.mark.parametrize("is_by_key", [False, True])
def test_a_group_repeats_the_cuts_of_base_files_that_end_by_their_bytes(
    tmp_path: Path, is_by_key: bool
) -> None:
    """Also after a compaction, and although the group's own options would cut elsewhere."""
    put_parquet(tmp_path / "raw" / "a.parquet", rows(640), row_group_size=640)
    few_bytes = {"rows_per_row_group": 50, "rows_per_file": 1000, "bytes_per_file": 1}
    base = ExtractJob(
        spec=spec_of(SLOTS, output=few_bytes),
        input_url=str(tmp_path / "raw"),
        table_url=str(tmp_path / "table"),
        partition=DAY,
    )
    assert extract_files(base).num_files == 13
    third = {"slot": 105, "name": "tags_again", "op": "hash", "of": "tags"}
    many_bytes = few_bytes | {"bytes_per_file": "1GB"}
    for number, slots in enumerate(([*SLOTS, *MORE], [*SLOTS, *MORE, third])):
        spec = spec_of(slots, output=many_bytes)
        job = replace(base, spec=spec, run_id=f"g{number}")
        key = "request" if is_by_key else None
        assert extract_group(GroupJob(job=job, name=f"g{number}", key=key)).num_files == 13
        files = open_snapshot(base.table_url).data_files
        assert [[part.num_rows for part in file.parts] for file in files] == [
            *[[50, 50]] * 12,
            [40, 40],
        ]
        assert len({json.loads(_said(file.groups[0].url))["base"]["rows"] for file in files}) == 13
        compact(base.table_url)
    expected = whole(base, tmp_path / "other", slots=slots)
    assert open_table(base.table_url).to_arrow().select(expected.column_names).equals(expected)


def _said(url: str) -> bytes:
    said: bytes = pq.read_schema(url).metadata[b"featstore"]
    return said


def test_a_run_of_several_partitions_is_known_after_some_of_them_were_compacted(
    tmp_path: Path,
) -> None:
    for day in (1, 2):
        put_parquet(
            tmp_path / "raw" / f"day={day}" / "a.parquet", rows(300, 300 * day), row_group_size=40
        )
    both = ExtractJob(
        spec=spec_of(SLOTS),
        input_url=str(tmp_path / "raw"),
        table_url=str(tmp_path / "t"),
        partition_from_path=("day",),
    )
    extract_files(both)
    one = replace(
        both,
        input_url=str(tmp_path / "raw" / "day=1"),
        partition=DAY,
        partition_from_path=(),
        run_id="one",
    )
    with pytest.raises(InputError, match="not the raw files, whole and unchanged"):
        grouped(one)
    extract_group(GroupJob(job=wider(one), name="more", key="request"))
    compact(both.table_url)
    assert not extract_files(replace(both, run_id="again")).committed
    third = {
        "slot": 105,
        "name": "price_bin",
        "op": "bucketize",
        "of": "price",
        "boundaries": [10, 50],
    }
    wide = replace(both, spec=spec_of([*SLOTS, *MORE, third]), run_id="both")
    assert extract_group(GroupJob(job=wide, name="third")).num_files == 4


def test_other_engines_see_the_base_and_everything_after_a_compaction(base: ExtractJob) -> None:
    def seen() -> set[str]:
        return set(polars.read_delta(base.table_url).columns)

    grouped(base)
    assert seen() == {"user_id", "tag_ids", "click", "request", "day"}
    compact(base.table_url)
    assert seen() == {"user_id", "tag_ids", "price_log", "user_x_tags", "click", "request", "day"}
    assert polars.read_delta(base.table_url).height == 640


def test_files_of_others_with_nulls_are_not_folded(base: ExtractJob) -> None:
    grouped(base)
    file = open_snapshot(base.table_url).data_files[0]
    table = pq.read_table(file.url)
    fields = [field.with_nullable(True) for field in table.schema]
    columns = {
        f.name: pa.nulls(len(table), f.type) if f.name == "user_id" else table.column(f.name)
        for f in fields
    }
    pq.write_table(pa.table(columns, schema=pa.schema(fields)), file.url, row_group_size=100)
    files = sorted(Path(base.table_url).rglob("*.parquet"))
    with pytest.raises(
        InputError, match="slot 'user_id' holds nulls; only files that featstore wrote"
    ):
        compact(base.table_url)
    assert sorted(Path(base.table_url).rglob("*.parquet")) == files


def test_only_a_table_can_be_compacted(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="expected a Delta table with slot groups"):
        compact(str(tmp_path))


def test_a_compaction_killed_before_it_drops_the_groups_is_whole_and_the_next_one_ends_it(
    base: ExtractJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped(base)
    expected = open_table(base.table_url).to_arrow()

    with pytest.raises(KeyboardInterrupt):
        compact(base.table_url, commit=followed(delta.commit, Mock(side_effect=KeyboardInterrupt)))
    table = open_table(base.table_url)
    assert table.to_arrow().equals(expected)
    assert len(table.snapshot.groups[0].stale) == 3
    assert compact(base.table_url).groups == ("more",)
    assert open_table(base.table_url).snapshot.groups == ()


def test_a_compaction_during_which_a_group_was_written_commits_nothing(base: ExtractJob) -> None:
    grouped(base)
    fewer = [
        *SLOTS,
        *MORE,
        {
            "slot": 105,
            "name": "price_bin",
            "op": "bucketize",
            "of": "price",
            "boundaries": [10, 50],
        },
    ]
    seen: list[int] = []

    def write_late() -> None:
        extract_group(GroupJob(job=replace(base, spec=spec_of(fewer), run_id="late"), name="late"))
        seen.append(open_snapshot(base.table_url).version or 0)

    with pytest.raises(CommitConflictError, match="run it again"):
        compact(base.table_url, commit=preceded(delta.commit, write_late))
    assert seen == [2]
    table = open_table(base.table_url)
    assert table.version == 2
    assert table.to_arrow().column("price_bin").null_count == 0


def test_a_group_of_an_unknown_version_is_named_in_the_error(base: ExtractJob) -> None:
    grouped(base)
    group = Path(base.table_url) / "_groups" / "more" / "_delta_log"
    for file in group.iterdir():
        file.unlink()
    with pytest.raises(TableNotFoundError, match="slot group 'more' cannot be opened at version 0"):
        open_table(base.table_url)


def test_a_dataframe_has_no_order_to_bind_rows_by(base: ExtractJob) -> None:
    with pytest.raises(InputError, match="a DataFrame has no order"):
        api.extract(
            base.spec, None, base.table_url, partition=DAY, dataframe=object(), group="more"
        )
    with pytest.raises(InputError, match="expected it with `group`"):
        api.extract(base.spec, base.input_url, base.table_url, partition=DAY, key="request")


# Faults

name_more = delta.publish_groups(lambda named: named | {"more": 0})


def test_killed_between_both_commits_nothing_changes_and_a_rerun_goes_on(
    base: ExtractJob, tmp_path: Path
) -> None:
    old = open_table(base.table_url).to_arrow()
    with pytest.raises(KeyboardInterrupt):
        grouped(base, publish=Mock(side_effect=KeyboardInterrupt))
    files = sorted(Path(base.table_url, "_groups").rglob("*.parquet"))
    assert len(files) == 3
    assert open_table(base.table_url).version == 0
    assert open_table(base.table_url).to_arrow().equals(old)
    assert grouped(base).committed
    assert sorted(Path(base.table_url, "_groups").rglob("*.parquet")) == files
    expected = whole(base, tmp_path / "other")
    assert open_table(base.table_url).to_arrow().select(expected.column_names).equals(expected)


@pytest.mark.parametrize("labels", [False, True])
def test_a_table_that_may_not_name_a_committed_group_is_told(
    base: ExtractJob, labels: bool
) -> None:
    job = replace(wider(base), run_id="more")
    group = GroupJob(job=job, name="labels" if labels else "more", labels=labels)
    with pytest.raises(StoreError, match="no answer") as raised:
        extract_group(group, publish=Mock(side_effect=StoreError("no answer")))
    (note,) = raised.value.__notes__
    assert note.startswith(f"The rows are committed to slot group {group.name!r} (version 0 of ")
    assert "it is not known whether the table names them. Run it again" in note
    assert extract_group(group).committed


def test_a_compaction_whose_commit_may_have_landed_says_so_and_keeps_its_files(
    base: ExtractJob,
) -> None:
    grouped(base)
    with pytest.raises(StoreError, match="no answer") as raised:
        compact(base.table_url, commit=Mock(side_effect=StoreError("no answer")))
    (note,) = raised.value.__notes__
    assert "not known whether the compaction was committed, so its 3 data files (part-*-" in note
    assert len(base_files(base)) == 6
    assert compact(base.table_url).groups == ("more",)


def test_a_lost_reply_of_the_base_commit_is_no_failure(base: ExtractJob) -> None:
    lost = Mock(side_effect=OSError("the reply was lost"))
    assert grouped(base, publish=followed(name_more, lost)).version == 1
    assert lost.call_count == 1


def test_of_two_writers_of_one_group_the_second_fails(base: ExtractJob) -> None:
    with pytest.raises(CommitConflictError, match="another writer committed day=1"):
        extract_group(
            GroupJob(job=replace(wider(base), run_id="second"), name="more"),
            commit=preceded(delta.commit, cache(lambda: grouped(base))),
        )
    assert open_table(base.table_url).to_arrow().column("price_log").null_count == 0
    assert len(list(Path(base.table_url, "_groups").rglob("*.parquet"))) == 3


def test_a_base_that_is_replaced_meanwhile_is_a_conflict(base: ExtractJob) -> None:
    meanwhile = replace(base, spec=spec_of([SLOTS[0]]), run_id="meanwhile")
    with pytest.raises(
        CommitConflictError,
        match="the base of slot group 'more' was replaced during this run",
    ):
        grouped(base, publish=preceded(name_more, lambda: extract_files(meanwhile)))
    table = open_table(base.table_url)
    assert (table.version, table.snapshot.groups) == (1, ())
    assert "price_log" not in table.schema


def test_two_groups_written_at_once_are_both_named(base: ExtractJob) -> None:
    third = {
        "slot": 105,
        "name": "price_bin",
        "op": "bucketize",
        "of": "price",
        "boundaries": [10, 50],
    }
    job = GroupJob(job=replace(base, spec=spec_of([*SLOTS, third]), run_id="third"), name="third")
    publish = preceded(name_more, cache(lambda: extract_group(job)))
    assert grouped(base, publish=publish).version == 2
    table = open_table(base.table_url)
    assert {group.name for group in table.snapshot.groups} == {"more", "third"}
    assert (
        table.to_arrow().column("price_bin").null_count
        == table.to_arrow().column("price_log").null_count
        == 0
    )


def test_a_days_commit_and_a_groups_commit_at_once_lose_neither(base: ExtractJob) -> None:
    publish = preceded(delta.publish_once, cache(lambda: grouped(base)))
    other = replace(base, partition={"day": "2"}, run_id="other day")
    extract_files(other, commit=lambda url, change: delta.commit(url, change, publish))
    table = open_table(base.table_url)
    assert (table.version, len(table.partitions), len(table.snapshot.groups)) == (2, 2, 1)
    assert table.to_arrow(where="day = '1'").column("price_log").null_count == 0
    assert table.to_arrow(where="day = '2'").column("price_log").null_count == 640


def test_the_group_of_one_unit_that_fails_leaves_no_file(base: ExtractJob) -> None:
    with pytest.raises(OSError, match="disk full"):
        grouped(base, runner=Mock(side_effect=OSError("disk full")))
    assert not Path(base.table_url, "_groups").exists() or not list(
        Path(base.table_url, "_groups").rglob("*.parquet")
    )
