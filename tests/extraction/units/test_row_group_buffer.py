from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featstore.extraction.units import row_group_buffer
from featstore.extraction.units.row_group_buffer import RowGroupBuffer


def required(name: str, arrow_type: pa.DataType) -> pa.Field:
    return pa.field(name, arrow_type, nullable=False)


ID, FLOAT = required("element", pa.int64()), required("element", pa.float32())
SCHEMA = pa.schema(
    [
        required("id", pa.int64()),
        required("float", pa.float32()),
        required("ids", pa.list_(ID)),
        required("floats", pa.list_(FLOAT)),
        required("two", pa.list_(ID, 2)),
        pa.field("label", pa.int64()),
        pa.field("about", pa.string()),
        pa.field("notes", pa.list_(pa.string())),
        required("flag", pa.bool_()),
    ]
)
STORED = [pa.list_(ID) if field.name == "two" else field.type for field in SCHEMA]
INT64, FLOAT32 = st.integers(-(2**63), 2**63 - 1), st.floats(width=32, allow_nan=False)
ROWS = st.fixed_dictionaries(
    {
        "id": INT64,
        "float": FLOAT32,
        "ids": st.lists(INT64, max_size=4),
        "floats": st.lists(FLOAT32, max_size=4),
        "two": st.lists(INT64, min_size=2, max_size=2),
        "label": st.none() | INT64,
        "about": st.none() | st.text(max_size=3),
        "notes": st.none() | st.lists(st.none() | st.text(max_size=2), max_size=2),
        "flag": st.booleans(),
    }
)


# Of 48 rows, three are kept without a copy until others follow.
CAPACITIES = st.integers(1, 8) | st.just(48)


@given(st.lists(st.lists(ROWS, max_size=6), max_size=5), st.integers(0, 3), CAPACITIES)
def test_rows_are_returned_unchanged_for_every_row_group(
    groups: list[list[dict[str, Any]]], skipped: int, capacity: int
) -> None:
    rows = RowGroupBuffer(SCHEMA, capacity)
    for group in groups:
        batch = pa.RecordBatch.from_pylist(group, SCHEMA)
        for part in (batch.slice(0, skipped), batch.slice(skipped)):
            rows.append(part)
        assert rows.num_rows == len(group)
        table = pa.Table.from_arrays(rows.columns(STORED), names=SCHEMA.names)
        table.validate(full=True)
        assert [column.type for column in table.columns] == STORED
        assert table.to_pylist() == group
        rows.clear()
        assert rows.num_rows == 0


def test_the_memory_of_slots_is_reused_for_every_row_group() -> None:
    schema = pa.schema([required("id", pa.int64())])
    rows, addresses = RowGroupBuffer(schema, 4), set()
    for first in (0, 4):
        batch = pa.RecordBatch.from_arrays([pa.array(np.arange(first, first + 4))], schema=schema)
        rows.append(batch.slice(0, 3))
        rows.append(batch.slice(3))
        (column,) = rows.columns(schema.types)
        assert column.to_pylist() == list(range(first, first + 4))
        addresses.add(column.buffers()[1].address)
        rows.clear()
    assert len(addresses) == 1


@given(st.lists(ROWS, min_size=1, max_size=6), st.integers(0, 3))
def test_a_batch_that_is_a_whole_row_group_is_not_copied(
    group: list[dict[str, Any]], skipped: int
) -> None:
    batch = pa.RecordBatch.from_pylist([group[0]] * skipped + group, SCHEMA).slice(skipped)
    rows = RowGroupBuffer(SCHEMA, len(group))
    for _ in range(2):
        rows.append(batch)
        table = pa.Table.from_arrays(rows.columns(STORED), names=SCHEMA.names)
        table.validate(full=True)
        assert [column.type for column in table.columns] == STORED
        assert table.to_pylist() == group
        (found,) = table["id"].chunks
        assert found.buffers()[1].address == batch["id"].buffers()[1].address
        rows.clear()


@given(st.lists(ROWS, min_size=1, max_size=3))
def test_a_few_rows_that_nothing_follows_are_not_copied(group: list[dict[str, Any]]) -> None:
    batch, rows = pa.RecordBatch.from_pylist(group, SCHEMA), RowGroupBuffer(SCHEMA, 48)
    for _ in range(2):
        rows.append(batch)
        table = pa.Table.from_arrays(rows.columns(STORED), names=SCHEMA.names)
        assert table.to_pylist() == group
        (found,) = table["id"].chunks
        assert found.buffers()[1].address == batch["id"].buffers()[1].address
        rows.clear()


def test_more_list_values_than_offsets_can_count_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_group_buffer, "_MAX_VALUES", 5)
    schema = pa.schema([required("ids", pa.list_(ID))])
    rows, batch = (
        RowGroupBuffer(schema, 4),
        pa.RecordBatch.from_pylist([{"ids": [1, 2, 3]}], schema),
    )
    rows.append(batch)
    with pytest.raises(
        ValueError,
        match="expected at most 5 values of a list in a row group: set fewer rows_per_row_group",
    ):
        rows.append(batch)
