"""Blocks of rows in a temporary file, and the groups that are read out of it."""

import errno
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import DiskFullError, StoreError
from featstore.extraction.units.blocks import Blocks, RowBlock, cut_groups
from tests.process import num_unnamed_files, our_files

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("tags", pa.list_(pa.string()))]
)


def block(place: tuple[int, int], keys: list[int], num_buckets: int = 1) -> RowBlock:
    """A block of rows with these keys, in the order of the input; their ids tell place and row."""
    buckets = np.array(keys, np.int64) % num_buckets
    order = np.lexsort((np.array(keys, np.int64), buckets))
    ids = pa.array([1_000 * place[0] + 100 * place[1] + row for row in range(len(keys))])
    tags = pa.array([[f"t{key}"] * (key % 3) for key in keys], pa.list_(pa.string()))
    rows = pa.RecordBatch.from_arrays([ids, tags], schema=SCHEMA).take(pa.array(order))
    rows = rows.append_column("id", pa.array(np.array(keys, np.int64)[order]))
    ends = np.cumsum(np.bincount(buckets, minlength=num_buckets))
    return RowBlock(place=place, rows=rows, first_bucket=5, ends=ends)


def ids_of(blocks: Blocks, bucket: int, batch_rows: int) -> list[list[int]]:
    """The ids of each batch of a bucket's rows."""
    rows = blocks.of_bucket(bucket)
    batches = [batch["id"].to_pylist() for batch in rows.batches(batch_rows)]
    assert rows.num_rows == sum(map(len, batches))
    return batches


def test_rows_are_in_the_order_of_keys_then_of_the_input() -> None:
    with Blocks(SCHEMA) as blocks:
        blocks.add(block((2, 0), [1, 1]))
        blocks.add(block((0, 1), [3, 2, 1]))
        blocks.add(block((0, 0), [2, 1, 2]))
        assert ids_of(blocks, 5, 5) == [[1, 102, 2000, 2001, 0], [2, 101, 100]]
        assert ids_of(blocks, 4, 5) == ids_of(blocks, 6, 5) == []


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=5),
    st.integers(1, 3),
    st.integers(1, 8),
    st.booleans(),
)
def test_each_bucket_has_its_rows_once_as_by_a_sort(
    keys: list[list[int]], num_buckets: int, batch_rows: int, is_split: bool
) -> None:
    with Blocks(SCHEMA) as blocks:
        made = [block((unit, 0), own, num_buckets) for unit, own in enumerate(keys)]
        for whole in made:
            for part in whole.split() if is_split else [whole]:
                message = part.to_bytes()
                blocks.add_message(part.place, message, part.first_bucket, part.ends)
        for bucket in range(num_buckets):
            expected = sorted(
                (key, 1_000 * unit + row)
                for unit, own in enumerate(keys)
                for row, key in enumerate(own)
                if key % num_buckets == bucket
            )
            ids = [name for _, name in expected]
            cut = [ids[at : at + batch_rows] for at in range(0, len(ids), batch_rows)]
            assert ids_of(blocks, 5 + bucket, batch_rows) == cut


@given(st.lists(st.lists(st.integers(0, 5)).map(sorted), min_size=1), st.integers(1, 10))
def test_groups_are_cut_in_the_order_of_keys(keys: list[list[int]], group_rows: int) -> None:
    counts = cut_groups([np.array(own, np.int64) for own in keys], group_rows)
    num_rows = sum(map(len, keys))
    assert counts.shape == (-(-num_rows // group_rows), len(keys))
    assert counts.sum(axis=0).tolist() == list(map(len, keys))
    assert set(counts.sum(axis=1)[:-1].tolist()) <= {group_rows}
    left, last = [list(own) for own in keys], 0
    for of_group in counts.tolist():
        taken = [left[i].pop(0) for i, count in enumerate(of_group) for _ in range(count)]
        assert min(taken) >= last
        last = max(taken)


TEXTS = st.lists(st.tuples(st.integers(1, 9), st.text(max_size=3) | st.none()), max_size=30)


@given(TEXTS, st.lists(st.integers(0, 30), max_size=4), st.sets(st.integers(0, 9)))
def test_rows_of_keys_do_not_depend_on_how_rows_are_cut(
    events: list[tuple[int, str | None]], cuts: list[int], wanted: set[int]
) -> None:
    schema, events = pa.schema([("text", pa.string())]), sorted(events, key=lambda event: event[0])
    keys, texts = [key for key, _ in events], [text for _, text in events]
    with Blocks(schema) as blocks:
        for number, (first, last) in enumerate(pairwise([0, *sorted(cuts), 30])):
            rows = pa.RecordBatch.from_pydict({"text": texts[first:last]}, schema)
            rows = rows.append_column("key", pa.array(keys[first:last], pa.int64()))
            ends = np.array([rows.num_rows])
            blocks.add(RowBlock(place=(number, 0), rows=rows, first_bucket=0, ends=ends))
        some = np.array(sorted(wanted), np.int64)
        size, rows = blocks.size_of_keys(some), blocks.of_keys(some).to_pydict()
    found = [text for key, text in events if key in wanted]
    assert size == 16 * len(found) + sum(len((text or "").encode()) for text in found)
    assert sorted(rows["text"], key=str) == sorted(found, key=str)


def test_many_rows_of_several_blocks_keep_all_values() -> None:
    keys = [row % 97 for row in range(9_000)]
    with Blocks(SCHEMA) as blocks:
        for unit in range(2):
            blocks.add(block((unit, 0), keys))
        rows = pa.Table.from_batches(blocks.of_bucket(5).batches(), SCHEMA)
    expected = [[f"t{key}"] * (key % 3) for key in sorted(keys * 2)]
    assert rows["tags"].to_pylist() == expected


def test_the_file_has_no_name_and_goes_with_the_blocks() -> None:
    before, files = num_unnamed_files(), our_files()
    with Blocks(SCHEMA) as blocks:
        blocks.add(block((0, 0), [1, 2, 3]))
        assert ids_of(blocks, 5, 2) == [[0, 1], [2]]
        assert our_files() == files
        assert num_unnamed_files() > before
    assert num_unnamed_files() == before


def fill_with(blocks: Blocks, block: RowBlock) -> None:
    for _ in range(9):
        blocks.add(block)


def test_a_full_disk_is_named_with_what_to_do(small_disk: Path) -> None:
    with Blocks(SCHEMA, str(small_disk)) as blocks:
        large = block((0, 0), [0] * 50_000)
        said = rf"^{re.escape(str(small_disk))}: rows on their way to `output.cluster_by`.*; make "
        with pytest.raises(DiskFullError, match=said + "room there, or point TMPDIR") as raised:
            fill_with(blocks, large)
        assert raised.value.errno == errno.ENOSPC


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=rf"^{re.escape(str(tmp_path))}/x: rows on their way"):
        Blocks(SCHEMA, str(tmp_path / "x"))
