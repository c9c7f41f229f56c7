"""Rows as read to the columns of a block: who passes, what a missing label does, constants."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from featstore.base.errors import MissingValueError
from featstore.base.schema import Slot, SlotKind, SlotSchema
from featstore.loader.batches.stats import Stats
from featstore.loader.request.decode import (
    WindowColumns,
    block_columns,
    block_extras,
    passing,
    size_bytes_of,
)
from featstore.loader.request.matching import Partition
from featstore.loader.request.request import Negatives, Request, resolve
from featstore.reading.gather import places_of
from featstore.reading.open_file import OpenFile
from featstore.reading.reader import RowGroupReader, Rows
from featstore.tensors.buffer_pool import BufferPool
from featstore.tensors.column_arrays import LABEL, SLOT, WEIGHT
from featstore.tensors.gathering import gather_batches
from featstore.tensors.packed import UnpackedColumns
from tests.loader.conftest import data_file
from tests.slot_values import assert_equal

TABLE = pa.table(
    {
        "id": pa.array([0, 1, 2, 3], pa.int64()),
        "click": pa.array([1.0, None, 0.0, 0.0], pa.float64()),
        "cost": pa.array([1.0, 2.0, 3.0, float("nan")], pa.float32()),
    }
)
SCHEMA = SlotSchema.from_arrow(TABLE.schema.append(pa.field("dt", pa.string())), ["dt"])
DECLARED = replace(SCHEMA, slots=(Slot(name="id", kind=SlotKind.ID, number=1), *SCHEMA.slots[1:]))
DAY = Partition(values={"dt": "2026-11-01"}, is_decided=False)
DECIDED = Partition(values={"dt": "2026-11-01"}, is_decided=True)


def asked(**arguments: Any) -> Request:
    return resolve(**{"schema": SCHEMA, "slots": ["id"], **arguments})


def label(null: str | float) -> Mapping[str, str | float]:
    return {"name": "click", "null": null}


def read(path: Path, request: Request) -> Rows:
    """All rows of the table, in a file of one row group."""
    data_file(path / "a.parquet", TABLE)
    with OpenFile(path / "a.parquet", "dt=2026-11-01/a.parquet") as file:
        return RowGroupReader(file, request.selection).read([0])


def passed(path: Path, request: Request, partition: Partition = DAY) -> tuple[list[bool], Any]:
    counts = Counter[str]()
    mask = passing(read(path, request), 0, request, partition, counts)
    return mask.tolist(), +counts


def test_a_missing_mark_is_null_to_where_and_rows_left_out_are_counted(tmp_path: Path) -> None:
    where = "id is not null and dt = '2026-11-01'"
    request = asked(schema=DECLARED, where=where)
    assert passed(tmp_path, request) == ([False, True, True, True], {"rows_filtered": 1})
    assert passed(tmp_path, asked(where=where)) == ([True] * 4, {})


def test_a_where_that_the_partition_decides_is_not_asked_of_rows(tmp_path: Path) -> None:
    request = asked(where="id = 3")
    assert passed(tmp_path, request)[0] == [False, False, False, True]
    assert passed(tmp_path, request, DECIDED) == ([True] * 4, {})


def test_each_row_is_left_out_for_one_reason_only(tmp_path: Path) -> None:
    request = asked(where="id > 1", labels=[label("drop")])
    assert passed(tmp_path, request) == ([False, False, True, True], {"rows_filtered": 2})
    request = asked(labels=[label("drop")])
    assert passed(tmp_path, request) == ([True, False, True, True], {"null_labels_dropped": 1})


@pytest.mark.parametrize(("null", "expected"), [("raise", 1), (0, 2)])
def test_only_negatives_are_drawn_and_a_null_label_is_one_where_it_becomes_zero(
    tmp_path: Path, null: str | float, expected: int
) -> None:
    always = np.full(4, True)
    numbers = set[int]()
    for seed in range(40):
        negatives = Negatives(label="click", rate=0.5, seed=seed)
        request = asked(labels=[label(null)], negatives=negatives)
        mask, counts = passed(tmp_path, request)
        assert counts.get("negatives_dropped", 0) == mask.count(False)
        always &= mask
        numbers.add(mask.count(False))
    assert always.tolist() == [True, null == "raise", False, False]
    assert max(numbers) == expected + 1


def test_rows_without_what_tells_them_apart_cannot_be_drawn(tmp_path: Path) -> None:
    negatives = Negatives(label="click", rate=0.5, column="id")
    request = asked(schema=DECLARED, labels=[label(0)], negatives=negatives)
    with pytest.raises(MissingValueError, match=r"negatives.column 'id' is missing in 1 of 4"):
        passed(tmp_path, request)


def test_a_null_label_is_an_error_that_names_file_and_fix_or_a_value_that_is_counted(
    tmp_path: Path,
) -> None:
    request = asked(labels=["click"])
    with pytest.raises(
        MissingValueError, match=r"a\.parquet: label 'click' is null in 1 of 4 rows"
    ):
        block_columns(read(tmp_path, request), request, Counter(), defaultdict(float))
    request, stats = asked(labels=[label(7)]), Stats()
    columns = block_columns(read(tmp_path, request), request, stats.counts, stats.column_assemble_s)
    assert np.asarray(columns[LABEL, "click"]).tolist() == [1, 7, 0, 0]
    assert np.asarray(columns[SLOT, "id"]).tolist() == [0, 1, 2, 3]
    assert +stats.counts == {"rows_decoded": 4, "null_labels_filled": 1}


def test_a_weight_that_is_nan_is_missing(tmp_path: Path) -> None:
    request = asked(weight="cost")
    with pytest.raises(MissingValueError, match=r"weight 'cost' is null in 1 of 4 rows$"):
        block_columns(read(tmp_path, request), request, Counter(), defaultdict(float))


def test_drawn_negatives_weigh_as_much_as_those_that_they_stand_for(tmp_path: Path) -> None:
    negatives = Negatives(label="click", rate=0.25)
    request = asked(labels=[label(1)], negatives=negatives)
    columns = block_columns(read(tmp_path, request), request, Counter(), defaultdict(float))
    assert np.asarray(columns[WEIGHT, "negatives"]).tolist() == [1, 1, 4, 4]


LISTS = pa.table(
    {
        "id": pa.array([5, None, 7, 8], pa.int64()),
        "tags": pa.array([[1, 2, 3], None, [], [4]], pa.list_(pa.int64())),
        "cut": pa.array([[1, 2, 3], None, [], [4]], pa.list_(pa.int64())),
        "share": pa.array([0.5, None, 2, 3], pa.float32()),
        "click": pa.array([1, 0, 0, 1], pa.float64()),
    }
)
ALL: Any = {
    "slots": ["id", "tags", "share", {"name": "cut", "max_len": 2}],
    "labels": ["click"],
}


@contextmanager
def windows(path: Path, request: Request, **how: Any) -> Iterator[Any]:
    """Reads windows of a file of two row groups by the kernels, if `as_values`, or by Arrow."""
    pq.write_table(LISTS, path / "a.parquet", row_group_size=2, **how)

    def read_window(row_groups: list[int], *, as_values: bool, order: Any = None) -> WindowColumns:
        reader = RowGroupReader(file, request.selection, as_values=as_values)
        rows = reader.read(row_groups, order)
        assert ("tags" in rows.decoded) is (as_values and rows.num_rows > 0)
        return block_columns(rows, request, Counter(), defaultdict(float))

    with OpenFile(path / "a.parquet", "a.parquet") as file:
        yield read_window


def gathered(columns: WindowColumns, num_rows: int) -> Any:
    """All rows of a window, last first."""
    places = places_of(np.arange(num_rows)[::-1], [num_rows], np.array([0, num_rows]))
    pool = BufferPool()
    [packed] = gather_batches([columns.in_buffers()], places, pool, pool)
    return UnpackedColumns(packed)


@pytest.mark.parametrize("row_groups", [[0], [1, 0], [0, 1]])
@pytest.mark.parametrize("order", [None, [1, 0], [1]])
# With another encoding a column is Arrow's to read, and the others are not.
@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BINARY_PACKED"])
def test_columns_as_they_are_decoded_are_those_that_are_converted(
    tmp_path: Path, row_groups: list[int], order: list[int] | None, encoding: str
) -> None:
    request = resolve(SlotSchema.from_arrow(LISTS.schema), **ALL)
    how = {"use_dictionary": False, "column_encoding": {"id": encoding}}
    chosen = None if order is None else np.array(order)
    with windows(tmp_path, request, **how) as read_window:
        for _ in range(2):  # How the columns are delivered is worked out once.
            found = read_window(row_groups, as_values=True, order=chosen)
            converted = read_window(row_groups, as_values=False, order=chosen)
            assert list(found) == list(converted)
            assert len(found) == 5
            assert found.num_lists == converted.num_lists == 2
            assert found.size_bytes == sum(size_bytes_of(values) for values in found.values())
            for key, values in converted.items():
                assert_equal(found[key], values)
            num_rows = len(converted[SLOT, "id"])
            ours, theirs = gathered(found, num_rows), gathered(converted, num_rows)
            assert list(ours) == list(theirs) == list(found)
            for key, values in theirs.items():
                assert_equal(ours[key], values)
            assert_equal(ours[SLOT, "id"], converted[SLOT, "id"][::-1])


def test_an_order_of_no_rows_has_none(tmp_path: Path) -> None:
    request = resolve(SlotSchema.from_arrow(LISTS.schema), **ALL)
    with windows(tmp_path, request) as read_window:
        found = read_window([0, 1], as_values=True, order=np.arange(0))
        assert [len(values) for values in found.values()] == [0] * 5


def test_extras_have_nan_as_null_and_a_partition_key_in_each_row(tmp_path: Path) -> None:
    request = asked(extras=["cost", "dt"])
    rows = read(tmp_path, request)
    extras = block_extras(rows, request, DAY)
    assert extras.to_pydict() == {"cost": [1, 2, 3, None], "dt": ["2026-11-01"] * 4}
    nowhere = Partition(values={"dt": None}, is_decided=False)
    assert block_extras(rows, request, nowhere)["dt"].to_pylist() == [None] * 4
    assert block_extras(rows, asked(), DAY).num_columns == 0
