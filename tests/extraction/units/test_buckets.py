"""Which bucket a row goes to, and how large its files and row groups are."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.base.errors import InputError
from featstore.extraction.units.blocks import RowBlock
from featstore.extraction.units.buckets import (
    Bucket,
    BucketTask,
    bucket_of,
    count_buckets,
    in_buckets,
    key_signs,
    plan_buckets,
    require_all,
)
from featstore.extraction.units.raw import RawRange, Unit
from featstore.extraction.units.unit import UnitReport
from featstore.files.listings import FileEntry
from featstore.ops.hashing import sign, value_hash
from featstore.spec.model import Spec


def unit_of(index: int, month: str, num_rows: int) -> Unit:
    listed = FileEntry(url="a", name="a", size_bytes=1, version="")
    raw = RawRange(
        listed=listed, first_row_group=0, last_row_group=0, first_row=0, num_rows=num_rows
    )
    return Unit(index=index, partition={"month": month}, ranges=(raw,))


def test_each_partition_has_buckets_of_its_own() -> None:
    units = [unit_of(0, "1", 100), unit_of(1, "1", 50), unit_of(2, "2", 10), unit_of(3, "3", 100)]
    cuts, buckets = plan_buckets(units, 100)
    assert [(unit.index, list(numbers)) for unit, numbers in cuts] == [
        (0, [0, 1]),
        (1, [0, 1]),
        (2, [2]),
        (3, [3]),
    ]
    months = [{"month": month} for month in "1123"]
    assert buckets == [Bucket(index=i, partition=month) for i, month in enumerate(months)]


@given(st.integers(1, 10**9), st.integers(1, 10**6))
def test_buckets_are_planned_to_be_nearly_a_file(num_rows: int, rows_per_file: int) -> None:
    num = count_buckets(num_rows, rows_per_file)
    assert (num == 1) == (num_rows <= rows_per_file)
    if num > 1:
        assert num_rows / num <= rows_per_file * 15 / 16 < num_rows / (num - 1)


@pytest.mark.parametrize(
    ("column", "declared"),
    [
        (pa.array(["a", None, "b"]), pa.string()),
        (pa.array(["a", None, "b"]).dictionary_encode(), pa.string()),
        (pa.array([b"a", None, b"b"], pa.large_binary()), pa.string()),
        (pa.array([5, None, -1], pa.int32()), pa.int64()),
        (pa.array([True, None, False]), pa.bool_()),
    ],
)
def test_the_sign_of_a_key_is_that_of_its_canonical_text(
    column: pa.Array, declared: pa.DataType
) -> None:
    texts = {pa.string(): ["a", "b"], pa.int64(): ["5", "-1"], pa.bool_(): ["1", "0"]}[declared]
    [first, second] = sign(0, value_hash(pa.array(texts))).to_pylist()
    assert key_signs(column, declared).tolist() == [first, 0, second]


def test_an_absent_column_has_no_keys() -> None:
    assert key_signs(pa.nulls(3, pa.string()), pa.string()).tolist() == [0, 0, 0]


def test_keys_are_spread_evenly_and_rows_without_one_by_unit() -> None:
    keys = key_signs(pa.array(range(10_000)), pa.int64())
    counts = Counter(bucket_of(keys, 7, unit=3).tolist())
    assert counts.keys() == set(range(7))
    assert max(counts.values()) < 1.1 * 10_000 / 7
    assert (bucket_of(keys, 7, unit=3) == bucket_of(keys, 7, unit=4)).all()
    none = np.zeros(2, np.int64)
    assert [bucket_of(none, 3, unit).tolist() for unit in range(4)] == [
        [0, 0],
        [1, 1],
        [2, 2],
        [0, 0],
    ]


@given(st.lists(st.integers(1, 2**63 - 1)), st.integers(1, 9))
def test_events_go_where_the_rows_of_their_keys_go(given: list[int], num_buckets: int) -> None:
    keys = np.sort(np.array(given, np.int64))
    rows = pa.RecordBatch.from_pydict({"key": keys})
    whole = RowBlock(place=(3, 1), rows=rows, first_bucket=0, ends=np.array([len(keys)]))
    found = [
        (part.first_bucket, key)
        for part in in_buckets(whole, range(5, 5 + num_buckets)).split()
        for key in part.rows["key"].to_pylist()
    ]
    own = bucket_of(keys, num_buckets, unit=7) + 5
    assert found == list(zip(own.tolist(), keys.tolist(), strict=True))


@given(st.integers(1, 3_000), st.integers(1, 200), st.integers(0, 900))
def test_row_groups_and_files_of_a_bucket_are_of_equal_size(
    num_rows: int, rows_per_row_group: int, more: int
) -> None:
    task = _task(num_rows, rows_per_row_group, rows_per_row_group + more)
    group_rows = task.rows_per_row_group()
    assert group_rows <= rows_per_row_group
    num_groups = -(-num_rows // group_rows)
    sizes = [min(group_rows, num_rows - i * group_rows) for i in range(num_groups)]
    assert len(sizes) <= -(-num_rows // rows_per_row_group)
    assert max(sizes) - sizes[-1] < max(num_groups, 2)
    assert task.rows_per_file % group_rows == 0
    assert 0 < task.rows_per_file <= rows_per_row_group + more
    most = task.rows_per_file // group_rows
    files = [sizes[at : at + most] for at in range(0, num_groups, most)]
    assert max(map(len, files)) - min(map(len, files)) < max(len(files), 2)


def _task(num_rows: int, rows_per_row_group: int, rows_per_file: int) -> BucketTask:
    spec = Spec(nodes=(), inputs={})
    output = replace(
        spec.output, rows_per_row_group=rows_per_row_group, rows_per_file=rows_per_file
    )
    spec = replace(spec, output=output)
    return BucketTask(spec=spec, table_url="", run_id="", tag="", num_rows=num_rows)


def _report(**counts: Any) -> UnitReport:
    none: dict[str, Any] = {"path": "", "partition": {}, "num_rows": 0, "size_bytes": 0}
    return UnitReport(**none | {"crc32": 0, "counts": {}} | counts)


def test_rows_that_are_lost_or_doubled_are_an_error() -> None:
    reports = [_report(num_rows_cut=5), _report(num_rows=3), _report(num_rows=2)]
    assert require_all(iter(reports)) == reports
    for wrong in (reports[:2], [*reports, _report(num_rows=1)]):
        with pytest.raises(
            InputError,
            match=r"cluster_by: expected the 5 rows that were extracted in the data files, found "
            r"[36]: a task was repeated",
        ):
            require_all(wrong)
    for num_got, said in ((4, "1 fewer"), (7, "2 more")):
        events = [_report(num_events_cut=5), _report(num_events_cut=-num_got)]
        with pytest.raises(InputError, match=rf"^histories: .* found {said}: a task was repeated"):
            require_all(events)
