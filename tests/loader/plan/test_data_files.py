"""Which data files are read, and how an epoch of any number of files is listed in parts."""

import cProfile
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import Schema
from deltalake.transaction import AddAction, create_table_with_add_actions
from hypothesis import given, settings
from hypothesis import strategies as st

from featstore.base.errors import SelectionError
from featstore.base.schema import SlotSchema
from featstore.dispatch.orders import MiniEpoch, WorkerInfo
from featstore.dispatch.plan import Plan, Split
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.plan.splitting import Listing, WholeFiles, split_list
from featstore.loader.request.matching import (
    SelectedFiles,
    matching,
    matching_files,
)
from featstore.loader.request.request import resolve
from featstore.table.snapshot import DataFile, FileList, Group, GroupFile, Snapshot


def found(snapshot: Snapshot, where: str | None) -> dict[str, bool]:
    """The days of the files that are read, and whether `where` is decided of them."""
    request = resolve(snapshot.schema, slots=["row"], where=where)
    files = matching_files(snapshot, request)
    return {str(file.partition["dt"]): part.is_decided for file, part in files.values()}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, dict.fromkeys(range(1, 6), False)),
        ("dt = '2026-11-03'", {3: True}),
        ("dt > '2026-11-03' and row % 2 = 0", {4: False, 5: False}),
    ],
)
def test_a_file_is_read_unless_its_partition_alone_rules_it_out(
    snapshot: Snapshot, where: str | None, expected: dict[int, bool]
) -> None:
    assert found(snapshot, where) == {f"2026-11-0{day}": is_ for day, is_ in expected.items()}


def test_a_where_that_matches_no_partition_names_what_there_is(snapshot: Snapshot) -> None:
    with pytest.raises(SelectionError, match=r"matches no partition .* which has dt=2026-11-01, "):
        found(snapshot, "dt = '2025-01-01'")
    empty = replace(snapshot, data_files=FileList.of())
    assert found(empty, "dt = '2025-01-01'") == {}


def test_files_of_slot_groups_come_along_only_where_a_column_of_theirs_is_read() -> None:
    groups = [
        Group(name=name, version=1, schema=SlotSchema.from_arrow(pa.schema([(column, "int64")])))
        for name, column in (("g", "b"), ("h", "c"))
    ]
    files = tuple(
        GroupFile(group=group.name, path=group.name, url="u", size_bytes=1, num_rows=1)
        for group in groups
    )
    base = DataFile(path="p", url="u", size_bytes=1, num_rows=1, partition={}, groups=files)
    schema = SlotSchema.from_arrow(pa.schema([(name, "int64") for name in "abc"]))
    snapshot = Snapshot(
        url="u", version=1, schema=schema, data_files=FileList.of((base,)), groups=tuple(groups)
    )

    def read(slots: str, where: str | None = None) -> list[str]:
        listed, _ = matching(snapshot, resolve(schema, slots=list(slots), where=where))["p"]
        return [file.group for file in listed.groups]

    assert [read("a"), read("b"), read("abc")] == [[], ["g"], ["g", "h"]]
    assert read("a", where="c = 1") == ["h"]


SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=12)


def listing_of(sizes: list[int]) -> Listing:
    """Files of so many bytes, cut into splits of ten rows; the odd ones are not read."""
    files = [
        DataFile(path=f"{number:04}", url="u", size_bytes=size, num_rows=size, partition={})
        for number, size in enumerate(sizes)
    ]

    def cut(files: Iterable[DataFile]) -> Iterator[Split]:
        for file in files:
            for first in range(0, file.num_rows + 1, 10):
                rows = min(10, file.num_rows - first)
                yield Split(path=file.path, num_rows=rows, first_row_group=first)

    def select(files: FileList) -> SelectedFiles:
        return SelectedFiles(files, [None]).take(range(0, len(files), 2))

    return Listing(
        list_files=lambda: FileList.of(files),
        select=select,
        split=partial(split_list, cut=cut, whole=False),
    )


def all_splits(listing: Listing) -> list[Split]:
    return list(listing.split(listing.select(listing.list_files())))


@given(SIZES, st.integers(0, 9), st.booleans())
def test_a_census_names_what_a_plan_and_a_snapshot_of_all_files_would(
    sizes: list[int], seed: int, shuffle: bool
) -> None:
    listing = listing_of(sizes)
    census, splits = listing.count(seed, shuffle=shuffle), all_splits(listing)
    schema = SlotSchema(slots=())
    table = Snapshot(url="u", version=1, schema=schema, data_files=listing.list_files())
    assert census.table == table.digest
    assert census.plan == Plan(splits=splits, seed=seed, shuffle=shuffle).digest
    assert census.num_splits == len(splits)


@given(SIZES, st.integers(1, 3), st.integers(1, 3))
def test_the_parts_of_all_workers_are_the_epoch_each_with_its_own_files(
    sizes: list[int], num_workers: int, num_parts: int
) -> None:
    listing = listing_of(sizes)
    plan, read = Plan(splits=all_splits(listing), seed=5, epoch=2), list[Split]()
    for worker in range(num_workers):
        seat = WorkerInfo(index=worker, num_workers=num_workers)
        for number in range(num_parts):
            part = MiniEpoch(
                seed=5, epoch=2, worker_info=seat, number=number, num_mini_epochs=num_parts
            )
            files, splits = listing.part(part, len(plan))
            assert set(files) == {split.path for split in splits}
            assert all(path == file.path for path, (file, _) in files.items())
            read += splits
    assert read == list(plan)


@settings(max_examples=10)
@given(st.permutations(range(2 * 300)))
def test_of_many_files_the_largest_256_are_known(sizes: list[int]) -> None:
    listing = replace(listing_of(sizes), split=WholeFiles)
    read = sorted((file.size_bytes for file in list(listing.list_files())[::2]), reverse=True)
    largest = listing.count(0, shuffle=False).largest
    assert sorted((f.size_bytes for f, _ in largest.values()), reverse=True) == read[:256]


def test_a_file_of_several_splits_is_one_of_the_largest() -> None:
    assert list(listing_of([35, 0, 8]).count(0, shuffle=False).largest) == ["0000", "0002"]


def test_a_loader_of_many_files_makes_no_object_of_each(tmp_path: Path) -> None:
    """For a million files see benchmarks/rank_listing.py."""

    def num_calls(num_files: int) -> int:
        url, numbers = str(tmp_path / str(num_files)), range(num_files)
        stats = json.dumps({"numRecords": 10})
        actions = [
            AddAction(f"dt={i % 5}/{i:05}.parquet", 10 + i, {"dt": str(i % 5)}, i, True, stats)
            for i in numbers
        ]
        schema = Schema.from_arrow(pa.schema([("row", pa.int64()), ("dt", pa.string())]))
        create_table_with_add_actions(url, schema, actions, partition_by=["dt"])
        with cProfile.Profile() as profile:
            loader = FeatureLoader(url, slots=["row"], where="dt <> '3'", order="static")
        loader.close()
        return sum(entry.callcount for entry in profile.getstats())

    few = [num_calls(num_files) for num_files in (10, 11)][1]  # the first one imports
    assert num_calls(5_000) < few + 1_000
